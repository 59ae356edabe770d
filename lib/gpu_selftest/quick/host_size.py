# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whether the machine has the processors and the memory that the operator asks for."""

import os
import pathlib
import re
import typing

from gpu_agent.gpu.kernel import sysfs as kernel
from gpu_selftest.check import Check, Level, Outcome, Result
from gpu_selftest.settings import Settings

CPUS: typing.Final = Check(
    "host-cpus",
    Level.QUICK,
    "the worker has the processors that were asked for",
    source="option min-cpus",
)
MEMORY: typing.Final = Check(
    "host-memory",
    Level.QUICK,
    "the worker has the memory that was asked for",
    source="option min-memory-gib",
    unit="GiB",
)
CHECKS: typing.Final = (CPUS, MEMORY)

_GIB: typing.Final = 1 << 30
# Firmware, the kernel and its page tables keep part of what was sold: of 16 GiB 15.4 to 15.8 are
# told, of 4 GiB 3.7. The next size that is sold is further away.
_SHARE_KEPT: typing.Final = 0.05
_GIB_KEPT: typing.Final = 0.25

# Where a container's own limits are: at the top of what it sees of the control groups, version 2
# or 1. A machine has none there.
_CPU_LIMIT: typing.Final = "sys/fs/cgroup/cpu.max"
_CPU_LIMIT_1: typing.Final = "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "cpu.cfs_period_us"
_MEMORY_LIMITS: typing.Final = (
    "sys/fs/cgroup/memory.max",
    "sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def run(settings: Settings, root: pathlib.Path) -> list[Result]:
    """A result for the processors, and one for the memory.

    Raises:
        OSError: the machine is out of something, so that nothing can be told.
    """
    return [_cpus(settings, root), _memory(settings, root)]


def cpus(root: pathlib.Path) -> float:
    """How many processors programs may use here; of one that is shared the share."""
    quota, period = [*kernel.text(root / _CPU_LIMIT).split(), "", ""][:2]
    if not quota:
        path = root / _CPU_LIMIT_1[0]
        quota, period = kernel.text(path), kernel.text(path.with_name(_CPU_LIMIT_1[1]))
    found = float(len(os.sched_getaffinity(0)))
    if quota.isdecimal() and period.isdecimal() and int(period):
        return min(found, int(quota) / int(period))
    return found


def memory(root: pathlib.Path) -> float:
    """How much memory programs have here, in GiB; 0 if unknown."""
    told = re.search(r"^MemTotal: +([0-9]+) kB$", kernel.text(root / "proc/meminfo"), re.MULTILINE)
    if not told:
        return 0.0
    limits = [kernel.text(root / path) for path in _MEMORY_LIMITS]
    sizes = [int(limit) for limit in limits if limit.isdecimal()]
    return min([int(told.group(1)) << 10, *sizes]) / _GIB


def _cpus(settings: Settings, root: pathlib.Path) -> Result:
    wanted = settings.min_cpus
    if not wanted:
        return CPUS.result(Outcome.SKIPPED, "min-cpus is not set")
    found, threshold = round(cpus(root), 2), f"at least {wanted}"
    text = f"{found:g} CPU{'s' * (found != 1)}"
    if found >= wanted:
        return CPUS.result(Outcome.PASSED, text, value=found, threshold=threshold)
    return CPUS.result(
        Outcome.FAILED,
        f"too few CPUs: {text}, less than min-cpus {wanted}",
        value=found,
        threshold=threshold,
        remedy=_remedy(settings, "CPUs", f"min-cpus={int(found)}", root),
    )


def _memory(settings: Settings, root: pathlib.Path) -> Result:
    wanted = settings.min_memory_gib
    if not wanted:
        return MEMORY.result(Outcome.SKIPPED, "min-memory-gib is not set")
    found, threshold = memory(root), f"at least {wanted}"
    if not found:
        return MEMORY.result(Outcome.PREVENTED, "/proc/meminfo does not tell")
    text, most = f"{found:.1f} GiB", found * (1 + _SHARE_KEPT) + _GIB_KEPT
    if wanted <= most:
        return MEMORY.result(Outcome.PASSED, text, value=round(found, 1), threshold=threshold)
    return MEMORY.result(
        Outcome.FAILED,
        f"too little memory: {text}, less than min-memory-gib {wanted}",
        value=round(found, 1),
        threshold=threshold,
        remedy=_remedy(settings, "memory", f"min-memory-gib={min(round(found), int(most))}", root),
    )


def _remedy(settings: Settings, what: str, lower: str, root: pathlib.Path) -> str:
    limits = "raise the container's limits on its host" if kernel.in_container(root) else ""
    more = limits or f"use a machine with more {what}"
    ask_for_less = f"juju config {settings.application} {lower}"
    return (
        f"{more}, or ask for less by `{ask_for_less}`; then juju run {settings.unit} gpu-selftest"
    )
