# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Control groups by their paths: a process's own, one to come, and where one lies; v1 and v2.

The group that counts is the one that decides on devices: v1's of that name, or v2's only one.
"""

from __future__ import annotations

from gpuci import proc
from gpuci.table import names_container


def of(root: str, process: str) -> tuple[str, bool]:
    """The control group of a process.

    Args:
        root: where /proc lies; for recorded trees.
        process: its folder there, such as `/proc/self`.

    Returns:
        Its path, empty if the process is gone; and whether it is v2's.

    Raises:
        OSError: that can't be told.
    """
    found = ""
    for line in proc.read(f"{root}{process}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if "devices" in controllers.split(","):
            return path, False
        if not controllers:
            found = path
    return found, True


def folder(root: str, cgroup: str) -> str:
    """Where the control group lies among the mounts (proc(5)); empty if it is gone.

    Args:
        root: where /proc and the mounts lie; for recorded trees.
        cgroup: its path.

    Raises:
        OSError: no mount shows it.
    """
    v1: list[tuple[str, str]] = []
    v2: list[tuple[str, str]] = []
    for line in proc.read(f"{root}/proc/self/mountinfo").splitlines():
        mount, _, source = line.partition(" - ")
        kind, _, options = source.split(" ", 2)
        top, point = mount.split(" ")[3:5]
        if kind == "cgroup" and "devices" in options.rpartition(" ")[2].split(","):
            v1.append((top.rstrip("/"), root + point))
        elif kind == "cgroup2":
            v2.append((top.rstrip("/"), root + point))
    for top, point in v1 or v2:
        # Some show another part of the tree, and one can be hidden by a later mount.
        if is_below(cgroup, top) and proc.exists(f"{point}/cgroup.procs"):
            found = point + cgroup[len(top) :]
            return found if proc.exists(found) else ""
    raise OSError(f"no mount shows the control group {cgroup}")


def is_below(path: str, cgroup: str) -> bool:
    """Whether a control group is this one or below it."""
    return path == cgroup or path.startswith(f"{cgroup}/")


def scope(container: str, path: str) -> str:
    """The control group that systemd makes for a container; empty if that can't be told.

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
