# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Compare what a container sees of this machine's GPUs with what it should see."""

import collections.abc
import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import re
import stat
import typing

from gpu_agent.gpu.kernel import sysfs as kernel
from gpu_agent.gpu.vendors import registry
from gpu_agent.model.inventory import Gpu
from gpu_selftest.isolation import rootfs
from gpu_selftest.isolation.rootfs import Mount
from machine import exhaustion as scarcity

_ROOT: typing.Final = pathlib.Path("/")
# ENXIO: opening is allowed, but there is no driver, as with simulated GPUs.
_MAY_OPEN: typing.Final = (0, errno.ENXIO)
# The node that all AMD GPUs share.
_KFD: typing.Final = "/dev/kfd"
_OF_ONE_GPU: typing.Final = re.compile(r"/dev/(nvidia[0-9]+|dri/(card|renderD)[0-9]+)")

Number = tuple[int, int]
"""Major and minor number of a device."""


@dataclasses.dataclass(frozen=True)
class Node:
    """A device node of one GPU of this machine.

    Attributes:
        path: where it is on this machine.
        number: the kernel's number, which is the same under any name in a container.
        gpu: the GPU's id; empty if tasks never get that GPU.
    """

    path: str
    number: Number
    gpu: str


@dataclasses.dataclass(frozen=True)
class View:
    """What the probe found in one container.

    Attributes:
        nodes: path to number and errno of each device in its /dev; errno 0: it opened.
        planted: the same for nodes of the machine's GPUs that are mounted elsewhere in it.
        made: number and errno of each such node that it tried to make; errno 0: it did.
        nvml: UUIDs that NVML lists; None if there is no NVML, or no driver behind it.
        nvml_error: NVML's message if it does not answer.
        environment: entries such as `NAME=value`.
    """

    nodes: dict[str, tuple[Number, int]]
    planted: dict[str, tuple[Number, int]]
    made: dict[Number, int]
    nvml: list[str] | None
    nvml_error: str
    environment: list[str]

    @property
    def gpu_nodes(self) -> list[str]:
        """Paths of the nodes of GPUs and their drivers in its /dev."""
        return [path for path in self.nodes if path.startswith(("/dev/nvidia", "/dev/dri/", _KFD))]

    @property
    def mig_nodes(self) -> set[str]:
        """Paths of the nodes that give access to MIG devices."""
        return {path for path in self.nodes if path.startswith("/dev/nvidia-caps/")}


def parse(text: str) -> View:
    """Read the probe's output.

    Raises:
        ValueError: it is not the probe's output.
    """
    said: dict[str, typing.Any] = json.loads(text)
    answer: dict[str, typing.Any] = said["nvml"] or {"error": "", "uuids": None}
    nodes, planted_nodes = (
        {path: ((major, minor), error) for path, major, minor, error in said[place]}
        for place in ("nodes", "planted")
    )
    # A control node without a driver: the GPUs are simulated, and NVML has no driver to ask.
    _, error = nodes.get("/dev/nvidiactl", ((0, 0), 0))
    silent = error == errno.ENXIO and bool(answer["error"])
    return View(
        nodes,
        planted_nodes,
        {(major, minor): error for major, minor, error in said["made"]},
        nvml=None if silent else answer["uuids"],
        nvml_error="" if silent else answer["error"],
        environment=said["environment"],
    )


def lacks(view: View) -> list[str]:
    """Return errors in a view that show that the machine is starved: then the view is useless."""
    own = [view.nodes[path] for path in view.gpu_nodes]
    numbers = {error for _, error in (*own, *view.planted.values())} | {*view.made.values()}
    told = [view.nvml_error, *(os.strerror(number) for number in sorted(numbers) if number > 0)]
    return [words for words in told if scarcity.is_told_by(words)]


def host_nodes(gpus: collections.abc.Iterable[Gpu]) -> tuple[Node, ...]:
    """Return the nodes of all GPUs of this machine, including GPUs other than these."""
    owners = {
        path: gpu.uuid for gpu in reversed([*gpus]) for path in [*own_nodes(gpu), *_dri(gpu)]
    }
    found: list[Node] = []
    for pattern in ("nvidia[0-9]*", "dri/card[0-9]*", "dri/renderD[0-9]*"):
        for path in sorted((_ROOT / "dev").glob(pattern)):
            status = path.stat()
            if stat.S_ISCHR(status.st_mode):
                number = os.major(status.st_rdev), os.minor(status.st_rdev)
                found.append(Node(str(path), number, owners.get(str(path), "")))
    return tuple(found)


def own_nodes(gpu: Gpu) -> list[str]:
    """Return the nodes without which a container can't use a GPU, except shared ones."""
    return [os.path.realpath(node.path) for node in registry.find(gpu.vendor).own_nodes(gpu)]


