# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""GPUs that somebody outside CI uses, or whose memory stays taken: reads, never changes anything.

NVIDIA only: NVML lists who computes. Foreign use of AMD's and Intel's GPUs is not looked for.
"""

import collections.abc
import pathlib
import re
import time
import typing

from found import Lease
from gpu import nvml
from gpu.inventory import Gpu, Inventory, Vendor
from gpuci.policy import SELF_TEST_CONTAINER

Leases = collections.abc.Mapping[str, Lease]
"""Containers with a lease."""
Ask = collections.abc.Callable[[], Leases | None]
"""Asks who has a lease now; None where that can't be told."""

# Services of the host that may have a context on a GPU and leave it to others: NVIDIA's own
# (persistence, DCGM and its exporter) and display servers. They count as such only where their
# program belongs to root, so that no job or user can take the name.
HARMLESS: typing.Final = frozenset({
    "nvidia-persistenced", "nv-hostengine", "dcgmi", "dcgm-exporter", "nvidia-smi",
    "X", "Xorg", "Xwayland", "gnome-shell", "kwin_wayland", "kwin_x11", "plasmashell",
})  # fmt: skip

# An idle GPU has less allocated beyond the driver's reserve: some MiB, with MIG devices some tens
# of MiB each. Both must be exceeded, as the second grows with the card.
DIRTY_MIB: typing.Final = 1024
DIRTY_SHARE: typing.Final = 0.02

# How long a process that was killed may take to give its memory back.
_SETTLE_SECONDS: typing.Final = 2
# PROC_PID_INIT_INO (Linux include/linux/proc_ns.h): the machine's own process ids, not those of a
# system container.
_ALL_PROCESSES: typing.Final = "pid:[4026531836]"


def look(
    inventory: Inventory,
    leases: Ask,
    known: collections.abc.Collection[str] = (),
    root: pathlib.Path = pathlib.Path("/"),
) -> tuple[tuple[str, str], ...]:
    """The UUIDs of GPUs that no task should get, each with the reason.

    What is new is looked at twice, two seconds apart, for it may be a job that is just ending.

    In a system container NVML may tell the host's process ids (older drivers), or only that there
    are processes. So a GPU for which there is a lease is not looked at there; on another one every
    process that can't be told is a stranger.

    Args:
        inventory: which GPUs are here.
        leases: is called after NVML, so that every container whose process NVML lists has its
            lease by then.
        known: UUIDs for which one look is enough, since they were found before.
        root: where /proc lies; NVML is always this machine's.
    """
    if inventory.vendor is not Vendor.NVIDIA or not inventory.gpus:
        return ()
    found = _look_once(inventory.gpus, leases, root)
    if found.keys() - known:
        time.sleep(_SETTLE_SECONDS)
        again = _look_once(inventory.gpus, leases, root)
        found = {uuid: reason for uuid, reason in again.items() if uuid in found}
    return tuple(found.items())


def _look_once(gpus: tuple[Gpu, ...], leases: Ask, root: pathlib.Path) -> dict[str, str]:
    try:
        uses = nvml.uses(gpu.uuid for gpu in gpus)
    except nvml.NvmlError:  # it answered a moment ago; the next event's detection says why
        return {}
    leased = leases()
    if leased is None:
        return {}
    all_processes = str((root / "proc/self/ns/pid").readlink()) == _ALL_PROCESSES
    reasons: dict[str, str] = {}
    for gpu in gpus:
        use = uses.get(gpu.uuid, nvml.Use())
        of_gpu = [
            container
            for container, lease in leased.items()
            if lease.occupied and not {gpu.uuid, *gpu.devices}.isdisjoint(lease.devices)
        ]
        # The self-test's processes need not be in the container that has its lease.
        tested = any(container.startswith(SELF_TEST_CONTAINER) for container in of_gpu)
        if tested or (of_gpu and not all_processes):
            continue
        strangers = [
            text
            for pid in use.computing
            if (text := _stranger(root / "proc" / str(pid), leased, hidden=not all_processes))
        ]
        if strangers:
            more = f" and {len(strangers) - 1} more" if strangers[1:] else ""
            reasons[gpu.uuid] = f"in use outside CI: {strangers[0]}{more}"
        elif _is_dirty(use) and not of_gpu:
            reasons[gpu.uuid] = f"dirty: {use.used_mib / 1024:.1f} GiB taken without a process"
    return reasons


def _is_dirty(use: nvml.Use) -> bool:
    limit = max(DIRTY_MIB, use.total_mib * DIRTY_SHARE)
    return use.used_mib > limit and not use.computing and not use.drawing


def _stranger(process: pathlib.Path, leased: Leases, *, hidden: bool) -> str:
    """What to call a process that is neither a holder's nor harmless; empty for those.

    Args:
        process: its folder in /proc.
        leased: containers with a lease.
        hidden: whether there may be processes that have no such folder.
    """
    try:
        groups = (process / "cgroup").read_text()
        name = (process / "comm").read_text().strip()
    except OSError:
        return f"pid {process.name} (not of this machine)" if hidden else ""
    parts = re.split(r"[/\n]", groups)
    if any(container in part for part in parts for container in leased) or _is_harmless(process):
        return ""
    shown = "".join(letter if letter.isprintable() else "?" for letter in name)
    return f"pid {process.name} ({shown})"


def _is_harmless(process: pathlib.Path) -> bool:
    program = process / "exe"
    try:
        # An upgrade takes the file away under a service that runs on.
        name = program.readlink().name.removesuffix(" (deleted)")
        return name in HARMLESS and program.stat().st_uid == 0
    except OSError:
        return False
