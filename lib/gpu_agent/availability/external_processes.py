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

from gpu_agent.availability import residual_memory as dirt
from gpu_agent.gpu.vendors import detect
from gpu_agent.gpu.vendors.nvidia import nvml
from gpu_agent.model.inventory import Gpu, Inventory, Vendor
from gpu_agent.model.leases import Lease
from gpu_runtime.cgroups import is_below
from gpu_runtime.lease_table import names_container
from gpu_runtime.policy import SELF_TEST_CONTAINER
from machine import isolated_call as apart

Leases = collections.abc.Mapping[str, Lease]
"""Containers with a lease."""
Ask = collections.abc.Callable[[], Leases | None]
"""Asks who has a lease now; None where that can't be told."""
Reasons = collections.abc.Mapping[str, str]
"""UUIDs of GPUs, each with the reason why no task should get it."""

# NVIDIA's services of the host that may have a context on a GPU and leave it to others, each with
# the units that it comes in (NVIDIA's packages and Canonical's snap dcgm).
_SERVICES: typing.Final[collections.abc.Mapping[str, frozenset[str]]] = {
    "nvidia-persistenced": frozenset({"nvidia-persistenced.service"}),
    "nv-hostengine": frozenset({
        "nvidia-dcgm.service", "dcgm.service", "snap.dcgm.nv-hostengine.service",
    }),
    "dcgm-exporter": frozenset({
        "dcgm-exporter.service", "nvidia-dcgm-exporter.service", "snap.dcgm.dcgm-exporter.service",
    }),
}  # fmt: skip
# What root looks at GPUs with, or tests them; anybody may start these.
_TOOLS: typing.Final = frozenset({"nvidia-smi", "dcgmi"})
_DISPLAYS: typing.Final = frozenset({
    "X", "Xorg", "Xwayland", "gnome-shell", "kwin_wayland", "kwin_x11", "plasmashell",
})  # fmt: skip
_SESSION: typing.Final = re.compile(r"/user\.slice/user-[0-9]+\.slice/.")
# A person's own service manager, and what it has started.
_PERSONS: typing.Final = re.compile(r"/user@[0-9]+\.service(/|$)")

# How long the driver may take, in seconds. It has answered a moment before, within
# detect.PATIENCE: a hook takes no longer than both.
_PATIENCE: typing.Final = 8.0
# How long a process that was killed may take to give its memory back.
_SETTLE_SECONDS: typing.Final = 2
# TASK_COMM_LEN of Linux, without the NUL.
_COMM_LENGTH: typing.Final = 15
# PROC_PID_INIT_INO (Linux include/linux/proc_ns.h): the machine's own process ids, not those of a
# system container.
_ALL_PROCESSES: typing.Final = "pid:[4026531836]"


def look(
    inventory: Inventory,
    leases: Ask,
    known: collections.abc.Callable[[], Reasons],
    root: pathlib.Path = pathlib.Path("/"),
) -> tuple[tuple[str, str], ...]:
    """The UUIDs of GPUs that no task should get, each with the reason.

    What is new is looked at twice, two seconds apart, for it may be a job that is just ending. Of
    a GPU of which nothing can be told now, what is known stays.

    In a system container NVML may tell the host's process ids (older drivers), or only that there
    are processes. So a GPU for which there is a lease is not looked at there; on another one every
    process that can't be told is a stranger.

    Args:
        inventory: which GPUs are here.
        leases: is called after NVML, so that every container whose process NVML lists has its
            lease by then.
        known: tells what was found before; for those one look is enough.
        root: where /proc lies; NVML is always this machine's.

    Raises:
        OSError: what was found before can't be told.
    """
    if inventory.vendor is not Vendor.NVIDIA or not inventory.gpus:
        return ()
    before = known()
    found = _look_once(inventory.gpus, leases, before, root)
    if found.keys() - before.keys():
        time.sleep(_SETTLE_SECONDS)
        again = _look_once(inventory.gpus, leases, before, root)
        found = {uuid: reason for uuid, reason in again.items() if uuid in found}
    return tuple(found.items())


def _look_once(
    gpus: tuple[Gpu, ...], leases: Ask, known: Reasons, root: pathlib.Path
) -> dict[str, str]:
    uses = _uses(gpus)
    leased = leases()
    if uses is None or leased is None:
        return {**known}
    own = (root / "proc/self/ns/pid").readlink()
    all_processes = str(own) == _ALL_PROCESSES
    # One that is lost may come back, and whoever used it with it.
    reasons = {uuid: known[uuid] for uuid in known.keys() - {gpu.uuid for gpu in gpus}}
    for gpu in gpus:
        use = uses.get(gpu.uuid)
        of_gpu = [
            container
            for container, lease in leased.items()
            if lease.occupied and not {gpu.uuid, *gpu.devices}.isdisjoint(lease.devices)
        ]
        # The self-test's processes need not be in the container that has its lease.
        tested = any(container.startswith(SELF_TEST_CONTAINER) for container in of_gpu)
        if use is None or tested or (of_gpu and not all_processes):
            if gpu.uuid in known:
                reasons[gpu.uuid] = known[gpu.uuid]
            continue
        strangers = [
            text
            for pid in use.computing
            if (text := _stranger(root / "proc" / str(pid), leased, own))
        ]
        if strangers:
            more = f" and {len(strangers) - 1} more" if strangers[1:] else ""
            reasons[gpu.uuid] = f"in use outside CI: {strangers[0]}{more}"
        elif _is_dirty(use) and not of_gpu:
            reasons[gpu.uuid] = dirt.reason(use.used_mib)
    return reasons


