# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The tags of a worker, which describe its GPUs. Pure."""

import collections.abc
import re
import typing

from gpu_agent.model.inventory import Gpu, devices, memory_gib
from plan.gpus import Choice
from plan.state import UnitState

# The tag of a worker whose GPUs are all cordoned or quarantined, and of one whose GPUs or driver
# are in a state in which tasks cannot use them.
NO_GPU_LEFT: typing.Final = "gpu-unavailable"
NO_GPU_USABLE: typing.Final = "gpu-unusable"

# Memory sizes with a threshold tag.
_THRESHOLDS_GIB: typing.Final = (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 141, 180, 192, 288)
# The last minor release of each major one, of those that there are in November 2026
# (developer.nvidia.com/cuda-toolkit-archive).
_LAST_CUDA: typing.Final = {12: 9, 13: 4}


def of_gpus(state: UnitState, choice: Choice) -> tuple[str, ...]:
    """Return the tags of a worker with GPUs: facts, threshold tags, then the operator's own.

    Count and memory are those of the units that one task gets: a GPU, or a MIG device if MIG mode
    is on. The model is a tag only if all GPUs have the same. The memory is that of the smallest.
    Threshold tags mean "at least", since a CI system compares tags literally.

    If no GPU is left, one tag remains: a worker without tags would get all untagged tasks, and
    refuse them for lack of a GPU.
    """
    inventory, gpus = state.inventory, choice.gpus
    if not gpus:
        return instead(state, NO_GPU_LEFT)
    count, memory = len(devices(gpus)), min(memory_gib(gpu) for gpu in gpus)
    tags = ["gpu", f"gpu-type={gpus[0].vendor}", f"gpu-count={count}"]
    if state.options.gpu_device_ids:
        tags.append("gpu-devices=" + ",".join(str(index) for index in choice.indexes))
    model, *others = {model_name(gpu) for gpu in gpus}
    if model and not others:
        tags.append(f"gpu-model={model}")
    if memory:
        tags.append(f"gpu-memory={memory}GiB")
    if inventory and inventory.cuda:
        tags.append(f"cuda={inventory.cuda}")
    if inventory and inventory.driver:
        tags.append(f"driver={inventory.driver.split('.')[0]}")
    tags += [f"gpu-count>={number}" for number in range(1, count + 1)]
    tags += [f"gpu-memory>={size}GiB" for size in _THRESHOLDS_GIB if size <= memory]
    tags += [f"cuda>={release}" for release in _cuda_up_to(inventory.cuda if inventory else "")]
    return tuple(dict.fromkeys((*tags, *state.options.extra_tags)))


def instead(state: UnitState, tag: str) -> tuple[str, ...]:
    """Return the tags of a worker without a GPU for tasks: the reason, and the operator's own."""
    return tuple(dict.fromkeys((tag, *state.options.extra_tags)))


def model_name(gpu: Gpu) -> str:
    """Return a GPU's model in lower case with hyphens, without its vendor: `a100-sxm4-80gb`."""
    name = re.sub(r"\((?:r|tm|c)\)", " ", gpu.model.lower())
    name = re.sub(rf"^\s*{re.escape(gpu.vendor)}\s+", "", name)
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def _cuda_up_to(version: str) -> collections.abc.Iterator[str]:
    """Yield CUDA's releases from 12.0 up to the driver's; none if that is unknown."""
    match = re.fullmatch(r"([0-9]{1,2})\.([0-9]{1,2})", version)
    major, minor = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
    for earlier in range(12, major):
        yield from (f"{earlier}.{n}" for n in range(_LAST_CUDA.get(earlier, 0) + 1))
    if major >= 12:
        yield from (f"{major}.{n}" for n in range(minor + 1))
