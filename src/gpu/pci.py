# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""NVIDIA GPUs on the PCI bus, as the kernel lists them in /sys: there before any driver is."""

import dataclasses
import pathlib
import re

# Vendor NVIDIA; class 03 is a display controller, of which 00 is VGA and 02 is 3D (pci.ids).
# Audio functions, USB ports, NVSwitches and Mellanox NICs have other classes.
_VENDOR = 0x10DE
_CLASSES = (0x0300, 0x0302)


@dataclasses.dataclass(frozen=True)
class Device:
    """One GPU on the bus.

    Attributes:
        address: domain, bus, device, function in lower case, such as `0000:01:00.0`.
        driver: name of the kernel driver that is bound to it, such as `nvidia`; or empty.
        minor: N of its node `/dev/nvidiaN`; None where NVIDIA's driver does not have it.
    """

    address: str
    driver: str = ""
    minor: int | None = None

    @property
    def is_for_guests(self) -> bool:
        """Whether it was set aside for virtual machines.

        Drivers for that are `vfio-pci` and its kin for one vendor (`nvgrace-gpu-vfio-pci`), and
        Xen's `pciback`.
        """
        return "vfio" in self.driver or self.driver.endswith("pciback")


def nvidia_gpus(root: pathlib.Path) -> tuple[Device, ...]:
    """All NVIDIA GPUs that /sys below `root` shows, in the order of their addresses.

    In a container these are the host's, whether they were passed in or not.
    """
    folder = root / "sys/bus/pci/devices"
    devices = sorted(folder.iterdir()) if folder.is_dir() else []
    return tuple(_device(root, device) for device in devices if _is_gpu(device))


def _is_gpu(device: pathlib.Path) -> bool:
    # A virtual function is a slice of a card, for guests, and no card of its own.
    if (device / "physfn").exists():
        return False
    return _number(device / "vendor") == _VENDOR and _number(device / "class") >> 8 in _CLASSES


def _device(root: pathlib.Path, device: pathlib.Path) -> Device:
    driver = device / "driver"
    minor = re.search(
        r"^Device Minor:\s*([0-9]+)",
        _text(root / "proc/driver/nvidia/gpus" / device.name / "information"),
        re.MULTILINE,
    )
    return Device(
        address=device.name.lower(),
        driver=driver.readlink().name if driver.is_symlink() else "",
        minor=int(minor.group(1)) if minor else None,
    )


def _number(path: pathlib.Path) -> int:
    text = _text(path).strip()
    return int(text, 16) if text else 0


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:  # a card that falls off the bus takes its files with it
        return ""
