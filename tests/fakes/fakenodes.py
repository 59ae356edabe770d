# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Simulated GPUs' nodes in /dev, and the libraries of a driver that came with the machine.

Standard library alone: fakegpu takes this file into its machine.
"""

import grp
import os
import shutil
import stat
import sysconfig
import time
from pathlib import Path

import fakecards

LIBRARIES = Path("/usr/lib") / (sysconfig.get_config_var("MULTIARCH") or "")
# Debian's number of video; render has none, and the machine may have neither.
GROUPS = {"video": 44, "render": 992}


def nvidia_nodes(cards, version: str | None, *, whole: bool) -> dict[str, tuple[int, int]]:
    if version is None:
        return {}
    nodes = {"nvidiactl": (195, 255)}
    if whole:
        nodes |= {"nvidia-uvm": (510, 0), "nvidia-uvm-tools": (510, 1)}
    for minor in (1, 2, *fakecards.mig_minors(cards).values()):
        nodes[f"nvidia-caps/nvidia-cap{minor}"] = (fakecards.CAPS_MAJOR, minor)
    for card in cards:
        if card.driver == "nvidia" and card.on_bus:
            nodes[f"nvidia{card.minor}"] = (195, card.minor)
            nodes |= {f"dri/{name}": (226, minor) for name, minor in fakecards.drm(card)}
    return nodes


def make(cards, version: str | None, *, whole: bool = True):
    """Has these cards' nodes in /dev, and no others of theirs; `whole`: for unified memory too."""
    cards = [card for card in cards if card.fault != "taken-away"]
    nodes = {
        **{
            name: (*at, 0o666, 0) for name, at in nvidia_nodes(cards, version, whole=whole).items()
        },
        **{
            name: (major, minor, 0o660, group_id(group))
            for name, (major, minor, group) in fakecards.dri_nodes(cards).items()
        },
    }
    dev, links = Path("/dev"), fakecards.dri_links(cards)
    wanted = nodes | links
    for pattern in ("nvidia*", "nvidia-caps/*", "kfd", "dri/*", "dri/by-path/*"):
        for path in dev.glob(pattern):
            if not path.is_dir() and str(path.relative_to(dev)) not in wanted:
                path.unlink()
                leave_empty(path)
    for name, (major, minor, mode, group) in nodes.items():
        path, like = dev / name, (os.makedev(major, minor), mode | stat.S_IFCHR, group)
        if path.exists():
            there = path.stat()
            if (there.st_rdev, there.st_mode, there.st_gid) == like:
                continue
            path.unlink()
        path.parent.mkdir(exist_ok=True)
        os.mknod(path, stat.S_IFCHR, os.makedev(major, minor))
        os.chown(path, 0, group)
        path.chmod(mode)
    fakecards.write_links(dev, links)


def leave_empty(path: Path):
    """What LXD leaves of a card's node for some milliseconds: the file that it was mounted on."""
    path.touch()
    time.sleep(0.007)
    path.unlink()


def group_id(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return GROUPS[name]


def install_libraries(source_directory: Path, version: str | None) -> bool:
    """Keeps the driver's libraries in the loader's path, named as a driver package names them.

    Returns whether the loader's cache is to be made anew.
    """
    wanted: dict[str, str] = {}
    for stem in ("libnvidia-ml", "libcuda") if version is not None else ():
        wanted |= {f"{stem}.so.{version}": "", f"{stem}.so.1": f"{stem}.so.{version}"}
    there = {
        path.name: path
        for stem in ("libnvidia-ml", "libcuda")
        for path in LIBRARIES.glob(f"{stem}.so*")
    }
    changed = False
    for name in there.keys() - wanted.keys():
        there[name].unlink()
        changed = True
    for name, target in wanted.items():
        path, source = LIBRARIES / name, source_directory / f"{name.split('.so')[0]}.so.1"
        if path.exists() and path.read_bytes() == source.read_bytes():
            continue
        path.unlink(missing_ok=True)
        if target:
            path.symlink_to(target)
        else:
            shutil.copyfile(source, path)
        changed = True
    return changed
