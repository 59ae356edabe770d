# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""AMD as a vendor: its driver amdgpu comes with the kernel."""

from __future__ import annotations

import typing

from gpu_agent.gpu.vendors.amd.maker import MAKER
from gpu_agent.gpu.vendors.vendor import Grant, Names, Vendor

if typing.TYPE_CHECKING:
    import pathlib

    from gpu_agent.gpu.kernel import pci
    from gpu_agent.model.inventory import Inventory


def _look(root: pathlib.Path, *, integrated: bool) -> Inventory:
    from gpu_agent.gpu.vendors.amd import inventory

    return inventory.look(root, integrated=integrated)


def _is_integrated(root: pathlib.Path, gpu: pci.Device) -> bool:
    from gpu_agent.gpu.vendors.amd import inventory

    return inventory.is_integrated(root, gpu)


VENDOR: typing.Final = Vendor(
    maker=MAKER,
    kernel_driver="amdgpu",
    driver_source="linux-modules-extra of its kernel",
    # For the forms of the ids see gpu_agent.model.inventory.Gpu.
    id_pattern=r"GPU-[0-9a-f]{16}(?:-[0-9]+)?|PCI-.+",
    grant=Grant(("GPU-", "PCI-")),
    look=_look,
    is_integrated=_is_integrated,
    node_names=Names("kfd"),
)
