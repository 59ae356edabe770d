# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The steps that run on this machine now: what a reboot would end, and a restart must not."""

import collections.abc
import contextlib
import dataclasses
import pathlib
import time
import typing

from machine import files

# Where containerd's shims have a folder for each container of Concourse's namespace.
TASKS: typing.Final = pathlib.Path("/run/containerd/io.containerd.runtime.v2.task/concourse")
# What web calls the process of a step; a session has a name of its own (8.3.0
# atc/exec/task_step.go, atc/resource/resource.go).
PROCESSES: typing.Final = ("task", "resource")

# In seconds: as long a container without a step may be one that is being made for it.
_BEGINNING: typing.Final = 60.0
# In seconds: runc renames the file with the first process's number in the moment that it is made.
_AT_ONCE: typing.Final = 0.05


@dataclasses.dataclass(frozen=True)
class Container:
    """A container as its folder tells of it.

    Attributes:
        init: the number of its first process; 0 while it is made.
        step: the number of its step's process, which sessions have beside it; 0 without one.
        age: seconds since its folder or its first process was made.
        is_new: no process but the first has begun in it.
    """

    name: str
    init: int
    step: int
    age: float
    is_new: bool


def containers(root: pathlib.Path = pathlib.Path("/")) -> list[Container]:
    """The containers of this machine; of one that goes meanwhile, nothing.

    Raises:
        OSError: that can't be told.
    """
    found: list[Container] = []
    for folder in _folders(root):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found.append(_container(folder, root / "proc"))
    return found


def _folders(root: pathlib.Path) -> list[pathlib.Path]:
    """The folder of each container, but of those that containerd removes just now.

    It renames these before (2.3.1 core/runtime/v2/bundle.go, atomicDelete).
    """
    found = files.entries(root / str(TASKS).lstrip("/"))
    return [folder for folder in found if not folder.name.startswith(".")]


def _container(folder: pathlib.Path, proc: pathlib.Path) -> Container:
    changed = folder.stat().st_mtime
    init = int(files.read_text(folder / "init.pid") or 0)
    made = (folder / "init.pid").stat().st_mtime if init else changed
    # Each process that begins or ends has a file written, or removed, in its folder.
    is_new = changed - made < _AT_ONCE
    names = {f"{name}.pid" for name in PROCESSES}
    step = next(iter(_processes(folder, proc, names.__contains__)), 0)
    return Container(folder.name, init, step, time.time() - made, is_new)


def running(root: pathlib.Path = pathlib.Path("/")) -> tuple[str, ...]:
    """The containers in which a step or a session runs, or is about to begin.

    The first process of a container outlives its step by days. Each other has its number in a file
    beside that of the first (containerd 2.3.1 cmd/containerd-shim-runc-v2/process/exec.go).

    Raises:
        OSError: that can't be told.
    """
    found = _folders(root)
    return tuple(one.name for one in found if _begins(one) or _has_step(one, root / "proc"))


def _begins(container: pathlib.Path) -> bool:
    """Whether it was just made, and no step has begun in it that may have ended by now."""
    for path in (container / "init.pid", container):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            made = path.stat().st_mtime
            is_new = container.stat().st_mtime - made < _AT_ONCE
            return is_new and time.time() - made < _BEGINNING
    return False


def _has_step(container: pathlib.Path, proc: pathlib.Path) -> bool:
    return any(_processes(container, proc, lambda name: name != "init.pid"))


def _processes(
    container: pathlib.Path, proc: pathlib.Path, wanted: collections.abc.Callable[[str], bool]
) -> collections.abc.Iterator[int]:
    """The numbers of processes that live, by the names of their files."""
    for path in files.entries(container):
        if path.suffix == ".pid" and wanted(path.name):
            pid = files.read_text(path) or "-"
            if _is_inside(proc / pid, container):
                yield int(pid)


def _is_inside(process: pathlib.Path, container: pathlib.Path) -> bool:
    """Whether a process lives and is the container's: its number may be another's by now."""
    try:
        return f"/{container.name}" in (process / "cgroup").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
