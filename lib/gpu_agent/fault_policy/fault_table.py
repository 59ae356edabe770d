# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What can be wrong with a GPU, as a table: who sees it, what follows, when it is over. Pure.

docs/reference/health.md is made of it: .venv/bin/python scripts/tables.

What a job can bring about takes no GPU out. What the kernel's log says never does so alone: what
follows a record's beginning any container can choose (gpu_agent.gpu.vendors.nvidia.xid), so it
starts a look at the GPU, and only what NVML, the bus or a counter of the driver shows then
decides.
"""

import dataclasses
import typing

from gpu_agent.fault_policy.fault import Action, Fault, Need, Sure
from gpu_agent.gpu.vendors.nvidia import recovery_action
from gpu_agent.gpu.vendors.nvidia.xid import Severity
from gpu_agent.model.observations import Source

JOB_XIDS: typing.Final = (13, 31, 43, 45)
"""What NVIDIA calls the application's fault."""

SUSPICIOUS_XIDS: typing.Final = (13, 31)
"""Those of them that a broken GPU brings about too."""

_AGAIN: typing.Final = "; it is tested then, and comes back by itself"
_REBOOT: typing.Final = f"Reboot the machine (where that is a container, its host){_AGAIN}"
_RESET: typing.Final = (
    "Reset it while nothing uses it (`sudo nvidia-smi --gpu-reset -i {uuid}`), or reboot the "
    f"machine{_AGAIN}"
)
_REPLACE: typing.Final = (
    "Have GPU {index} replaced ({model}, {address}); then `juju run <unit> gpu-uncordon "
    "gpu=gpu-{index}`"
)
_COOL: typing.Final = (
    "Look at fans, air flow and power cables of GPU {index}; when its clock has been free for "
    "10 min it comes back by itself"
)
_UNCORDON: typing.Final = (
    "Find out why GPU {index} fails again and again; then `juju run <unit> gpu-uncordon "
    "gpu=gpu-{index}`"
)

