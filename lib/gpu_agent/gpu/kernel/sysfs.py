# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read small files of the kernel in /sys, /proc and /dev, for the vendors' modules."""

import pathlib

from machine import exhaustion as scarcity


def beginning(path: pathlib.Path, size: int = -1) -> bytes:
    """The first bytes of a file, by default all; empty if it is missing or its driver refuses.

    The files of a card that falls off the bus disappear, KFD refuses to report a GPU that the
    reader's device cgroup does not contain (Linux kfd_topology.c, node_show), and drivers answer a
    card's faults with any error.

    Raises:
        OSError: the machine lacks resources, so the content is unknown.
    """
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        if scarcity.is_told_by(error):
            raise
        return b""


def text(path: pathlib.Path) -> str:
    """A file's text without white space around it; empty as for `beginning`.

    Raises:
        OSError: the machine lacks resources.
    """
    return beginning(path).decode(errors="replace").strip()


def number(path: pathlib.Path) -> int:
    """A file's number, hexadecimal after `0x`; 0 if there is none."""
    try:
        return int(text(path), 0)
    except ValueError:
        return 0


def in_container(root: pathlib.Path) -> bool:
    """Return whether this is a system container, by the file that systemd writes in one."""
    return (root / "run/systemd/container").exists()


def module_version(root: pathlib.Path, module: str) -> str:
    """Return the version of a loaded kernel module; empty for modules of the kernel itself."""
    return text(root / "sys/module" / module / "version")


def drm_nodes(root: pathlib.Path, address: str) -> dict[str, str]:
    """Return a GPU's DRM nodes by kind, `card` and `render`, such as `card0` and `renderD128`.

    Args:
        root: the root of the machine's files.
        address: the GPU's PCI address.
    """
    names = sorted(path.name for path in (root / f"sys/bus/pci/devices/{address}/drm").glob("*"))
    return {
        kind: name
        for kind, start in (("card", "card"), ("render", "renderD"))
        for name in names
        # A card's folder has its connectors too: card0-DP-1.
        if name.startswith(start) and name[len(start) :].isdecimal()
    }


def dri_path(root: pathlib.Path, address: str, kind: str, name: str) -> str:
    """Return the path of a DRM node, by udev's link if there is one; empty if it is not in /dev.

    The numbers in the nodes' own names follow the order in which drivers start.
    """
    if not (root / "dev/dri" / name).exists():
        return ""
    link = f"dev/dri/by-path/pci-{address}-{kind}"
    if (root / link).is_symlink() and (root / link).readlink().name == name:
        return f"/{link}"
    return f"/dev/dri/{name}"
