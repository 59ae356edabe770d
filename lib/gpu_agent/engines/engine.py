# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Types: a container engine, the plan for all engines, and their error."""

import collections.abc
import dataclasses
import typing

from machine.errors import PartError


class EngineError(PartError):
    """The runtime cannot be registered with an engine; the text has the reason and the remedy."""


class Ensure(typing.Protocol):
    """Registers the runtime with an engine."""

    def __call__(self, *, default: bool) -> bool:
        """Return True if anything was changed.

        Args:
            default: whether containers that name no runtime get this one.

        Raises:
            EngineError: the engine cannot get it.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Engine:
    """A container engine that can get the runtime.

    Attributes:
        name: its name in the option container-engines.
        ensure: registers the runtime.
        remove: removes it; returns True if the engine had it.
        is_in_use: whether a container lives that the engine started with the runtime at this path.
        leave_socket: leaves containerd's socket to the CI system, before `ensure`; returns True if
            anything was changed. `remove` takes it back.
        about: one sentence on what that changes, for the option's text; or empty.
    """

    name: str
    ensure: Ensure
    remove: collections.abc.Callable[[], bool]
    is_in_use: collections.abc.Callable[[str], bool]
    leave_socket: collections.abc.Callable[[], bool] = lambda: False
    about: str = ""


@dataclasses.dataclass(frozen=True)
class EnginesPlan:
    """The engines that get the runtime, so that their containers can have GPUs.

    Attributes:
        names: their names.
        default: the engines whose containers get our runtime if they name none.
        nvidia: whether NVIDIA's runtime adds the GPUs to containers.
        runc: absolute path of the CI system's runc, for a machine without its own; or empty.
        socket_taken: whether the CI system needs containerd's socket. If it no longer does, an
            engine that left it keeps its own until it is removed: running containers stay in use.
    """

    names: tuple[str, ...]
    default: tuple[str, ...] = ()
    nvidia: bool = True
    runc: str = ""
    socket_taken: bool = False
