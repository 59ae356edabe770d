# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""List its GPUs as a DRM driver shows them."""

import pathlib

from gpu_agent.gpu.kernel import pci, sysfs
from gpu_agent.gpu.vendors.stub.maker import MAKER
from gpu_agent.model.inventory import Gpu, Inventory, State


def look(root: pathlib.Path) -> Inventory:
    """Return this machine's GPUs, or why they can't be used."""
    found = pci.gpus(root, MAKER)
    driven = [gpu for gpu in found if gpu.driver == "stub"]
    if not driven:
        return pci.undriven(found, MAKER)
    gpus = tuple(_gpu(root, index, gpu) for index, gpu in enumerate(driven))
    return Inventory(State.READY, gpus, vendor=MAKER.name)


def _gpu(root: pathlib.Path, index: int, gpu: pci.Device) -> Gpu:
    render = sysfs.drm_nodes(root, gpu.address)["render"]
    return Gpu(
        index=index,
        uuid=f"STUB-{index}",
        vendor=MAKER.name,
        model="Stub Trial 1",
        memory_mib=16384,
        pci_address=gpu.address,
        minor=-1,
        nodes=(sysfs.dri_path(root, gpu.address, "render", render),),
    )
