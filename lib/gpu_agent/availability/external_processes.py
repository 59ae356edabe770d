# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Find GPUs in use outside CI, or whose memory is still taken. Reads only.

Drivers that come with the kernel do not tell who computes: use of such GPUs is not detected.
"""

import collections.abc
import pathlib
import re
import time
import typing

from gpu_agent.availability import residual_memory as dirt
from gpu_agent.gpu.vendors import detect, registry
from gpu_agent.gpu.vendors.vendor import Use, Uses
from gpu_agent.model.inventory import Gpu, Inventory
from gpu_agent.model.leases import Lease
from gpu_runtime.cgroups import is_below
from gpu_runtime.lease_table import names_container
from gpu_runtime.policy import SELF_TEST_CONTAINER
from gpu_runtime.unavailable import EXTERNAL, EXTERNAL_PROCESS, Unavailable
from machine import isolated_call as apart

Leases = collections.abc.Mapping[str, Lease]
"""Containers with a lease."""
Ask = collections.abc.Callable[[], Leases | None]
"""Returns the current leases; None if they can't be read."""
Causes = collections.abc.Mapping[str, Unavailable]
"""UUIDs of GPUs, each with the cause why tasks do not get it."""

# NVIDIA's services on the host that may have a context on a GPU without using it, each with its
# systemd units (NVIDIA's packages and Canonical's snap dcgm).
_SERVICES: typing.Final[collections.abc.Mapping[str, frozenset[str]]] = {
    "nvidia-persistenced": frozenset({"nvidia-persistenced.service"}),
    "nv-hostengine": frozenset({
        "nvidia-dcgm.service", "dcgm.service", "snap.dcgm.nv-hostengine.service",
    }),
    "dcgm-exporter": frozenset({
        "dcgm-exporter.service", "nvidia-dcgm-exporter.service", "snap.dcgm.dcgm-exporter.service",
    }),
}  # fmt: skip
# Tools with which root checks or tests GPUs; any user may start them.
_TOOLS: typing.Final = frozenset({"nvidia-smi", "dcgmi"})
_DISPLAYS: typing.Final = frozenset({
    "X", "Xorg", "Xwayland", "gnome-shell", "kwin_wayland", "kwin_x11", "plasmashell",
})  # fmt: skip
_SESSION: typing.Final = re.compile(r"/user\.slice/user-[0-9]+\.slice/.")
# A user's own service manager, and what it has started.
_PERSONS: typing.Final = re.compile(r"/user@[0-9]+\.service(/|$)")

# Seconds that the driver may take. It answered a moment before, within detect.PATIENCE; a hook
# takes at most the sum of both.
_PATIENCE: typing.Final = 8.0
# Seconds that a killed process may take to free its memory.
_SETTLE_SECONDS: typing.Final = 2
# TASK_COMM_LEN of Linux, without the NUL.
_COMM_LENGTH: typing.Final = 15
# PROC_PID_INIT_INO (Linux include/linux/proc_ns.h): the PID namespace of the machine, not of a
# system container.
_ALL_PROCESSES: typing.Final = "pid:[4026531836]"


def look(
    inventory: Inventory,
    leases: Ask,
    known: collections.abc.Callable[[], Causes],
    root: pathlib.Path = pathlib.Path("/"),
) -> tuple[tuple[str, Unavailable], ...]:
    """The UUIDs of GPUs that are in use outside CI, each with the cause.

    A new finding is checked twice, two seconds apart, since a job may just be ending. If a GPU
    can't be checked now, its earlier finding stays.

    In a system container NVML may list the host's process ids (older drivers), or only the number
    of processes. So a GPU with a lease is not checked there; on any other GPU every unknown
    process counts as external.

    Args:
        inventory: the GPUs of this machine.
        leases: called after the driver, so that every container whose process the driver lists has
            its lease by then.
        known: returns the earlier findings; they need only one check.
        root: the folder with /proc; NVML is always this machine's.

    Raises:
        OSError: the earlier findings can't be read.
    """
    uses = registry.find(inventory.vendor).uses
    if uses is None or not inventory.gpus:
        return ()
    before = known()
    found = _look_once(inventory.gpus, uses, leases, before, root)
    if found.keys() - before.keys():
        time.sleep(_SETTLE_SECONDS)
        again = _look_once(inventory.gpus, uses, leases, before, root)
        found = {uuid: cause for uuid, cause in again.items() if uuid in found}
    return tuple(found.items())


