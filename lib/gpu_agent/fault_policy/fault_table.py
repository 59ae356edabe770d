# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The table of GPU faults: how each is detected, what follows, and when it is over. Pure.

docs/reference/health.md is generated from it: .venv/bin/python scripts/tables.

Faults that a job can cause quarantine no GPU. The kernel log alone never does either: a container
can forge the text of a record (gpu_agent.gpu.vendors.nvidia.xid). A kernel record starts a poll of
the GPU, and only NVML, the PCI bus or a counter of the driver confirms the fault.
"""

import dataclasses
import typing

from gpu_agent.fault_policy.fault import Action, Fault, Need, Sure
from gpu_agent.gpu.vendors.nvidia.xid import Severity
from gpu_agent.model import recovery_action
from gpu_agent.model.observations import Source

JOB_XIDS: typing.Final = (13, 31, 43, 45)
"""Xids that NVIDIA attributes to the application."""

SUSPICIOUS_XIDS: typing.Final = (13, 31)
"""Those of them that a broken GPU can cause too."""

# Status shows a remedy up to its first bracket or semicolon.
_AGAIN: typing.Final = "; the GPU is then tested and returns by itself"
_REBOOT: typing.Final = f"Reboot the machine (for an LXD container: its host){_AGAIN}"
_RESET: typing.Final = (
    "Reset the idle GPU (`juju config <application> gpu-recovery=reset`), or reboot the machine "
    "(for an LXD container: its host)" + _AGAIN
)
_REPLACE: typing.Final = (
    "Replace GPU {index} ({model}, {address}); then run `juju run <unit> gpu-uncordon "
    "gpu=gpu-{index} reason=replaced`"
)
_COOL: typing.Final = (
    "Check fans, air flow and power cables of GPU {index}; after 10 min without slowdown the GPU "
    "returns by itself"
)
_UNCORDON: typing.Final = (
    "Find out why GPU {index} fails repeatedly; then run `juju run <unit> gpu-uncordon "
    "gpu=gpu-{index} reason=repaired`"
)

XID: typing.Final = Fault(
    "xid",
    "Xid that calls for a reset, a reboot or a repair",
    (Source.EVENT, Source.KERNEL),
    Sure.ONCE,
    Action.OUT,
    "the driver asks for no recovery, and the self-test passes",
    "isolation",
    Need.REBOOT,
    _REBOOT,
    "Xid {code}",
    "Xid {code}, {meaning}",
    "Xid {code}",
    counted=True,
)
RECOVERY: typing.Final = Fault(
    "recovery",
    "the driver asks for a reset or a reboot (its recovery action is not none)",
    (Source.EVENT, Source.POLL),
    Sure.ONCE,
    Action.OUT,
    XID.back,
    "isolation",
    Need.RESET,
    _RESET,
    "recovery needed",
    "its driver asks for {what}",
    "the driver asks for a recovery",
    counted=True,
)
OFF_BUS: typing.Final = Fault(
    "off-bus",
    "the GPU has fallen off the bus: it is missing in the PCI list or in the driver",
    (Source.BUS, Source.KERNEL),
    Sure.ONCE,
    Action.OUT,
    "PCI and the driver list it again, and the self-test passes",
    "isolation",
    Need.REBOOT,
    _REBOOT,
    "off the bus",
    "it has fallen off the bus",
    "GPUs are lost",
    counted=True,
)
LOST: typing.Final = Fault(
    "lost",
    "the GPU does not answer NVML",
    (Source.EVENT, Source.POLL),
    Sure.ONCE,
    Action.OUT,
    "it answers, and the self-test passes",
    "isolation",
    Need.REBOOT,
    _REBOOT,
    "does not answer",
    "it does not answer its driver",
    OFF_BUS.cause,
    counted=True,
)
HANG: typing.Final = Fault(
    "hang",
    "the driver hangs: calls into NVML do not return",
    (Source.POLL,),
    Sure.MISSES,
    Action.ALL,
    "the driver answers, and each GPU passes the self-test",
    "quick",
    remedy="Wait for its jobs and reboot the machine (for an LXD container: its host)",
    short="driver hangs",
    cause="the driver does not answer",
)
ECC: typing.Final = Fault(
    "ecc",
    "memory error that ECC could not correct",
    (Source.EVENT, Source.POLL),
    Sure.ONCE,
    Action.OUT,
    "no such error since the driver was loaded, and the self-test passes",
    "compute",
    Need.RESET,
    _RESET,
    "uncorrected ECC error",
    "memory error that ECC could not correct",
    "uncorrected ECC errors",
    counted=True,
)
POISON: typing.Final = Fault(
    "poison",
    "poisoned data that the GPU cannot contain",
    (Source.EVENT,),
    Sure.ONCE,
    Action.OUT,
    "the self-test passes",
    "compute",
    Need.RESET,
    _RESET,
    "poisoned data",
    "poisoned data in its memory",
    "poisoned data",
    counted=True,
)
REMAP_FAILED: typing.Final = Fault(
    "remap-failed",
    "a bad row of memory could not be remapped",
    (Source.EVENT, Source.POLL),
    Sure.ONCE,
    Action.OUT,
    "an operator returns it",
    "",
    Need.REPAIR,
    _REPLACE,
    "remapping failed",
    "bad memory that could not be remapped",
    "rows could not be remapped",
    counted=True,
)
REMAP_PENDING: typing.Final = Fault(
    "remap-pending",
    "memory rows are remapped at the next reset (NVIDIA allows new work until then)",
    (Source.POLL,),
    Sure.ONCE,
    Action.TEST,
    "a reset clears the flag; with gpu-recovery=reset an idle GPU is quarantined for the reset",
    "quick",
    Need.RESET,
    _RESET,
    "remapping pending",
)
SLOWDOWN: typing.Final = Fault(
    "slowdown",
    "power brake or thermal slowdown by the hardware, with or without a job",
    (Source.POLL,),
    Sure.LOOKS,
    Action.HOLD,
    "10 min without slowdown",
    "quick",
    remedy=_COOL,
    short="slowed down",
    cause="the hardware slows GPUs down",
)
SLOWDOWN_LASTING: typing.Final = Fault(
    "slowdown-lasting",
    "the same without interruption",
    (Source.POLL,),
    Sure.LASTING,
    Action.OUT,
    "10 min without slowdown, and the self-test passes",
    "burn-in",
    remedy=_COOL.replace("GPU returns", "GPU is tested and returns"),
    short="slowed down",
    cause=SLOWDOWN.cause,
    counted=True,
)
SOFTWARE_SLOWDOWN: typing.Final = Fault(
    "software-slowdown",
    "lower clock set by software: power cap, temperature",
    (Source.POLL,),
    Sure.ONCE,
    Action.METRIC,
    "-",
)
XID_WARNING: typing.Final = Fault(
    "xid-warning",
    "Xid after which the GPU continues to work",
    (Source.EVENT,),
    Sure.ONCE,
    Action.METRIC,
    "-",
)
JOB: typing.Final = Fault(
    "job",
    f"Xid {', '.join(map(str, JOB_XIDS))}: NVIDIA attributes them to the program",
    (Source.EVENT,),
    Sure.ONCE,
    Action.TELL,
    "-",
    words="Xid {code}, {meaning}",
)
JOB_TWICE: typing.Final = Fault(
    "job-twice",
    f"Xid {' or '.join(map(str, SUSPICIOUS_XIDS))} twice in 24 h on one GPU, from different jobs",
    JOB.sources,
    Sure.HISTORY,
    Action.TEST,
    "the self-test decides",
    "compute",
)
KERNEL_ALONE: typing.Final = Fault(
    "kernel-alone",
    "the kernel log reports an Xid that would quarantine, and no other source does within 20 s",
    (Source.KERNEL,),
    Sure.ONCE,
    Action.TEST,
    "the self-test decides; at most one an hour",
    "quick",
)
DIRTY: typing.Final = Fault(
    "dirty",
    "memory is still taken 2 s after the holder's last process ended",
    (Source.POLL,),
    Sure.ONCE,
    Action.HOLD,
    "the memory is free",
    short="memory still taken",
)
OFTEN: typing.Final = Fault(
    "often",
    "the fifth quarantine in seven days",
    (Source.EVENT, Source.POLL, Source.BUS, Source.COUNTER),
    Sure.HISTORY,
    Action.OPERATOR,
    "an operator returns it",
    "",
    Need.REPAIR,
    _UNCORDON,
)
BREAKER: typing.Final = Fault(
    "breaker",
    "more GPUs than quarantine-limit-percent allows failed within 5 min for the same cause",
    OFTEN.sources,
    Sure.HISTORY,
    Action.STOP,
    "the cause is gone; GPUs return independently of it",
)
RAS: typing.Final = Fault(
    "ras",
    "memory error that the RAS of the driver could not correct",
    (Source.COUNTER, Source.POLL),
    Sure.ONCE,
    Action.OUT,
    "no such error since the driver was loaded, and the self-test passes",
    "isolation",
    Need.REBOOT,
    _REBOOT,
    "uncorrected RAS error",
    "memory error that could not be corrected",
    "uncorrected RAS errors",
    counted=True,
)
DRIVER_RESET: typing.Final = Fault(
    "driver-reset",
    "the DRM driver has reset the GPU, for example after a hanging GPU kernel",
    (Source.COUNTER,),
    Sure.ONCE,
    Action.TEST,
    "the self-test decides; at most one an hour",
    "quick",
    words="its driver has reset it",
)
WEDGED: typing.Final = Fault(
    "wedged",
    "the DRM driver has declared the GPU wedged",
    (Source.COUNTER,),
    Sure.ONCE,
    Action.OUT,
    "the self-test passes after a reboot",
    "isolation",
    Need.REBOOT,
    _REBOOT,
    "wedged",
    "its driver has declared it wedged",
    "the driver declares GPUs wedged",
    counted=True,
)

TABLE: typing.Final = (
    XID, RECOVERY, OFF_BUS, LOST, HANG, ECC, POISON, REMAP_FAILED, REMAP_PENDING, SLOWDOWN,
    SLOWDOWN_LASTING, SOFTWARE_SLOWDOWN, XID_WARNING, JOB, JOB_TWICE, KERNEL_ALONE, DIRTY, OFTEN,
    BREAKER, RAS, DRIVER_RESET, WEDGED,
)  # fmt: skip
"""All faults. `fault` of a Message names one whose sources include that of the message."""

BY_NAME: typing.Final = {row.name: row for row in TABLE}

# Xids that mean the fault of another row: they get its test and remedy.
_LIKE: typing.Final = {
    **dict.fromkeys((48, 95, 140, 171, 172), ECC),
    64: REMAP_FAILED,
    79: OFF_BUS,
}


def of_xid(code: int, severity: Severity) -> Fault:
    """The row of an Xid; `severity` comes from gpu_agent.gpu.vendors.nvidia.xid.meaning."""
    if code in JOB_XIDS:
        return JOB
    if severity is not Severity.FATAL:
        return XID_WARNING
    like = _LIKE.get(code, XID)
    cause = like.cause if like is not XID else f"Xid {code}"
    return dataclasses.replace(
        XID, level=like.level, need=like.need, remedy=like.remedy, back=like.back, cause=cause
    )


def of_action(action: int) -> Fault:
    """The row of a recovery action that the driver asks for, by its number."""
    if action in recovery_action.RESETS:
        return RECOVERY
    remedy = _REBOOT
    if action == recovery_action.COLD_START:
        remedy = f"Power the machine off and on{_AGAIN}"
    return dataclasses.replace(RECOVERY, need=Need.REBOOT, remedy=remedy)
