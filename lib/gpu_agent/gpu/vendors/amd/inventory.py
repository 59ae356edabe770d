# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""List AMD's GPUs by amdgpu's compute interface KFD, without ROCm."""

import dataclasses
import pathlib
import re
import typing

from gpu_agent.gpu.kernel import pci
from gpu_agent.gpu.kernel import sysfs as kernel
from gpu_agent.gpu.vendors.amd.maker import MAKER
from gpu_agent.model.inventory import Gpu, Inventory, State

_KFD: typing.Final = "/dev/kfd"
# Linux drivers/gpu/drm/amd/amdkfd/kfd_topology.h, HSA_MEM_HEAP_TYPE_FB_PUBLIC and _FB_PRIVATE:
# the GPU's own memory, all of it visible to the processor or not.
_FRAME_BUFFER: typing.Final = (1, 2)
# Ubuntu's package libdrm-common.
_LIBDRM_NAMES: typing.Final = "usr/share/libdrm/amdgpu.ids"


@dataclasses.dataclass(frozen=True)
class _Node:
    """A node of KFD's topology that computes and can be opened here: a GPU or a partition.

    Attributes:
        gpu: the GPU's PCI address without its function, such as `0000:05:00`.
        partition: its number among the partitions of that GPU; 0 for a whole one.
        unique_id: the card's own number, 0 if it has none; partitions have their GPU's on most
            kernels.
        render: name of its render node, such as `renderD128`.
        target: the compilers' name of it, in decimal, such as 90402 for gfx942.
        memory_mib: its own memory in MiB.
    """

    gpu: str
    partition: int
    unique_id: int
    render: str
    target: int
    memory_mib: int

    def is_of(self, gpu: pci.Device) -> bool:
        """Return whether this is that GPU, or a partition of it."""
        return gpu.address.startswith(f"{self.gpu}.")


def look(root: pathlib.Path, *, integrated: bool) -> Inventory:
    """Return this machine's AMD GPUs, or why they can't be used.

    Args:
        root: the root of the machine's files.
        integrated: whether GPUs count that are part of a processor.
    """
    # The driver radeon supports cards that ROCm never supported, such as servers' display chips.
    found = [gpu for gpu in pci.gpus(root, MAKER) if gpu.driver != "radeon"]
    counted = [gpu for gpu in found if integrated or not is_integrated(root, gpu)]
    if found and not counted:
        return pci.integrated_only(found, MAKER)
    here = driven = [gpu for gpu in counted if gpu.driver == "amdgpu"]
    if not driven:
        return pci.undriven(counted, MAKER)
    nodes = _nodes(root)
    if kernel.in_container(root):
        here = [gpu for gpu in driven if _is_passed(root, gpu, nodes)]
        if not here:
            return Inventory(State.NOT_PASSED, detail=pci.addresses(driven), vendor=MAKER.name)
    pairs = [(gpu, node) for gpu in here for node in nodes if node.is_of(gpu)]
    if not pairs or not (root / _KFD.lstrip("/")).exists():
        return Inventory(State.NO_KFD, detail=pci.addresses(here), vendor=MAKER.name)
    answered = {gpu for gpu, _ in pairs}
    return Inventory(
        State.READY,
        gpus=tuple(_gpu(root, index, *pair, nodes) for index, pair in enumerate(pairs)),
        driver=kernel.module_version(root, "amdgpu"),
        lost=tuple(gpu.address for gpu in here if gpu not in answered),
        vendor=MAKER.name,
    )


def is_integrated(root: pathlib.Path, gpu: pci.Device) -> bool:
    """Whether a GPU is part of a processor; the MI300A counts as an accelerator.

    The third byte of its metrics is the format: 1 is that of cards and of the MI300 family, 2 and
    3 those of processors (Linux drivers/gpu/drm/amd/include/kgd_pp_interface.h).
    """
    # Cards before Vega have no metrics.
    metrics = root / f"sys/bus/pci/devices/{gpu.address}/gpu_metrics"
    return kernel.beginning(metrics, 3)[2:] in (b"\x02", b"\x03")


