# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Detect the GPUs of this machine, or why it has none; always of one vendor only."""

import pathlib
import typing

from gpu_agent.gpu.kernel import pci
from gpu_agent.gpu.vendors.amd import inventory as amd
from gpu_agent.gpu.vendors.intel import inventory as intel
from gpu_agent.gpu.vendors.nvidia import inventory as nvidia
from gpu_agent.model.inventory import Inventory, State, Vendor
from machine import isolated_call as apart

# In seconds. A driver without initialised GPUs takes a second or two for each of up to 16.
PATIENCE: typing.Final = 20.0
# Marks a detection that still hangs; gone after a reboot, like the hanging process.
HANGS: typing.Final = pathlib.Path("/run/gpu-ci/driver-hangs")

_ROOT: typing.Final = pathlib.Path("/")
# States in which GPUs are not usable here, so that another vendor's may be.
_NOT_OURS: typing.Final = (State.NO_GPU, State.VFIO, State.NOT_PASSED)


def detect(vendor: str = "auto", root: pathlib.Path = _ROOT) -> Inventory:
    """Look for GPUs. Nothing is changed, and having no GPU is a valid result.

    Args:
        vendor: a Vendor's value; or `auto` for the first of NVIDIA, AMD and Intel that has any GPU
            here, not counting GPUs that are part of a processor.
        root: the root of the machine's files; NVML is always this machine's.

    Raises:
        OSError: the machine lacks resources, so the result is unknown.
    """
    if vendor != "auto":
        return _look(Vendor(vendor), root, integrated=True)
    unusable: list[Inventory] = []
    for maker in Vendor:
        found = _look(maker, root, integrated=False)
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
    for maker in Vendor:
        found = [gpu for gpu in pci.gpus(root, maker) if not gpu.is_for_guests]
        if maker is not Vendor.NVIDIA:
            room = amd if maker is Vendor.AMD else intel
            found = [gpu for gpu in found if not room.is_integrated(root, gpu)]
        if found:
            return tuple(gpu.address for gpu in found)
    return ()


def in_time(vendor: str = "auto") -> Inventory:
    """Detect this machine's GPUs, and give up if the driver does not answer.

    Raises:
        OSError: the machine lacks resources, so the result is unknown.
    """
    try:
        return apart.call(lambda: detect(vendor), PATIENCE, note=HANGS)
    except apart.HungError as error:
        makers = [Vendor(vendor)] if vendor != "auto" else Vendor
        there = [one for one in makers if pci.gpus(_ROOT, one)]
        return Inventory(State.HUNG, detail=str(error), vendor=[*there, *makers][0])


def _look(vendor: Vendor, root: pathlib.Path, *, integrated: bool) -> Inventory:
    if vendor is Vendor.AMD:
        return amd.look(root, integrated=integrated)
    if vendor is Vendor.INTEL:
        return intel.look(root, integrated=integrated)
    return nvidia.look(root)
