# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which GPUs this machine has, or what stands between it and them: /sys first, then NVML."""

import collections.abc
import pathlib
import re

from gpu import nvml, pci
from gpu.inventory import Inventory, State


def detect(root: pathlib.Path = pathlib.Path("/")) -> Inventory:
    """Look for GPUs. Nothing is changed, and no GPU at all is an answer too.

    Args:
        root: where /sys, /proc, /dev and /run lie; NVML is always this machine's.
    """
    gpus = pci.nvidia_gpus(root)
    usable = [gpu for gpu in gpus if not gpu.is_for_guests]
    driven = [gpu for gpu in usable if gpu.driver == "nvidia"]
    if driven:
        passed = [gpu for gpu in driven if _is_passed(gpu, root)]
        if passed:
            return _ask_nvml(passed, root)
        return Inventory(State.NOT_PASSED, detail=_addresses(driven))
    nouveau = [gpu for gpu in usable if gpu.driver == "nouveau"]
    if nouveau:
        return Inventory(State.NOUVEAU, detail=_addresses(nouveau))
    if usable:
        return Inventory(State.NO_DRIVER, detail=_addresses(usable))
    if gpus:
        return Inventory(State.VFIO, detail=_addresses(gpus))
    # A container may show nothing of the bus and have the nodes all the same.
    return _ask_nvml([], root) if _has_nodes(root) else Inventory(State.NO_GPU)


def _ask_nvml(passed: list[pci.Device], root: pathlib.Path) -> Inventory:
    try:
        answer = nvml.read()
    except nvml.NvmlError as error:
        kernel = _kernel_driver(root)
        detail = {
            State.NO_LIBRARY: kernel or "of an unknown version",
            State.MISMATCH: f"{kernel or 'unknown'} and {nvml.library_version() or 'unknown'}",
        }.get(error.state, str(error))
        return Inventory(error.state, driver=kernel, detail=detail)
    answered = {gpu.pci_address for gpu in answer.gpus}
    lost = tuple(gpu.address for gpu in passed if gpu.address not in answered)
    detail = "; ".join(answer.failures)
    if not answer.gpus and not detail:
        detail = f"it lists no GPU although the driver has {', '.join(lost) or 'nodes in /dev'}"
    return Inventory(
        State.READY if answer.gpus else State.NVML_ERROR,
        gpus=answer.gpus,
        driver=answer.driver,
        cuda=answer.cuda,
        lost=lost,
        detail=detail,
    )


def _is_passed(gpu: pci.Device, root: pathlib.Path) -> bool:
    """Whether a GPU of the driver's can be opened here; it can't in a container without its node.

    On a machine of its own NVML makes the nodes when it starts.
    """
    if not (root / "run/systemd/container").exists():
        return True
    if gpu.minor is None:
        return _has_nodes(root)
    return (root / f"dev/nvidia{gpu.minor}").exists()


def _has_nodes(root: pathlib.Path) -> bool:
    return any(re.fullmatch(r"nvidia[0-9]+", node.name) for node in (root / "dev").glob("nvidia*"))


def _kernel_driver(root: pathlib.Path) -> str:
    """Version of the loaded nvidia.ko; empty if neither /sys nor /proc tells it."""
    for path, pattern in (
        ("sys/module/nvidia/version", r"^([0-9.]+)$"),
        ("proc/driver/nvidia/version", r"Kernel Module.*?\s([0-9]+\.[0-9.]+)\s"),
    ):
        file = root / path
        match = re.search(pattern, file.read_text() if file.exists() else "", re.M)
        if match:
            return match.group(1)
    return ""


def _addresses(gpus: collections.abc.Iterable[pci.Device]) -> str:
    return ", ".join(gpu.address for gpu in gpus)
