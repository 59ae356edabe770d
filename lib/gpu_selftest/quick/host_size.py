# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check that the machine has the minimum of processors and memory."""

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
    "the worker has the minimum number of processors",
    source="option minimums (cpus)",
)
MEMORY: typing.Final = Check(
    "host-memory",
    Level.QUICK,
    "the worker has the minimum memory",
    source="option minimums (memory)",
    unit="GiB",
)
CHECKS: typing.Final = (CPUS, MEMORY)

_GIB: typing.Final = 1 << 30
# Firmware, the kernel and its page tables use part of the nominal memory: of 16 GiB 15.4 to 15.8
# remain, of 4 GiB 3.7. The next nominal size is further away.
_SHARE_KEPT: typing.Final = 0.05
_GIB_KEPT: typing.Final = 0.25

# A container's own limits, at the root of its view of the control groups, version 2 or 1. A
# machine has no such limits.
_CPU_LIMIT: typing.Final = "sys/fs/cgroup/cpu.max"
_CPU_LIMIT_1: typing.Final = "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "cpu.cfs_period_us"
_MEMORY_LIMITS: typing.Final = (
    "sys/fs/cgroup/memory.max",
    "sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def run(settings: Settings, root: pathlib.Path) -> list[Result]:
    """Return a result for the processors and one for the memory.

    Raises:
        OSError: a file can't be read because the machine is out of some resource.
    """
    return [_cpus(settings, root), _memory(settings, root)]


def cpus(root: pathlib.Path) -> float:
    """Return how many processors programs may use here; a CPU quota counts as a fraction."""
    quota, period = [*kernel.text(root / _CPU_LIMIT).split(), "", ""][:2]
    if not quota:
        path = root / _CPU_LIMIT_1[0]
        quota, period = kernel.text(path), kernel.text(path.with_name(_CPU_LIMIT_1[1]))
    found = float(len(os.sched_getaffinity(0)))
    if quota.isdecimal() and period.isdecimal() and int(period):
        return min(found, int(quota) / int(period))
    return found


def memory(root: pathlib.Path) -> float:
    """Return how much memory programs have here, in GiB; 0 if unknown."""
    told = re.search(r"^MemTotal: +([0-9]+) kB$", kernel.text(root / "proc/meminfo"), re.MULTILINE)
    if not told:
        return 0.0
    limits = [kernel.text(root / path) for path in _MEMORY_LIMITS]
    sizes = [int(limit) for limit in limits if limit.isdecimal()]
    return min([int(told.group(1)) << 10, *sizes]) / _GIB


def _cpus(settings: Settings, root: pathlib.Path) -> Result:
    wanted = settings.min_cpus
    if not wanted:
        return CPUS.result(Outcome.SKIPPED, "minimums has no cpus")
    found, threshold = round(cpus(root), 2), f"at least {wanted}"
    text = f"{found:g} CPU{'s' * (found != 1)}"
    if found >= wanted:
        return CPUS.result(Outcome.PASSED, text, value=found, threshold=threshold)
    return CPUS.result(
        Outcome.FAILED,
        f"too few CPUs: {text}, less than the minimum, {wanted}",
        value=found,
        threshold=threshold,
        remedy=_remedy(settings, "CPUs", settings.minimums("cpus", str(int(found) or "")), root),
    )


def _memory(settings: Settings, root: pathlib.Path) -> Result:
    wanted = settings.min_memory_gib
    if not wanted:
        return MEMORY.result(Outcome.SKIPPED, "minimums has no memory")
    found, threshold = memory(root), f"at least {wanted}"
    if not found:
        return MEMORY.result(Outcome.NOT_RUN, "/proc/meminfo has no MemTotal")
    text, most = f"{found:.1f} GiB", found * (1 + _SHARE_KEPT) + _GIB_KEPT
    if wanted <= most:
        return MEMORY.result(Outcome.PASSED, text, value=round(found, 1), threshold=threshold)
    lower = min(round(found), int(most))
    minimums = settings.minimums("memory", f"{lower}GiB" if lower else "")
    return MEMORY.result(
        Outcome.FAILED,
        f"too little memory: {text}, less than the minimum, {wanted} GiB",
        value=round(found, 1),
        threshold=threshold,
        remedy=_remedy(settings, "memory", minimums, root),
    )


def _remedy(settings: Settings, what: str, minimums: str, root: pathlib.Path) -> str:
    limits = "raise the container's limits on its host" if kernel.in_container(root) else ""
    more = limits or f"use a machine with more {what}"
    lower = f"juju config {settings.application} {minimums}"
    return f"{more}, or lower the minimum by `{lower}`; then juju run {settings.unit} gpu-selftest"