XID: typing.Final = Fault(
    "xid",
    "Xid that calls for a reset, a reboot or a repair",
    (Source.EVENT, Source.KERNEL),
    Sure.ONCE,
    Action.OUT,
    "the driver asks for no recovery, and the GPU passes",
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
    "the GPU has fallen off the bus: PCI's list lacks it, or the driver does",
    (Source.BUS, Source.KERNEL),
    Sure.ONCE,
    Action.OUT,
    "PCI and the driver have it again, and it passes",
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
    "it answers, and it passes",
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
    "the driver answers, and each GPU passes",
    "quick",
    remedy="Wait for its jobs and reboot the machine (where that is a container, its host)",
    short="driver hangs",
    cause="the driver does not answer",
)
ECC: typing.Final = Fault(
    "ecc",
    "memory error that ECC could not correct",
    (Source.EVENT, Source.POLL),
    Sure.ONCE,
    Action.OUT,
    "the driver counts none since it was loaded, and the GPU passes",
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
    "poisoned data that the GPU can't contain",
    (Source.EVENT,),
    Sure.ONCE,
    Action.OUT,
    "it passes",
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
    "the operator brings it back",
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
    "rows of memory wait for a reset to be remapped (by NVIDIA's word new work may start)",
    (Source.POLL,),
    Sure.ONCE,
    Action.TEST,
    "a reset clears the flag; with gpu-recovery=reset or reboot the GPU is out of use for that as "
    "soon as it is idle",
    "quick",
    Need.RESET,
    _RESET,
    "remapping pending",
)
SLOWDOWN: typing.Final = Fault(
    "slowdown",
    "power brake or thermal slowdown by the hardware, under a job or not",
    (Source.POLL,),
    Sure.LOOKS,
    Action.HOLD,
    "10 min without it",
    "quick",
    remedy=_COOL,
    short="slowed down",
    cause="the hardware slows GPUs down",
)
SLOWDOWN_LASTING: typing.Final = Fault(
    "slowdown-lasting",
    "the same without a break",
    (Source.POLL,),
    Sure.LASTING,
    Action.OUT,
    "10 min without it, and the GPU passes",
    "burn-in",
    remedy=_COOL.replace("it comes back", "it is tested and comes back"),
    short="slowed down",
    cause=SLOWDOWN.cause,
    counted=True,
)
SOFTWARE_SLOWDOWN: typing.Final = Fault(
    "software-slowdown",
    "lower clock by software: power cap, temperature",
    (Source.POLL,),
    Sure.ONCE,
    Action.METRIC,
    "-",
)
XID_WARNING: typing.Final = Fault(
    "xid-warning",
    "Xid after which the GPU works on",
    (Source.EVENT,),
    Sure.ONCE,
    Action.METRIC,
    "-",
)
JOB: typing.Final = Fault(
    "job",
    f"Xid {', '.join(map(str, JOB_XIDS))}: by NVIDIA's word a program's own",
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
    "the test says",
    "compute",
)
KERNEL_ALONE: typing.Final = Fault(
    "kernel-alone",
    "the kernel's log tells of such an Xid, and nothing else does within 20 s",
    (Source.KERNEL,),
    Sure.ONCE,
    Action.TEST,
    "the test says; at most one an hour",
    "quick",
)
DIRTY: typing.Final = Fault(
    "dirty",
    "memory is still taken 2 s after the holder's last process",
    (Source.POLL,),
    Sure.ONCE,
    Action.HOLD,
    "it is free",
    short="dirty",
)
OFTEN: typing.Final = Fault(
    "often",
    "the fifth quarantine in seven days",
    (Source.EVENT, Source.POLL, Source.BUS, Source.COUNTER),
    Sure.HISTORY,
    Action.OPERATOR,
    "the operator brings it back",
    "",
    Need.REPAIR,
    _UNCORDON,
)
BREAKER: typing.Final = Fault(
    "breaker",
    "more than max-quarantined of the GPUs out within 5 min for one cause: the driver or the host",
    OFTEN.sources,
    Sure.HISTORY,
    Action.STOP,
    "that cause is gone; it never hinders a GPU's return",
)
RAS: typing.Final = Fault(
    "ras",
    "AMD: memory error that RAS could not correct",
    (Source.COUNTER, Source.POLL),
    Sure.ONCE,
    Action.OUT,
    "the driver counts none since it was loaded, and the GPU passes",
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
    "AMD and Intel: the driver has reset the GPU, as a program's hung kernel can make it",
    (Source.COUNTER,),
    Sure.ONCE,
    Action.TEST,
    "the test says; at most one an hour",
    "quick",
    words="its driver has reset it",
)
WEDGED: typing.Final = Fault(
    "wedged",
    "Intel: the driver has given the GPU up (wedged)",
    (Source.COUNTER,),
    Sure.ONCE,
    Action.OUT,
    "it passes after a reboot",
    "isolation",
    Need.REBOOT,
    _REBOOT,
    "wedged",
    "its driver has given it up",
    "the driver gives GPUs up",
    counted=True,
)

TABLE: typing.Final = (
    XID, RECOVERY, OFF_BUS, LOST, HANG, ECC, POISON, REMAP_FAILED, REMAP_PENDING, SLOWDOWN,
    SLOWDOWN_LASTING, SOFTWARE_SLOWDOWN, XID_WARNING, JOB, JOB_TWICE, KERNEL_ALONE, DIRTY, OFTEN,
    BREAKER, RAS, DRIVER_RESET, WEDGED,
)  # fmt: skip
"""All of them. In a Message `fault` is the name of one whose sources have the message's."""

BY_NAME: typing.Final = {row.name: row for row in TABLE}

# Xids that say what another row says: they ask for that row's test and remedy.
_LIKE: typing.Final = {
    **dict.fromkeys((48, 95, 140, 171, 172), ECC),
    64: REMAP_FAILED,
    79: OFF_BUS,
}


def of_xid(code: int, severity: Severity) -> Fault:
    """The row of an Xid, whose severity is as gpu_agent.gpu.vendors.nvidia.xid.meaning has it."""
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
    """The row of what the driver asks for, by its number."""
    if action in recovery_action.RESETS:
        return RECOVERY
    remedy = _REBOOT
    if action == recovery_action.COLD_START:
        remedy = f"Power the machine off and on{_AGAIN}"
    return dataclasses.replace(RECOVERY, need=Need.REBOOT, remedy=remedy)
