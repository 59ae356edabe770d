# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""List NVIDIA's GPUs from /sys, /proc and /dev first, then from NVML."""

import collections.abc
import pathlib
import re

from gpu_agent.gpu.kernel import pci
from gpu_agent.gpu.kernel import sysfs as kernel
from gpu_agent.gpu.vendors.nvidia import module_version as nvidia_module
from gpu_agent.gpu.vendors.nvidia import nvml
from gpu_agent.gpu.vendors.nvidia.maker import MAKER
from gpu_agent.model.inventory import Inventory, State


def look(
    root: pathlib.Path,
    read: collections.abc.Callable[[], nvml.Answer] = nvml.read,
    library_version: collections.abc.Callable[[], str] = nvml.library_version,
) -> Inventory:
    """Return this machine's NVIDIA GPUs, or why they can't be used.

    Args:
        root: the root of the machine's files; NVML is always this machine's.
        read: asks NVML for the GPUs; raises NvmlError.
        library_version: returns the version of NVML's library; empty if it is unknown.
    """
    gpus = pci.gpus(root, MAKER)
    driven = [gpu for gpu in gpus if gpu.driver == "nvidia"]
    if driven:
        passed = [gpu for gpu in driven if is_passed(gpu.address, root)]
        if passed:
            return _ask_nvml(passed, root, read, library_version)
        return Inventory(State.NOT_PASSED, detail=pci.addresses(driven), vendor=MAKER.name)
    # A container may see nothing of the bus and still have the nodes.
    if not gpus and _count_nodes(root):
        return _ask_nvml([], root, read, library_version)
    return pci.undriven(gpus, MAKER)


def _ask_nvml(
    passed: list[pci.Device],
    root: pathlib.Path,
    read: collections.abc.Callable[[], nvml.Answer],
    library_version: collections.abc.Callable[[], str],
) -> Inventory:
    try:
        answer = read()
    except nvml.NvmlError as error:
        kernel_driver = nvidia_module.version(lambda name: kernel.text(root / name))
        detail = {
            State.NO_LIBRARY: kernel_driver or "of an unknown version",
            State.MISMATCH: (f"{kernel_driver or 'unknown'} and {library_version() or 'unknown'}"),
        }.get(error.state, str(error))
        return Inventory(error.state, driver=kernel_driver, detail=detail, vendor=MAKER.name)
    answered = {gpu.pci_address for gpu in answer.gpus}
    silent = (gpu.address for gpu in passed if gpu.address not in answered)
    lost = tuple(address for address in silent if is_passed(address, root, answered))
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
        vendor=MAKER.name,
    )


def is_passed(
    address: str, root: pathlib.Path, answering: collections.abc.Collection[str] = ()
) -> bool:
    """Return whether a GPU of the driver can be opened here, which in a container needs its node.

    On a machine of its own NVML makes the nodes when it starts.

    Args:
        address: of this GPU.
        root: where /proc, /dev and /run lie.
        answering: addresses of GPUs that are known to be here. If the driver's file on this GPU is
            hidden, as libnvidia-container does for GPUs that it does not pass in, the GPU is here
            only if /dev has more nodes than these GPUs.
    """
    if not kernel.in_container(root):
        return True
    said = kernel.text(root / "proc/driver/nvidia/gpus" / address / "information")
    minor = re.search(r"^Device Minor:\s*([0-9]+)", said, re.MULTILINE)
    if minor:
        return (root / f"dev/nvidia{minor.group(1)}").is_char_device()
    return _count_nodes(root) > len(answering)


def _count_nodes(root: pathlib.Path) -> int:
    # LXD makes an empty file before it mounts a node on it, and leaves one for milliseconds.
    nodes = filter(pathlib.Path.is_char_device, (root / "dev").glob("nvidia*"))
    return sum(bool(re.fullmatch(r"nvidia[0-9]+", node.name)) for node in nodes)
