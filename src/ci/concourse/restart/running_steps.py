# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The steps that run on this machine now: what a reboot would end, and a restart must not."""

import collections.abc
import contextlib
import dataclasses
import math
import pathlib
import time
import typing

from gpu_runtime.holder_usage import Host
from machine import files
from machine import procfs as outside

# Where containerd's shims have a folder for each container of Concourse's namespace.
TASKS: typing.Final = pathlib.Path("/run/containerd/io.containerd.runtime.v2.task/concourse")
# What web calls the process of a step; a session has a name of its own (8.3.0
# atc/exec/task_step.go, atc/resource/resource.go).
PROCESSES: typing.Final = ("task", "resource")

# Seconds for which a container without a step may still be waiting for its step.
_BEGINNING: typing.Final = 60.0
# In seconds: a shim runs the runtime within tenths of one. If neither it nor its container has a
# process by then, it was left by a containerd that was killed: it stays, and makes nothing.
_IDLE: typing.Final = 10.0
# In seconds: runc renames the file with the first process's number in the moment that it is made.
_AT_ONCE: typing.Final = 0.05


@dataclasses.dataclass(frozen=True)
class Container:
    """A container as described by its folder.

    Attributes:
        init: the number of its first process; 0 while it is made.
        step: the number of its step's process, which sessions have beside it; 0 without one.
        age: seconds since its making began, or its first process; infinite where nothing makes it,
            or that has ended. By boot time, so that no change of the clock touches it.
        is_new: no process but the first has begun in it.
        in_use: whether a step or a session runs in it.
    """

    name: str
    init: int
    step: int
    age: float
    is_new: bool
    in_use: bool


def containers(root: pathlib.Path = pathlib.Path("/")) -> list[Container]:
    """The containers of this machine; of one that goes meanwhile, nothing.

    Raises:
        OSError: the folders cannot be read.
    """
    return [*_containers(str(root).rstrip("/"))]


def _containers(root: str) -> collections.abc.Iterator[Container]:
    host, makers = Host(root), dict[str, float]()
    # containerd renames a folder before it removes it (2.3.1 core/runtime/v2/bundle.go,
    # atomicDelete).
    found = files.entries(pathlib.Path(f"{root}{TASKS}"))
    folders = [folder for folder in found if not folder.name.startswith(".")]
    if not all((folder / "init.pid").exists() for folder in folders):
        makers = _makers(pathlib.Path(f"{root}/proc"), host)
    for folder in folders:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            yield _container(folder, host, makers.get(folder.name))


def _container(folder: pathlib.Path, host: Host, making: float | None) -> Container:
    changed = folder.stat().st_mtime
    init = int(files.read_text(folder / "init.pid") or 0)
    made = (folder / "init.pid").stat().st_mtime if init else changed
    if init:
        age = host.age(init)
    elif making is not None:
        age = making
    else:
        # Its maker is to come: its age is that of a file, by the wall clock as the file's time is.
        # One from the future is older than the last change of that clock.
        age = time.time() - changed
        age = age if 0 < age < _IDLE else math.inf
    # Each process that begins or ends has a file written, or removed, in its folder.
    is_new = abs(changed - made) < _AT_ONCE
    bundle = str(TASKS / folder.name)
    pids = {
        path.stem: int(files.read_text(path) or 0)
        for path in files.entries(folder)
        if path.suffix == ".pid" and path.name != "init.pid"
    }
    living = [name for name, pid in pids.items() if host.is_in(pid, folder.name, bundle)]
    step = next((pids[name] for name in living if name in PROCESSES), 0)
    return Container(folder.name, init, step, age, is_new, bool(living))


def _makers(proc: pathlib.Path, host: Host) -> dict[str, float]:
    """For how many seconds shims have made their containers; infinite where one is idle.

    Each keeps its container afterwards (containerd 2.3.1 pkg/shim/shim.go), and is the parent of
    the runtime that makes it.
    """
    shims, parents = dict[str, int](), set[int]()
    for process in files.entries(proc):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, ProcessLookupError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if not process.name.isdecimal():
                continue
            parents.add(outside.parent(int(process.name), proc))
            if b"/containerd-shim" in words[0] and b"-id" in words:
                shims[words[words.index(b"-id") + 1].decode(errors="replace")] = int(process.name)
    ages = {name: (host.age(pid), pid) for name, pid in shims.items()}
    return {
        name: age if age < _IDLE or pid in parents else math.inf
        for name, (age, pid) in ages.items()
    }


def running(root: pathlib.Path = pathlib.Path("/")) -> tuple[str, ...]:
    """The containers in which a step or a session runs, or is about to begin.

    The first process of a container outlives its step by days. Each other has its number in a file
    beside that of the first (containerd 2.3.1 cmd/containerd-shim-runc-v2/process/exec.go).

    Raises:
        OSError: the folders cannot be read.
    """
    begins = _BEGINNING
    return tuple(
        one.name for one in containers(root) if one.in_use or (one.is_new and one.age < begins)
    )
