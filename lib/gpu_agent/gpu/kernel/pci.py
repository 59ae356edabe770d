# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""List GPUs on the PCI bus from /sys, which exist there before any driver is loaded."""

import collections.abc
import dataclasses
import pathlib
import re
import typing

from gpu_agent.gpu.kernel import sysfs as kernel
from gpu_agent.gpu.kernel.maker import Maker
from gpu_agent.model.inventory import Inventory, State

# Its path in Debian's package pci.ids and in other distributions' hwdata.
_NAMES: typing.Final = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids")


@dataclasses.dataclass(frozen=True)
class Device:
    """One GPU on the bus.

    Attributes:
        address: domain, bus, device, function in lower case, such as `0000:01:00.0`.
        driver: name of the kernel driver that is bound to it, such as `nvidia`; or empty.
        product: the PCI device id, such as 0x20b2.
    """

    address: str
    driver: str = ""
    product: int = 0

    @property
    def is_for_guests(self) -> bool:
        """Whether it is reserved for virtual machines.

        Drivers for that are `vfio-pci` and its variants for one vendor (`nvgrace-gpu-vfio-pci`,
        `xe-vfio-pci`), Xen's `pciback`, and AMD's `gim`, which splits cards into virtual
        functions.
        """
        return "vfio" in self.driver or self.driver.endswith("pciback") or self.driver == "gim"


def gpus(root: pathlib.Path, maker: Maker) -> tuple[Device, ...]:
    """Return all GPUs of one vendor in /sys below `root`, sorted by address.

    In a container these are the host's, whether or not they are passed in.
    """
    folder = root / "sys/bus/pci/devices"
    devices = sorted(folder.iterdir()) if folder.is_dir() else []
    return tuple(_device(device) for device in devices if _is_gpu(device, maker))


def _is_gpu(device: pathlib.Path, maker: Maker) -> bool:
    # A virtual function is a part of a card for a guest, not a card.
    if (device / "physfn").exists():
        return False
    of_maker = kernel.number(device / "vendor") == maker.id
    return of_maker and kernel.number(device / "class") >> 8 in maker.classes


def _device(device: pathlib.Path) -> Device:
    driver = device / "driver"
    return Device(
        address=device.name.lower(),
        driver=driver.readlink().name if driver.is_symlink() else "",
        product=kernel.number(device / "device"),
    )


def addresses(devices: collections.abc.Iterable[Device]) -> str:
    """Return the devices' addresses for a text."""
    return ", ".join(device.address for device in devices)


def undriven(devices: collections.abc.Iterable[Device], maker: Maker) -> Inventory:
    """Return why none of these can be used, if no compute driver is bound to any of them."""
    usable = [device for device in devices if not device.is_for_guests]
    nouveau = [device for device in usable if device.driver == "nouveau"]
    for state, those in (
        (State.NOUVEAU, nouveau),
        (State.NO_DRIVER, usable),
        (State.VFIO, list(devices)),
    ):
        if those:
            return Inventory(state, detail=addresses(those), vendor=maker.name)
    return Inventory(State.NO_GPU, vendor=maker.name)


def integrated_only(devices: collections.abc.Iterable[Device], maker: Maker) -> Inventory:
    """The inventory of a machine whose only GPUs are part of a processor and not asked for."""
    return Inventory(
        State.NO_GPU,
        detail=f"{maker.display} {addresses(devices)} is part of the processor: "
        f"gpu-vendor={maker.name} would use it",
        vendor=maker.name,
    )


def model(root: pathlib.Path, device: Device, maker: Maker) -> str:
    """Return a GPU's product name from this machine's pci.ids; empty if it is not listed.

    pci.ids has the chip first: `Navi 31 [Radeon RX 7900 XT/7900 XTX]`.
    """
    for path in _NAMES:
        ids = kernel.text(root / path) + "\n"
        section = re.search(rf"^{maker.id:04x}  .*\n((?:[\t#].*\n)*)", ids, re.MULTILINE)
        entry = rf"^\t{device.product:04x}  (?:.*\[(.+)\]|(.+))$"
        found = section and re.search(entry, section.group(1), re.MULTILINE)
        if found:
            return with_vendor(found.group(1) or found.group(2), maker)
    return ""


def with_vendor(name: str, maker: Maker) -> str:
    """Return a GPU's name with its vendor first, as NVML writes names."""
    has_it = name.lower().startswith(maker.name)
    return name if has_it else f"{maker.display} {name}"
