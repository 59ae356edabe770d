# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read files about NVIDIA's driver besides its modules: libraries, firmware, PCI.

Each function raises OSError if a file exists but can't be read.
"""

import pathlib
import re
import typing

from gpu_agent.gpu.vendors.nvidia import kernel_modules

# LXD's list of the folders into which it has bound the host's libraries (canonical/lxd
# lxd/device/gpu_cdi.go).
_BOUND: typing.Final = "etc/ld.so.conf.d/00-lxdcdi.conf"
# Attributes, then the value (Linux Documentation/filesystems/efivarfs.rst, UEFI 2.10, 3.3).
_SECURE_BOOT: typing.Final = (
    "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
)
# pci.ids: NVIDIA, and a bridge of a kind that PCI does not define.
_NVIDIA, _OTHER_BRIDGE = 0x10DE, 0x0680
_LIBRARY: typing.Final = re.compile(r"libnvidia-ml\.so\.([0-9]+(?:\.[0-9]+)+)")


def library(root: pathlib.Path) -> str:
    """Return the version in the name of the library that programs load as libnvidia-ml.so.1."""
    for link in sorted((root / "usr/lib").glob("*-linux-gnu/libnvidia-ml.so.1")):
        if not link.exists():
            continue
        names = [link.resolve().name, *sorted(path.name for path in link.parent.iterdir())]
        found = [match for match in map(_LIBRARY.fullmatch, names) if match]
        if found:
            return found[0].group(1)
    return ""


def is_bound(root: pathlib.Path) -> bool:
    """Return whether LXD has bound the host's libraries into this container."""
    if (root / _BOUND).exists():
        return True
    mounts = kernel_modules.text(root / "proc/self/mountinfo")
    return any(
        _LIBRARY.fullmatch(pathlib.PurePath(fields[4]).name)
        for fields in map(str.split, mounts.splitlines())
        if len(fields) > 4
    )


def is_secure_boot(root: pathlib.Path) -> bool:
    """Return whether the firmware lets the kernel load only signed modules."""
    try:
        return (root / _SECURE_BOOT).read_bytes()[4:5] == b"\1"
    except (FileNotFoundError, NotADirectoryError):
        return False


def has_nvswitch(root: pathlib.Path) -> bool:
    """Return whether NVSwitches, which a fabric manager sets up, are on the PCI bus."""
    for device in (root / "sys/bus/pci/devices").glob("*"):
        vendor, kind = (kernel_modules.text(device / name) for name in ("vendor", "class"))
        if vendor and int(vendor, 0) == _NVIDIA and int(kind or "0", 0) >> 8 == _OTHER_BRIDGE:
            return True
    return False