def planted(nodes: collections.abc.Iterable[Node]) -> list[Mount]:
    """Return mounts of these nodes that bypass the runtime, so that device rules must refuse."""
    return [
        Mount(node.path, str(rootfs.PROGRAMS / f"{place}"), ("bind",))
        for place, node in enumerate(nodes)
    ]


def faults_with(view: View, nodes: tuple[Node, ...], gpu: Gpu, device: str) -> list[str]:
    """Return faults in the view of a container that has only this GPU or MIG device."""
    faults: list[str] = []
    for path in own_nodes(gpu):
        _, error = view.nodes.get(path, ((0, 0), errno.ENOENT))
        if error not in _MAY_OPEN:
            faults.append(f"it cannot open its own {path} ({os.strerror(error)})")
    owners = {node.number: node.gpu for node in nodes}
    others = [
        path
        for path in view.gpu_nodes
        if _OF_ONE_GPU.fullmatch(path) and owners.get(view.nodes[path][0]) != gpu.uuid
    ]
    if others:
        faults.append(f"it has {_listed(others)} of other GPUs")
    wanted = {gpu.uuid, device}
    if view.nvml_error:
        faults.append(f"NVML does not answer in it ({view.nvml_error})")
    elif view.nvml is not None and {*view.nvml} != wanted:
        faults.append(f"NVML lists {_listed(view.nvml)} in it, not {_listed(sorted(wanted))}")
    return faults


def faults_without(view: View) -> list[str]:
    """Return faults in the view of a container that has no GPU."""
    faults = [f"it has {_listed(view.gpu_nodes)}"] if view.gpu_nodes else []
    if view.nvml:
        faults.append(f"NVML lists {_listed(view.nvml)} in it")
    return faults


def leaks(view: View, nodes: tuple[Node, ...]) -> list[str]:
    """Return the paths of nodes that a container can open although it was not given them."""
    given = {number for number, _ in view.nodes.values()}
    by_number = {node.number: node.path for node in nodes}
    return [
        by_number.get(number, path)
        for path, (number, error) in view.planted.items()
        if error in _MAY_OPEN and number not in given
    ]


def ways_past(view: View, nodes: tuple[Node, ...]) -> list[str]:
    """Return the ways to a GPU in a container without device rules: paths, each with the reason.

    Such a container can use every node in it, so it must neither have other GPUs' nodes nor make
    any. None of these containers is given more than one GPU.
    """
    made = [node for node in nodes if view.made.get(node.number) != errno.EPERM]
    found = [f"{node.path} (mknod: {_answer(view.made.get(node.number))})" for node in made]
    owners = {node.number: node.gpu for node in nodes}
    here = {path: owners[number] for path, (number, _) in view.nodes.items() if number in owners}
    if len({*here.values()}) > 1 or "" in here.values():
        found += [f"{path} (a node)" for path in here]
    return found


def _answer(number: int | None) -> str:
    return "not tried" if number is None else os.strerror(number) if number else "made"


def share_mig_nodes(seen: collections.abc.Sequence[View]) -> bool:
    """Return whether one container's access to its MIG device is in another container too.

    Two may share a GPU instance, but then each has its own compute instance.
    """
    return any(
        one.mig_nodes and one.mig_nodes <= other.mig_nodes
        for one in seen
        for other in seen
        if one is not other
    )


def untruths(view: View, gpu: Gpu, device: str) -> list[str]:
    """Return the variables that do not name this device alone.

    Names and values are those of gpu_runtime.grant. CUDA_VISIBLE_DEVICES is set by the image.
    """
    by_name: dict[str, list[str]] = {}
    for entry in view.environment:
        name, _, value = entry.partition("=")
        by_name.setdefault(name, []).append(value)
    by_runtime = registry.find(gpu.vendor).grant.by_runtime
    wanted = {
        "NVIDIA_VISIBLE_DEVICES": [device if by_runtime else "void"],
        "GPU_COUNT": ["1"],
        "CUDA_VISIBLE_DEVICES": [],
    }
    faults = [
        f"{name} is {_listed(by_name[name]) if name in by_name else 'not set'}"
        for name, values in wanted.items()
        if by_name.get(name, []) != values
    ]
    told = by_name.get("GPU_CI_DEVICES", [])
    with contextlib.suppress(ValueError, KeyError, TypeError):
        told = [str(each["uuid"]) for text in told for each in json.loads(text)]
    return faults if told == [device] else [*faults, f"GPU_CI_DEVICES names {_listed(told)}"]


def _dri(gpu: Gpu) -> list[str]:
    if gpu.nodes:
        return []  # they are known, and partitions of one card have one address
    return [f"/dev/dri/{name}" for name in kernel.drm_nodes(_ROOT, gpu.pci_address).values()]


def _listed(words: collections.abc.Iterable[str]) -> str:
    return ", ".join(words) or "nothing"
