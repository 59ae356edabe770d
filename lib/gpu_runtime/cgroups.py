# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Control groups, v1 and v2: those of a process, their folders, and the one of a new container.

A process has one group in each hierarchy, and these need not belong to one container. In a user
namespace v1 does not allow moving the process of another user. A process that runc starts in a
container there joins the container's group in v2's hierarchy only (Linux
kernel/cgroup/cgroup-v1.c __cgroup1_procs_write; runc 1.1.5 libcontainer/process_linux.go
setnsProcess.start).
"""

from __future__ import annotations

from gpu_runtime import proc
from gpu_runtime.lease_table import names_container

DEVICES = "devices"
"""The hierarchy that controls devices: v1's of that name or, without it, v2's."""
UNIFIED = ""
"""v2's hierarchy, beside v1's or alone."""


def of(root: str, process: str, files: proc.Files = proc) -> tuple[dict[str, str], bool]:
    """Return the control groups of a process.

    Args:
        root: where /proc lies; for recorded trees.
        process: its folder there, such as `/proc/self`.
        files: reads the kernel's files.

    Returns:
        Their paths by hierarchy: DEVICES, UNIFIED, others by their controllers as the kernel
        lists them; none if the process is gone. And whether DEVICES is v2's.

    Raises:
        OSError: /proc cannot be read.
    """
    found: dict[str, str] = {}
    for line in files.lines(f"{root}{process}/cgroup"):
        _, controllers, path = line.split(":", 2)
        found[DEVICES if DEVICES in controllers.split(",") else controllers] = path
    if DEVICES in found or UNIFIED not in found:
        return found, False
    found[DEVICES] = found[UNIFIED]
    return found, True


def folder(root: str, cgroup: str) -> str:
    """Return the folder of a control group of the hierarchy DEVICES; empty if it is gone."""
    return next(iter(folders(root, {DEVICES: cgroup})), "")


def folders(root: str, cgroups: dict[str, str], files: proc.Files = proc) -> list[str]:
    """Return the folders of control groups that exist, by the mounts (proc(5)).

    Only DEVICES and UNIFIED are searched: a user who may move a process in one of v1's hierarchies
    may do so in all.

    Args:
        root: where /proc and the mounts lie; for recorded trees.
        cgroups: their paths by hierarchy, as `of` has them.
        files: reads the kernel's files.

    Raises:
        OSError: no mount shows one of them.
    """
    v1: list[tuple[str, str]] = []
    v2: list[tuple[str, str]] = []
    for line in files.lines(f"{root}/proc/self/mountinfo"):
        mount, _, source = line.partition(" - ")
        kind, _, options = source.split(" ", 2)
        top, point = mount.split(" ")[3:5]
        if kind == "cgroup" and DEVICES in options.rpartition(" ")[2].split(","):
            v1.append((top.rstrip("/"), root + point))
        elif kind == "cgroup2":
            v2.append((top.rstrip("/"), root + point))
    found: list[str] = []
    for hierarchy, mounts in ((DEVICES, v1 or v2), (UNIFIED, v2)):
        path = _shown(mounts, cgroups[hierarchy], files) if hierarchy in cgroups else ""
        if path and path not in found and files.exists(path):
            found.append(path)
    return found


def _shown(mounts: list[tuple[str, str]], cgroup: str, files: proc.Files) -> str:
    for top, point in mounts:
        # Some show another part of the tree, and one can be hidden by a later mount.
        if is_below(cgroup, top) and files.exists(f"{point}/cgroup.procs"):
            return point + cgroup[len(top) :]
    raise OSError(f"no mount shows the control group {cgroup}")


def is_below(path: str, cgroup: str) -> bool:
    """Whether a control group is this one or below it."""
    return path == cgroup or path.startswith(f"{cgroup}/")


def of_container(path: str, container: str) -> str:
    """Return the part of a process's path that is a container's group; empty if there is none.

    The process may have moved to a group below, with a name that it chose. The topmost group with
    the container's name is the container's.
    """
    place = path.find("/", 1)
    while place > 0:
        if names_container(path[:place], container):
            return path[:place]
        place = path.find("/", place + 1)
    return path if names_container(path, container) else ""


def scope(container: str, path: str) -> str:
    """Return the control group that systemd makes for a container; empty if it is not known.

    Args:
        container: its id.
        path: `slice:prefix:id`, as runc's systemd driver takes it (runc 1.1.5
            libcontainer/cgroups/systemd/common.go). A slice `a-b.slice` lies in `a.slice`.
    """
    parent, prefix, name = path.split(":") if path.count(":") == 2 else ("", "", "")
    if name != container or "/" in parent:
        return ""
    words = (parent or "system.slice").removesuffix(".slice").split("-")
    places = range(1, len(words) + 1) if parent != "-.slice" else ()
    slices = "".join(f"/{'-'.join(words[:place])}.slice" for place in places)
    group = f"{slices}/{prefix}-{name}.scope" if prefix else f"{slices}/{name}.scope"
    return group if names_container(group, container) else ""
