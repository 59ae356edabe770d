# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""List Intel's GPUs as their drivers i915 and xe show them under DRM."""

import pathlib
import typing

from gpu_agent.gpu.kernel import pci
from gpu_agent.gpu.kernel import sysfs as kernel
from gpu_agent.gpu.vendors.intel.maker import MAKER
from gpu_agent.model.inventory import Gpu, Inventory, State

_DRIVERS: typing.Final = ("i915", "xe")
# The graphics of every Intel processor have this address; cards have others (intel-gpu-tools,
# lib/igt_device_scan.h, INTEGRATED_I915_GPU_PCI_ID).
_INTEGRATED: typing.Final = "0000:00:02."


def look(root: pathlib.Path, *, integrated: bool) -> Inventory:
    """Return this machine's Intel GPUs, or why they can't be used.

    Args:
        root: the root of the machine's files.
        integrated: whether GPUs count that are part of a processor.
    """
    found = pci.gpus(root, MAKER)
    counted = [gpu for gpu in found if integrated or not is_integrated(root, gpu)]
    if found and not counted:
        return pci.integrated_only(found, MAKER)
    driven = [gpu for gpu in counted if gpu.driver in _DRIVERS]
    if not driven:
        return pci.undriven(counted, MAKER)
    nodes = [(gpu, _nodes(root, gpu)) for gpu in driven]
    usable = [(gpu, paths) for gpu, paths in nodes if paths]
    without = tuple(gpu.address for gpu, paths in nodes if not paths)
    contained = kernel.in_container(root)
    if not usable:
        state = State.NOT_PASSED if contained else State.NO_DRIVER
        return Inventory(state, detail=", ".join(without), vendor=MAKER.name)
    return Inventory(
        State.READY,
        gpus=tuple(_gpu(root, index, *pair) for index, pair in enumerate(usable)),
        driver=kernel.module_version(root, usable[0][0].driver),
        lost=() if contained else without,
        vendor=MAKER.name,
    )


def is_integrated(root: pathlib.Path, gpu: pci.Device) -> bool:
    """Return whether a GPU is part of a processor, which has no memory of its own."""
    # A virtual machine may have been given a card at that address.
    return gpu.address.startswith(_INTEGRATED) and not _memory_mib(root, gpu)


def _nodes(root: pathlib.Path, gpu: pci.Device) -> tuple[str, ...]:
    """Return the paths of its nodes, card before render; empty without the render node."""
    names = kernel.drm_nodes(root, gpu.address)
    paths = [kernel.dri_path(root, gpu.address, kind, name) for kind, name in names.items()]
    here = tuple(path for path in paths if path)
    return here if "render" in names and paths[-1] else ()


def _memory_mib(root: pathlib.Path, gpu: pci.Device) -> int:
    """Return its own memory in MiB; 0 if the driver reports none, as i915 in Linux's own tree.

    Intel's build of i915 has `lmem_total_bytes` on the card, xe a file for each tile.
    """
    folder = root / f"sys/bus/pci/devices/{gpu.address}"
    card = kernel.drm_nodes(root, gpu.address).get("card", "")
    files = [folder / "drm" / card / "lmem_total_bytes"]
    files += folder.glob("tile*/physical_vram_size_bytes")
    return sum(kernel.number(file) for file in files) >> 20


def _gpu(root: pathlib.Path, index: int, gpu: pci.Device, nodes: tuple[str, ...]) -> Gpu:
    return Gpu(
        index=index,
        uuid=f"PCI-{gpu.address}",
        vendor=MAKER.name,
        model=pci.model(root, gpu, MAKER) or f"Intel {gpu.product:#06x}",
        memory_mib=_memory_mib(root, gpu),
        pci_address=gpu.address,
        minor=-1,
        nodes=nodes,
    )
