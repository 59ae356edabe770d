# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Intel as a vendor: its drivers i915 and xe come with the kernel."""

from __future__ import annotations

import typing

from gpu_agent.gpu.vendors.intel.maker import MAKER
from gpu_agent.gpu.vendors.vendor import Grant, Vendor

if typing.TYPE_CHECKING:
    import pathlib

    from gpu_agent.gpu.kernel import pci
    from gpu_agent.model.inventory import Inventory


def _look(root: pathlib.Path, *, integrated: bool) -> Inventory:
    from gpu_agent.gpu.vendors.intel import inventory

    return inventory.look(root, integrated=integrated)


def _is_integrated(root: pathlib.Path, gpu: pci.Device) -> bool:
    from gpu_agent.gpu.vendors.intel import inventory

    return inventory.is_integrated(root, gpu)


VENDOR: typing.Final = Vendor(
    maker=MAKER,
    kernel_driver="i915 or xe",
    driver_source="linux-modules-extra of its kernel",
    id_pattern="PCI-.+",
    grant=Grant(("PCI-",)),
    look=_look,
    is_integrated=_is_integrated,
)
