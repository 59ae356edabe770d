# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The labels of a runner, which describe its GPUs. Pure.

A service gives a job to a runner that has all labels of the job. So each label is a promise.
"""

import collections.abc
import dataclasses
import re
import typing

Labels = tuple[str, ...]

_COUNT: typing.Final = re.compile(r"gpu-count-([1-9][0-9]{0,2})")
# By what the kernel calls the machine (uname(2)); GitHub's names of them.
_MACHINES: typing.Final = {"x86_64": "x64", "aarch64": "arm64"}


@dataclasses.dataclass(frozen=True)
class Facts:
    """The facts of a GPU for labels.

    Attributes:
        vendor: such as `nvidia`.
        model: in lower case with hyphens, such as `a100-sxm4-80gb`; empty: unknown.
        memory: in GiB; 0: unknown.
    """

    vendor: str
    model: str = ""
    memory: int = 0


@dataclasses.dataclass(frozen=True)
class Common:
    """What all runners of a machine have.

    Attributes:
        machine: as uname(2) calls it.
        cuda: the highest CUDA version of the driver, such as `13.0`; or empty.
        driver: the driver's version; or empty.
        own: the operator's.
    """

    machine: str
    cuda: str = ""
    driver: str = ""
    own: Labels = ()


def of(common: Common, gpus: collections.abc.Sequence[Facts]) -> Labels:
    """Return the labels of a runner with these GPUs."""
    found = ["self-hosted", "linux", _MACHINES.get(common.machine, common.machine)]
    if gpus:
        vendors, models = {gpu.vendor for gpu in gpus}, {gpu.model for gpu in gpus}
        found += ["gpu", f"gpu-count-{len(gpus)}", *(f"gpu-type-{one}" for one in sorted(vendors))]
        found += ["cuda"] * ("nvidia" in vendors)
        found += [f"gpu-model-{one}" for one in models if one and len(models) == 1]
        memory = min(gpu.memory for gpu in gpus)
        found += [f"gpu-memory-{memory}gib"] * bool(memory)
        found += [f"cuda-{common.cuda}"] * bool(common.cuda)
        found += [f"driver-{common.driver.split('.')[0]}"] * bool(common.driver)
    return tuple(dict.fromkeys((*found, *common.own)))


def count(asked: collections.abc.Set[str], otherwise: int) -> int:
    """Return how many GPUs a job asks for by its labels.

    Args:
        asked: its labels.
        otherwise: how many GPUs a runner has if the job names no number.
    """
    for label in sorted(asked):
        if found := _COUNT.fullmatch(label):
            return int(found.group(1))
    wants_some = any(one in ("gpu", "cuda") or one.startswith("gpu-") for one in asked)
    return otherwise if wants_some else 0
