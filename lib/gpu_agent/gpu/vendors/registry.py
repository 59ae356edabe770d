# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The vendors of GPUs that this product knows; a further one is its package and a line in ALL."""

import pathlib
import re
import typing

from gpu_agent.gpu.kernel import sysfs
from gpu_agent.gpu.vendors.amd.vendor import VENDOR as AMD
from gpu_agent.gpu.vendors.intel.vendor import VENDOR as INTEL
from gpu_agent.gpu.vendors.nvidia.vendor import VENDOR as NVIDIA
from gpu_agent.gpu.vendors.vendor import Vendor

# The first one with a usable GPU is taken if an operator names none.
ALL: typing.Final[tuple[Vendor, ...]] = (
    NVIDIA,
    AMD,
    INTEL,
)
NAMES: typing.Final = tuple(vendor.name for vendor in ALL)

_BY_NAME: typing.Final = {vendor.name: vendor for vendor in ALL}


def find(name: str) -> Vendor:
    """Return the vendor of that name.

    Raises:
        KeyError: there is none.
    """
    return _BY_NAME[name]


def of_card(root: pathlib.Path, uuid: str, address: str) -> Vendor:
    """Return the vendor of a GPU: by its id, and by the bus if several have such ids.

    Args:
        root: the root of the machine's files.
        uuid: the GPU's id.
        address: its PCI address; a GPU that has fallen off the bus has no vendor there.

    Raises:
        OSError: the machine lacks resources, so the bus cannot be read.
    """
    fits = [vendor for vendor in ALL if re.fullmatch(vendor.id_pattern, uuid)]
    there = sysfs.number(root / "sys/bus/pci/devices" / address / "vendor")
    return next((vendor for vendor in fits if vendor.maker.id == there), [*fits, *ALL][0])


def without_maker(model: str) -> str:
    """Return a GPU's model without the name of its vendor at the beginning."""
    first, _, rest = model.partition(" ")
    return rest if first in {vendor.display for vendor in ALL} else model
