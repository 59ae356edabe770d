# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the kernel tells in small files of /sys, /proc and /dev, for the makers' modules."""

import pathlib

from machine import exhaustion as scarcity


def beginning(path: pathlib.Path, size: int = -1) -> bytes:
    """The first bytes of a file, by default all; none where there is none, or its driver refuses.

    A card that falls off the bus takes its files with it, KFD refuses to speak of a GPU that the
    reader's device cgroup does not hold (Linux kfd_topology.c, node_show), and drivers answer a
    card's faults with any error.

    Raises:
        OSError: the machine is out of something, so that nothing can be told.
    """
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        if scarcity.is_told_by(error):
            raise
        return b""


def text(path: pathlib.Path) -> str:
    """What a file says, without white space around it; empty as for `beginning`.

    Raises:
        OSError: nothing can be told.
    """
    return beginning(path).decode(errors="replace").strip()


def number(path: pathlib.Path) -> int:
    """A file's number, hexadecimal after `0x`; 0 where there is none."""
    try:
        return int(text(path), 0)
    except ValueError:
        return 0


def in_container(root: pathlib.Path) -> bool:
    """Whether this is a system container, by the file that systemd writes in one."""
    return (root / "run/systemd/container").exists()


def module_version(root: pathlib.Path, module: str) -> str:
    """Version of a loaded kernel module; empty for those that come with the kernel."""
    return text(root / "sys/module" / module / "version")


def drm_nodes(root: pathlib.Path, address: str) -> dict[str, str]:
    """A GPU's DRM nodes by kind, `card` and `render`, such as `card0` and `renderD128`.

    Args:
        root: where /sys lies.
        address: the GPU's PCI address.
    """
    names = sorted(path.name for path in (root / f"sys/bus/pci/devices/{address}/drm").glob("*"))
    return {
        kind: name
        for kind, start in (("card", "card"), ("render", "renderD"))
        for name in names
        # A card's folder holds its connectors too: card0-DP-1.
        if name.startswith(start) and name[len(start) :].isdecimal()
    }


def dri_path(root: pathlib.Path, address: str, kind: str, name: str) -> str:
    """Absolute path of a DRM node, by udev's link where there is one; empty if it is not in /dev.

    The numbers in the nodes' own names are given out in the order in which drivers start.
    """
    if not (root / "dev/dri" / name).exists():
        return ""
    link = f"dev/dri/by-path/pci-{address}-{kind}"
    if (root / link).is_symlink() and (root / link).readlink().name == name:
        return f"/{link}"
    return f"/dev/dri/{name}"
