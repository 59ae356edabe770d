# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whether steps run on this machine now: what a reboot would end."""

import contextlib
import pathlib
import time
import typing

from machine import files

# Where containerd's shims have a folder for each container of Concourse's namespace.
TASKS: typing.Final = pathlib.Path("/run/containerd/io.containerd.runtime.v2.task/concourse")

# In seconds: as long a container without a step may be one that is being made for it.
_BEGINNING: typing.Final = 60.0


def running(root: pathlib.Path = pathlib.Path("/")) -> tuple[str, ...]:
    """The containers in which a step or a session runs, or is about to begin.

    The first process of a container outlives its step by days. Each other has its number in a file
    beside that of the first (containerd 2.3.1 cmd/containerd-shim-runc-v2/process/exec.go).

    Raises:
        OSError: that can't be told.
    """
    folder = root / str(TASKS).lstrip("/")
    containers = files.entries(folder)
    return tuple(one.name for one in containers if _begins(one) or _has_step(one, root / "proc"))


def _begins(container: pathlib.Path) -> bool:
    """Whether it was just made; the folder itself changes with each process that begins in it."""
    for path in (container / "init.pid", container):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return time.time() - path.stat().st_mtime < _BEGINNING
    return False


def _has_step(container: pathlib.Path, proc: pathlib.Path) -> bool:
    numbers = (path for path in files.entries(container) if path.suffix == ".pid")
    return any(
        _is_inside(proc / (files.read_text(path) or "-"), container)
        for path in numbers
        if path.name != "init.pid"
    )


def _is_inside(process: pathlib.Path, container: pathlib.Path) -> bool:
    """Whether a process lives and is the container's: its number may be another's by now."""
    try:
        return f"/{container.name}" in (process / "cgroup").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