def _is_passed(root: pathlib.Path, gpu: pci.Device, nodes: list[_Node]) -> bool:
    """Return whether a container was given this GPU or a partition of it."""
    render = kernel.drm_nodes(root, gpu.address).get("render", "")
    own = bool(render) and (root / "dev/dri" / render).exists()
    return own or any(node.is_of(gpu) for node in nodes)


def _nodes(root: pathlib.Path) -> list[_Node]:
    """Return KFD's nodes whose render node is in /dev, in KFD's order, each render node once.

    /dev has render nodes for more partitions than there are: an MI300 reserves eight.
    """
    folders = (root / "sys/class/kfd/kfd/topology/nodes").glob("[0-9]*")
    nodes: dict[str, _Node] = {}
    for folder in sorted(folders, key=lambda path: int(path.name)):
        told = _numbers(folder / "properties")
        render = f"renderD{told.get('drm_render_minor', 0)}"
        if told.get("simd_count") and (root / "dev/dri" / render).exists():
            nodes.setdefault(render, _node(told, render, _memory_mib(folder)))
    return list(nodes.values())


def _node(told: dict[str, int], render: str, memory_mib: int) -> _Node:
    # Bus, device and function; the partition is in the function or, on some kernels, in the
    # highest four bits (kfd_topology.c, kfd_topology_add_device).
    location = told.get("location_id", 0)
    bus, device, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 0x7
    return _Node(
        gpu=f"{told.get('domain', 0):04x}:{bus:02x}:{device:02x}",
        partition=location >> 28 or function,
        unique_id=told.get("unique_id", 0),
        render=render,
        target=told.get("gfx_target_version", 0),
        memory_mib=memory_mib,
    )


def _numbers(path: pathlib.Path) -> dict[str, int]:
    """Return KFD's properties: a name and a decimal number on each line."""
    pairs = [line.split() for line in kernel.text(path).splitlines()]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _memory_mib(folder: pathlib.Path) -> int:
    banks = [_numbers(bank / "properties") for bank in (folder / "mem_banks").glob("*")]
    own = [bank for bank in banks if bank.get("heap_type") in _FRAME_BUFFER]
    return sum(bank.get("size_in_bytes", 0) for bank in own) >> 20


def _gpu(root: pathlib.Path, index: int, gpu: pci.Device, node: _Node, nodes: list[_Node]) -> Gpu:
    return Gpu(
        index=index,
        uuid=_uuid(node, nodes),
        vendor=MAKER.name,
        model=_model(root, gpu, node),
        memory_mib=node.memory_mib,
        pci_address=gpu.address,
        minor=-1,
        nodes=(_KFD, kernel.dri_path(root, gpu.address, "render", node.render)),
    )


def _uuid(node: _Node, nodes: list[_Node]) -> str:
    if not node.unique_id:
        return f"PCI-{node.gpu}.{node.partition}"
    shared = sum(other.unique_id == node.unique_id for other in nodes) > 1
    return f"GPU-{node.unique_id:016x}" + (f"-{node.partition}" if shared else "")


def _model(root: pathlib.Path, gpu: pci.Device, node: _Node) -> str:
    """A GPU's name from the best source; KFD itself calls all newer GPUs `ip discovery`."""
    folder = root / f"sys/bus/pci/devices/{gpu.address}"
    if name := kernel.text(folder / "product_name"):  # from the board; servers' cards only
        return pci.with_vendor(name, MAKER)
    # libdrm's file distinguishes cards with one chip: `744C, C8, AMD Radeon RX 7900 XTX`.
    entry = rf"^{gpu.product:04X},\s*{kernel.number(folder / 'revision'):02X},\s*(.+)$"
    known = re.search(entry, kernel.text(root / _LIBDRM_NAMES), re.MULTILINE)
    if name := known.group(1).strip() if known else pci.model(root, gpu, MAKER):
        return pci.with_vendor(name, MAKER)
    major, minor, step = node.target // 10000, node.target // 100 % 100, node.target % 100
    return f"AMD gfx{major}{minor:x}{step:x}" if node.target else f"AMD {gpu.product:#06x}"
