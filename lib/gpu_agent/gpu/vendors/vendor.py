# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the agent, the self-test and the charm need of a vendor of GPUs, as one value.

The defaults are those of a vendor whose driver comes with the kernel, as a DRM driver. A call
imports what it needs. Each program loads all vendors, and the services that always run query no
driver themselves.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import pathlib
import typing

if typing.TYPE_CHECKING:
    import contextlib

    from gpu_agent.gpu.kernel import pci
    from gpu_agent.gpu.kernel.listener import Listener
    from gpu_agent.gpu.kernel.maker import Maker
    from gpu_agent.gpu.vendors.collector import Collector, Tell
    from gpu_agent.model.gpu_health import Health, Sample
    from gpu_agent.model.host import Driver
    from gpu_agent.model.inventory import Gpu, Inventory

Uuids = collections.abc.Iterable[str]
Samples: typing.TypeAlias = "collections.abc.Mapping[str, Sample]"

_DRI_MAJOR: typing.Final = 226  # Linux Documentation/admin-guide/devices.txt, character devices


@dataclasses.dataclass(frozen=True)
class Grant:
    """How the GPU runtime hands out a vendor's GPUs: values of policy.json.

    Attributes:
        ids: what the ids of GPUs and their parts begin with.
        by_runtime: whether nvidia-container-runtime adds devices and libraries to a container;
            otherwise the device nodes are all that it needs.
    """

    ids: tuple[str, ...]
    by_runtime: bool = False


@dataclasses.dataclass(frozen=True)
class Names:
    """How the driver names its device nodes, beside those in /dev/dri.

    Attributes:
        pattern: a regular expression for the whole name.
        folder: the folder in /dev that has some of them; empty: none.
    """

    pattern: str
    folder: str = ""


@dataclasses.dataclass(frozen=True)
class Node:
    """A device node that tasks need.

    Attributes:
        path: absolute.
        major: the number that it must have; None if the kernel does not say.
        minor: the same; -1: the number at the end of its name.
        make: the command that makes it.
        optional: whether tasks can compute without it.
        by_group: whether the GPU runtime hands it out itself, and adds tasks to its group.
    """

    path: str
    major: int | None
    minor: int
    make: str
    optional: bool = False
    by_group: bool = True


@dataclasses.dataclass(frozen=True)
class Use:
    """The users of one GPU now, its parts included.

    Attributes:
        computing: ids of the processes that have a compute context on it.
        drawing: the same for graphics, which display servers have.
        total_mib: its memory in MiB; 0 if the driver reports none, or if the kernel uses it as
            memory of the machine too.
        used_mib: the allocated part of it, without the driver's own reserve.
    """

    computing: tuple[int, ...] = ()
    drawing: tuple[int, ...] = ()
    total_mib: int = 0
    used_mib: int = 0


class QueryError(Exception):
    """A driver can't be queried; the text is its message."""


@dataclasses.dataclass(frozen=True)
class Cuda:
    """What the self-test's levels compute and burn-in ask of a driver that runs CUDA.

    Attributes:
        versions: returns the highest CUDA version of the driver, such as `13.0`, and the driver's
            version. It raises QueryError.
        watch: provides a function that samples GPUs, by UUID, in some milliseconds. It raises
            QueryError. A GPU that is lost later is a failure in its samples.
    """

    versions: collections.abc.Callable[[], tuple[str, str]]
    watch: collections.abc.Callable[
        [Uuids], contextlib.AbstractContextManager[collections.abc.Callable[[], Samples]]
    ]


class Look(typing.Protocol):
    """Returns the vendor's GPUs, or why they can't be used."""

    def __call__(self, root: pathlib.Path, *, integrated: bool) -> Inventory:
        """Look at the machine whose files are below `root`; nothing is changed.

        Args:
            root: the root of the machine's files.
            integrated: whether GPUs count that are part of a processor.
        """
        ...


class Reset(typing.Protocol):
    """Resets an idle GPU."""

    def __call__(self, uuid: str, *, persistent: bool, beside: str) -> str:
        """Return why that failed, one line; empty if it was reset.

        Args:
            uuid: its id.
            persistent: whether to switch its persistence mode on again.
            beside: a service that has it open, which is stopped meanwhile; empty: none.
        """
        ...


Uses = collections.abc.Callable[[Uuids], collections.abc.Mapping[str, Use] | None]
"""Returns the users of GPUs, without GPUs that do not answer; None if the driver fails."""
Cards = collections.abc.Mapping[str, str]
"""PCI addresses by UUID."""


def _is_integrated(_root: pathlib.Path, _gpu: pci.Device) -> bool:
    return False


def _listener(_root: pathlib.Path) -> Listener:
    from gpu_agent.gpu.kernel import drm_events

    return drm_events.DrmListener()


