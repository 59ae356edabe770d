# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Loads and unloads NVIDIA's kernel modules, where the driver comes as a package.

What lies below /lib/modules then says whether there is a module and of which version; the real
modprobe finds it, and a line of the package's in modprobe.d has it call fakegpu for the silicon's
part. Standard library alone: fakegpu takes this file into its machine.
"""

import os
import re
from pathlib import Path

import fakecards

KMOD = Path("/lib/modules")
# What udev loads for a card as it finds it (71-nvidia.rules of nvidia-kernel-common).
AT_BOOT = ("nvidia", "nvidia_uvm")


class ModuleError(Exception):
    """A module can't be loaded or unloaded; worded as modprobe's own."""


def begin(state: Path):
    """No module is loaded, and the machine's driver comes as a package from now on."""
    fakecards.put(state / "modules", "")
    fakecards.put(state / "driver", "gone")


def are_packaged(state: Path) -> bool:
    return (state / "modules").exists()


def loaded(state: Path) -> list[str]:
    return fakecards.get(state, "modules").split()


def version_on_disk(release: str, kmod: Path = KMOD) -> str:
    """Version of the nvidia.ko that depmod has found for this kernel; empty if there is none."""
    index = kmod / release / "modules.dep"
    lines = index.read_text().splitlines() if index.exists() else []
    for line in lines:
        name = line.partition(":")[0]
        if name.rpartition("/")[2] == "nvidia.ko":
            found = re.search(rb"\0?version=([0-9.]+)\0", (kmod / release / name).read_bytes())
            return found[1].decode() if found else ""
    return ""


def load(state: Path, name: str):
    """Loads a module and the one that it needs; nothing where it is loaded.

    Raises:
        ModuleError: this kernel has no such module.
    """
    there, release = loaded(state), os.uname().release
    version = version_on_disk(release)
    if not version:
        raise ModuleError(f"Module {name} not found in directory {KMOD}/{release}")
    if name in there:
        return
    if needed := fakecards.MODULES[name]:
        load(state, needed)
    else:
        fakecards.put(state / "driver-version", version)
        fakecards.put(state / "driver", "loaded")
    fakecards.put(state / "modules", "\n".join([*loaded(state), name]))


def unload(state: Path, name: str):
    """Unloads a module; nothing where it is not loaded.

    Raises:
        ModuleError: another one or a process uses it.
    """
    there = loaded(state)
    if name not in there:
        return
    if counts(state)[name]:
        raise ModuleError(f"Module {name} is in use.")
    fakecards.put(state / "modules", "\n".join(other for other in there if other != name))
    if name == "nvidia":
        fakecards.put(state / "driver", "gone")


def counts(state: Path) -> dict[str, int]:
    """Of each loaded module: how many others, and processes on the cards, use it."""
    there = loaded(state)
    users = {name: sum(fakecards.MODULES[other] == name for other in there) for name in there}
    if "nvidia" in users:
        for card in state.glob("gpus/*"):
            for kind in ("processes", "graphics-processes"):
                users["nvidia"] += len(fakecards.get(card, kind).splitlines())
    return users
