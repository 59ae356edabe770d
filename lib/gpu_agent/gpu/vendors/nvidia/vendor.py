# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""NVIDIA as a vendor: its driver comes as packages and is asked through NVML."""

from __future__ import annotations

import typing

from gpu_agent.gpu.vendors.nvidia.maker import MAKER
from gpu_agent.gpu.vendors.vendor import (
    Cards,
    Cuda,
    Grant,
    Names,
    Node,
    Samples,
    Use,
    Uuids,
    Vendor,
)

if typing.TYPE_CHECKING:
    import collections.abc
    import contextlib
    import pathlib

    from gpu_agent.gpu.kernel.listener import Listener
    from gpu_agent.gpu.vendors.collector import Collector, Tell
    from gpu_agent.model.gpu_health import Health
    from gpu_agent.model.host import Driver
    from gpu_agent.model.inventory import Gpu, Inventory

_MAJOR: typing.Final = 195  # Linux Documentation/admin-guide/devices.txt, character devices
_CONTROL_MINOR: typing.Final = 255  # NVIDIA open-gpu-kernel-modules nv-chardev-numbers.h


def _look(root: pathlib.Path, *, integrated: bool) -> Inventory:  # noqa: ARG001  it has none
    from gpu_agent.gpu.vendors.nvidia import inventory

    return inventory.look(root)


def _listener(root: pathlib.Path) -> Listener:
    from gpu_agent.gpu.vendors.nvidia import kernel_log

    return kernel_log.XidListener(root)


def _collector(cards: Cards, root: pathlib.Path, tell: Tell) -> Collector:
    from gpu_agent.gpu.vendors.nvidia import collector

    return collector.NvmlCollector(cards, root, tell)


def _driver() -> Driver:
    from gpu_agent.gpu.vendors.nvidia import driver_state

    return driver_state.look()


def _own_nodes(gpu: Gpu) -> tuple[Node, ...]:
    make = f"sudo nvidia-modprobe -c={gpu.minor}"
    return (Node(f"/dev/nvidia{gpu.minor}", _MAJOR, gpu.minor, make, by_group=False),)


def _shared_nodes(
    _gpus: collections.abc.Sequence[Gpu], majors: collections.abc.Mapping[str, int]
) -> tuple[Node, ...]:
    uvm, make = majors.get("nvidia-uvm"), "sudo nvidia-modprobe -u -c=0"
    control = f"sudo nvidia-modprobe -c={_CONTROL_MINOR}"
    return (
        Node("/dev/nvidiactl", _MAJOR, _CONTROL_MINOR, control, by_group=False),
        # Without it CUDA does not start, although nvidia-smi does (NVIDIA/gpu-operator#2685).
        Node("/dev/nvidia-uvm", uvm, 0, make, by_group=False),
        Node("/dev/nvidia-uvm-tools", uvm, 1, make, optional=True, by_group=False),
    )


def _health(uuids: Uuids) -> dict[str, Health]:
    from gpu_agent.gpu.vendors.nvidia import nvml_health

    return nvml_health.read(uuids)


def _versions() -> tuple[str, str]:
    from gpu_agent.gpu.vendors.nvidia import nvml

    told = nvml.read()
    return told.cuda, told.driver


def _watch(
    uuids: Uuids,
) -> contextlib.AbstractContextManager[collections.abc.Callable[[], Samples]]:
    from gpu_agent.gpu.vendors.nvidia import nvml_health

    return nvml_health.watch(uuids)


def _uses(uuids: Uuids) -> dict[str, Use] | None:
    from gpu_agent.gpu.vendors.nvidia import nvml

    try:
        return nvml.uses(uuids)
    except nvml.NvmlError:
        return None


def _reset(uuid: str, *, persistent: bool, beside: str) -> str:
    from gpu_agent.gpu.vendors.nvidia import reset

    return reset.reset(uuid, persistent=persistent, beside=beside)


VENDOR: typing.Final = Vendor(
    maker=MAKER,
    kernel_driver="nvidia",
    driver_source="sudo ubuntu-drivers install --gpgpu",
    id_pattern=r"GPU(?:-[0-9A-Fa-f]+){5}",
    grant=Grant(("GPU-", "MIG-"), by_runtime=True),
    look=_look,
    newer_driver="sudo ubuntu-drivers install --gpgpu nvidia:{branch}-server",
    packaged_driver=True,
    lasting_ids=True,
    cuda=Cuda(_versions, _watch),
    node_names=Names(
        r"nvidia[0-9]+|nvidiactl|nvidia-uvm|nvidia-cap[0-9]+",
        # Nodes that open MIG devices, two for each: the only sign of a new one on a present card.
        folder="nvidia-caps",
    ),
    listener=_listener,
    collector=_collector,
    driver=_driver,
    own_nodes=_own_nodes,
    shared_nodes=_shared_nodes,
    health=_health,
    uses=_uses,
    reset=_reset,
)