def _uses(gpus: tuple[Gpu, ...]) -> dict[str, nvml.Use] | None:
    """Who uses the GPUs; None where that can't be told: the next event's detection says why."""

    def ask() -> dict[str, nvml.Use] | None:
        try:
            return nvml.uses(gpu.uuid for gpu in gpus)
        except nvml.NvmlError:
            return None

    try:
        return apart.call(ask, _PATIENCE, note=detect.HANGS)
    except apart.HungError:
        return None


def _is_dirty(use: nvml.Use) -> bool:
    taken = dirt.is_taken(use.used_mib, use.total_mib)
    return taken and not use.computing and not use.drawing


def _stranger(process: pathlib.Path, leased: Leases, own: pathlib.Path) -> str:
    """What to call a process that is neither a holder's nor harmless; empty for those.

    One that can't be looked at, for another reason than its end, is a stranger.

    Args:
        process: its folder in /proc.
        leased: containers with a lease.
        own: this program's PID namespace. Where that is not the machine's, there may be processes
            that have no such folder.
    """
    try:
        groups = _text(process / "cgroup")
        name = _text(process / "comm").removesuffix("\n")
        if any(_is_in(groups, container, lease) for container, lease in leased.items()):
            return ""
        if _is_harmless(process, groups, own):
            return ""
    except (FileNotFoundError, ProcessLookupError):
        hidden = str(own) != _ALL_PROCESSES
        return f"pid {process.name} (not of this machine)" if hidden else ""
    except OSError as error:
        return f"pid {process.name} (unknown: {error.strerror})"
    shown = "".join(letter if letter.isprintable() else "?" for letter in name)
    return f"pid {process.name} ({shown[:_COMM_LENGTH]})"


def _is_in(groups: str, container: str, lease: Lease) -> bool:
    """Whether a process with these control groups is a holder's.

    A person's own service manager names control groups as that person likes, and so may root in a
    container. The names of jobs are no secret, so a job is known by its whole path.
    """
    paths = [line.split(":", 2)[2] for line in groups.split("\n") if line.count(":") >= 2]
    if lease.cgroup:
        return any(is_below(path, lease.cgroup) for path in paths)
    parts = [part for path in paths if not _PERSONS.search(path) for part in path.split("/")]
    return any(names_container(part, container) for part in parts)


def _is_harmless(process: pathlib.Path, groups: str, own: pathlib.Path) -> bool:
    """Whether it is a service or display server of the host, which leaves its GPU to others.

    A name is no evidence: anybody can start these with a library of their own (LD_PRELOAD). So a
    service counts in its own systemd unit, anything else where it is root's, who may do as he
    likes. A display server counts in a user's session too: whoever may log in to this machine can
    hide from this look behind one. Nothing in a container counts.

    Raises:
        OSError: it has ended, or can't be looked at.
    """
    program = process / "exe"
    try:
        # An upgrade takes the file away under a service that runs on.
        name = program.readlink().name.removesuffix(" (deleted)")
        if name not in {*_SERVICES, *_TOOLS, *_DISPLAYS}:
            return False
        if (process / "ns/pid").readlink() != own:
            return False
    except PermissionError:  # one with more rights than this program has
        return False
    unit = _unit(groups)
    is_at_home = unit.removeprefix("/system.slice/") in _SERVICES.get(name, ()) or (
        name in _DISPLAYS and _SESSION.match(unit) is not None
    )
    # Last, as the program may lie on somebody's own file system (FUSE), which may never answer.
    return (is_at_home or _is_roots(process)) and program.stat().st_uid == 0


def _unit(groups: str) -> str:
    """The control group that systemd has a process in, as /proc/PID/cgroup tells it."""
    paths = dict(line.split(":", 2)[1:] for line in groups.split("\n") if line.count(":") >= 2)
    return paths.get("name=systemd", paths.get("", ""))


def _is_roots(process: pathlib.Path) -> bool:
    """Whether root runs it, and not somebody else through a program that makes him root."""
    ids = re.search(r"^Uid:\t([0-9]+)\t([0-9]+)\t", _text(process / "status"), re.MULTILINE)
    return ids is not None and ids.groups() == ("0", "0")


def _text(path: pathlib.Path) -> str:
    """What a file of /proc says; a process may have any bytes for its name."""
    return path.read_bytes().decode(errors="replace")