def _look_once(
    gpus: tuple[Gpu, ...], ask: Uses, leases: Ask, known: Causes, root: pathlib.Path
) -> dict[str, Unavailable]:
    uses = _uses(gpus, ask)
    leased = leases()
    if uses is None or leased is None:
        return {**known}
    own = (root / "proc/self/ns/pid").readlink()
    all_processes = str(own) == _ALL_PROCESSES
    # A lost GPU may come back together with the processes that use it.
    causes = {uuid: known[uuid] for uuid in known.keys() - {gpu.uuid for gpu in gpus}}
    for gpu in gpus:
        use = uses.get(gpu.uuid)
        of_gpu = [
            container
            for container, lease in leased.items()
            if lease.occupied and not {gpu.uuid, *gpu.devices}.isdisjoint(lease.devices)
        ]
        # The self-test's processes need not be in the container with its lease.
        tested = any(container.startswith(SELF_TEST_CONTAINER) for container in of_gpu)
        if use is None or tested or (of_gpu and not all_processes):
            if gpu.uuid in known:
                causes[gpu.uuid] = known[gpu.uuid]
            continue
        strangers = [
            text
            for pid in use.computing
            if (text := _stranger(root / "proc" / str(pid), leased, own))
        ]
        if strangers:
            more = f" and {len(strangers) - 1} more" if strangers[1:] else ""
            reason = f"{strangers[0]}{more}"
            causes[gpu.uuid] = Unavailable(EXTERNAL, EXTERNAL_PROCESS, reason)
        elif _is_dirty(use) and not of_gpu:
            causes[gpu.uuid] = dirt.cause(use.used_mib)
    return causes


def _uses(gpus: tuple[Gpu, ...], ask: Uses) -> collections.abc.Mapping[str, Use] | None:
    """The use of each GPU; None if its driver fails, which the next event's detection reports."""
    uuids = [gpu.uuid for gpu in gpus]
    try:
        return apart.call(lambda: ask(uuids), _PATIENCE, note=detect.HANGS)
    except apart.HungError:
        return None


def _is_dirty(use: Use) -> bool:
    taken = dirt.is_taken(use.used_mib, use.total_mib)
    return taken and not use.computing and not use.drawing


def _stranger(process: pathlib.Path, leased: Leases, own: pathlib.Path) -> str:
    """Name a process that is neither a holder's nor harmless; return an empty text for others.

    A process that can't be inspected counts as external, unless it has ended.

    Args:
        process: its folder in /proc.
        leased: containers with a lease.
        own: this program's PID namespace. If it is not the machine's, processes may have no folder
            in /proc.
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

    A user's own service manager can choose names of control groups, and so can root in a
    container. Names of gpu-run commands are public, so these are recognised by their whole path.
    """
    paths = [line.split(":", 2)[2] for line in groups.split("\n") if line.count(":") >= 2]
    if lease.cgroup:
        return any(is_below(path, lease.cgroup) for path in paths)
    parts = [part for path in paths if not _PERSONS.search(path) for part in path.split("/")]
    return any(names_container(part, container) for part in parts)


def _is_harmless(process: pathlib.Path, groups: str, own: pathlib.Path) -> bool:
    """Whether a process is a service or display server of the host that does not block its GPU.

    A name proves nothing: any user can start these programs with a library of their own
    (LD_PRELOAD). So a service counts as harmless in its own systemd unit, and any other program if
    root runs it. A display server counts in a user's session too, so a user who may log in can
    hide a process as one. A process in a container never counts as harmless.

    Raises:
        OSError: the process has ended, or can't be inspected.
    """
    program = process / "exe"
    try:
        # An upgrade removes the file of a running service.
        name = program.readlink().name.removesuffix(" (deleted)")
        if name not in {*_SERVICES, *_TOOLS, *_DISPLAYS}:
            return False
        if (process / "ns/pid").readlink() != own:
            return False
    except PermissionError:  # it has more rights than this program
        return False
    unit = _unit(groups)
    is_at_home = unit.removeprefix("/system.slice/") in _SERVICES.get(name, ()) or (
        name in _DISPLAYS and _SESSION.match(unit) is not None
    )
    # Last, since the program may be on a user's file system (FUSE), which may never answer.
    return (is_at_home or _is_roots(process)) and program.stat().st_uid == 0


def _unit(groups: str) -> str:
    """The control group of a process in systemd's hierarchy, from /proc/PID/cgroup."""
    paths = dict(line.split(":", 2)[1:] for line in groups.split("\n") if line.count(":") >= 2)
    return paths.get("name=systemd", paths.get("", ""))


def _is_roots(process: pathlib.Path) -> bool:
    """Whether root started it, and not another user through a setuid program."""
    ids = re.search(r"^Uid:\t([0-9]+)\t([0-9]+)\t", _text(process / "status"), re.MULTILINE)
    return ids is not None and ids.groups() == ("0", "0")


def _text(path: pathlib.Path) -> str:
    """The text of a file in /proc; the name of a process may have any bytes."""
    return path.read_bytes().decode(errors="replace")
