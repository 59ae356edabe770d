# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Detect the GPUs of this machine, or why it has none; always of one vendor only."""

import functools
import pathlib
import typing

from gpu_agent.gpu.kernel import pci
from gpu_agent.gpu.vendors import registry
from gpu_agent.gpu.vendors.vendor import Vendor
from gpu_agent.model import errors
from gpu_agent.model.inventory import Inventory, State
from machine import isolated_call as apart

# In seconds. A driver without initialised GPUs takes a second or two for each of up to 16.
PATIENCE: typing.Final = 20.0
# Marks a detection that still hangs; gone after a reboot, like the hanging process.
HANGS: typing.Final = pathlib.Path("/run/gpu-ci/driver-hangs")

_ROOT: typing.Final = pathlib.Path("/")
# States in which GPUs are not usable here, so that another vendor's may be.
_NOT_OURS: typing.Final = (State.NO_GPU, State.VFIO, State.NOT_PASSED)


def detect(
    vendor: str = "auto",
    root: pathlib.Path = _ROOT,
    vendors: tuple[Vendor, ...] = registry.ALL,
) -> Inventory:
    """Look for GPUs. Nothing is changed, and having no GPU is a valid result.

    Args:
        vendor: a vendor's name; or `auto` for the first one that has any GPU here, not counting
            GPUs that are part of a processor.
        root: the root of the machine's files; NVML is always this machine's.
        vendors: the vendors to look for.

    Raises:
        OSError: the machine lacks resources, so the result is unknown.
        gpu_agent.model.errors.UnknownError: this revision knows no vendor of that name.
    """
    if vendor != "auto":
        return _named(vendor, vendors).look(root, integrated=True)
    unusable: list[Inventory] = []
    for one in vendors:
        found = one.look(root, integrated=False)
        if found.state not in _NOT_OURS:
            return found
        unusable.append(found)
    unusable.sort(key=lambda found: (found.state is State.NO_GPU, not found.detail))
    return unusable[0]


def cards(root: pathlib.Path = _ROOT) -> tuple[str, ...]:
    """Return PCI addresses of the GPUs that tasks could get here, from /sys.

    They are of the first vendor that has any, as in detect. No driver is queried.

    Raises:
        OSError: /sys can't be read.
    """
    for vendor in registry.ALL:
        found = [gpu for gpu in pci.gpus(root, vendor.maker) if not gpu.is_for_guests]
        if cards := tuple(gpu.address for gpu in found if not vendor.is_integrated(root, gpu)):
            return cards
    return ()


def in_time(
    vendor: str = "auto",
    root: pathlib.Path = _ROOT,
    vendors: tuple[Vendor, ...] = registry.ALL,
    *,
    patience: float = PATIENCE,
    note: pathlib.Path = HANGS,
) -> Inventory:
    """Detect GPUs as `detect` does, and give up if the driver does not answer.

    Args:
        vendor: as for `detect`.
        root: as for `detect`.
        vendors: as for `detect`.
        patience: how long the driver has, in seconds.
        note: file that marks a detection that still hangs.

    Raises:
        OSError: the machine lacks resources, so the result is unknown.
        gpu_agent.model.errors.UnknownError: this revision knows no vendor of that name.
    """
    try:
        raises = (OSError, errors.UnknownError)
        work = functools.partial(detect, vendor, root, vendors)
        return apart.call(work, patience, note=note, raises=raises)
    except apart.HungError as error:
        asked = [_named(vendor, vendors)] if vendor != "auto" else vendors
        there = [one for one in asked if pci.gpus(root, one.maker)]
        return Inventory(State.HUNG, detail=str(error), vendor=[*there, *asked][0].name)


def _named(name: str, vendors: tuple[Vendor, ...]) -> Vendor:
    for vendor in vendors:
        if vendor.name == name:
            return vendor
    known = ", ".join(vendor.name for vendor in vendors)
    raise errors.unknown(
        f"this revision knows no GPUs of {name}: set gpu-vendor to auto or to one of {known}"
    )