def _collector(cards: Cards, root: pathlib.Path, tell: Tell) -> Collector:
    from gpu_agent.gpu.vendors import sysfs_collector

    return sysfs_collector.SysfsCollector(cards, root, tell)


def _driver() -> Driver:
    from gpu_agent.gpu.kernel import sysfs
    from gpu_agent.model.host import Driver

    return Driver(container=sysfs.in_container(pathlib.Path("/")))


def _own_nodes(gpu: Gpu) -> tuple[Node, ...]:
    paths = [path for path in gpu.nodes if "/dri/" in path]
    return tuple(Node(path, _DRI_MAJOR, -1, _of_the_kernel("drm")) for path in paths)


def _shared_nodes(
    gpus: collections.abc.Sequence[Gpu], majors: collections.abc.Mapping[str, int]
) -> tuple[Node, ...]:
    others = sorted({path for gpu in gpus for path in gpu.nodes if "/dri/" not in path})
    names = {path: pathlib.Path(path).name for path in others}
    return tuple(
        Node(path, majors.get(names[path]), 0, _of_the_kernel(names[path])) for path in others
    )


def _of_the_kernel(subsystem: str) -> str:
    """Return how to restore nodes that the kernel makes; udev only has their links and modes."""
    return (
        f"sudo udevadm trigger --subsystem-match={subsystem}; if the node is still missing, "
        "reboot: the kernel makes such nodes when it finds the GPU"
    )


def _no_health(_uuids: Uuids) -> dict[str, Health]:
    return {}


@dataclasses.dataclass(frozen=True)
class Vendor:
    """One vendor of GPUs: its name, what is true of its GPUs, and the calls that look at them.

    Attributes:
        maker: its names, and how its GPUs are found on the bus.
        kernel_driver: the kernel driver of its GPUs, for a text.
        driver_source: where an operator gets that driver, for a text.
        id_pattern: a regular expression for the ids of its GPUs.
        grant: how the GPU runtime hands them out.
        look: returns them, or why they can't be used.
        is_integrated: whether one of them is part of a processor.
        newer_driver: the command that installs a newer driver, with {branch} for the first part
            of its version; empty: the driver comes with the kernel.
        packaged_driver: whether the driver comes as packages, which the charm can install.
        lasting_ids: whether an id stays with its card, wherever that is; otherwise it names the
            place or a part of a card, which another configuration changes.
        cuda: how the self-test's levels compute and burn-in ask its driver; None: these levels do
            not exist, since its GPUs do not run CUDA.
        node_names: how the driver names its nodes; None: all are in /dev/dri.
        listener: opens the kernel's messages on GPUs. It raises NoSourceError if this machine has
            none, and OSError if it lacks resources. Vendors with the same messages have the same
            function.
        collector: makes what polls GPUs in the child that asks drivers.
        driver: returns the state of the driver on this machine. It raises
            gpu_agent.model.errors.UnknownError or machine.packages.PackageError if a part of it
            can't be read.
        own_nodes: returns the nodes that belong to one GPU.
        shared_nodes: returns the nodes that every task with one of these GPUs needs, by the major
            numbers of this machine's drivers.
        health: returns each GPU's health; empty: unknown of this vendor's GPUs.
        uses: returns who uses GPUs; None: nothing tells that.
        reset: resets a GPU; None: that is not supported.
    """

    maker: Maker
    kernel_driver: str
    driver_source: str
    id_pattern: str
    grant: Grant
    look: Look
    is_integrated: collections.abc.Callable[[pathlib.Path, pci.Device], bool] = _is_integrated
    newer_driver: str = ""
    packaged_driver: bool = False
    lasting_ids: bool = False
    cuda: Cuda | None = None
    node_names: Names | None = None
    listener: collections.abc.Callable[[pathlib.Path], Listener] = _listener
    collector: collections.abc.Callable[[Cards, pathlib.Path, Tell], Collector] = _collector
    driver: collections.abc.Callable[[], Driver] = _driver
    own_nodes: collections.abc.Callable[[Gpu], tuple[Node, ...]] = _own_nodes
    shared_nodes: collections.abc.Callable[
        [collections.abc.Sequence[Gpu], collections.abc.Mapping[str, int]], tuple[Node, ...]
    ] = _shared_nodes
    health: collections.abc.Callable[[Uuids], collections.abc.Mapping[str, Health]] = _no_health
    uses: Uses | None = None
    reset: Reset | None = None

    @property
    def name(self) -> str:
        """Its name in options, tags and files, such as `nvidia`."""
        return self.maker.name

    @property
    def display(self) -> str:
        """Its name in a sentence, such as `NVIDIA`."""
        return self.maker.display
