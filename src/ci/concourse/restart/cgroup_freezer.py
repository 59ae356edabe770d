# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Freeze control groups for a while, with a guard that thaws them whatever happens.

Each group is written to a list before it is frozen. The guard is a service of its own: it reads
the list and needs nothing of the program that froze the groups, which may be killed at any point.
"""

import collections.abc
import contextlib
import dataclasses
import errno
import logging
import os
import pathlib
import time
import typing

from gpu_runtime import cgroups as groups
from machine import files
from machine import systemd as services
from machine import systemd_transient as transient

GUARD: typing.Final = "gpu-ci-thaw.service"

_LIST: typing.Final = pathlib.Path("/run/gpu-ci/frozen")
_CGROUPS: typing.Final = pathlib.Path("/sys/fs/cgroup")
# The value that freezes and the one that thaws, by the file's name: cgroup v1's freezer, and v2.
_WORDS: typing.Final = {"freezer.state": ("FROZEN", "THAWED"), "cgroup.freeze": ("1", "0")}
_GUARD: typing.Final = """\
sleep "$1"
while read -r switch; do
  case "$switch" in */freezer.state) word=THAWED ;; *) word=0 ;; esac
  [ ! -e "$switch" ] || echo "$word" >"$switch" || true
done <"$2"
"""
# A guard waits for so many seconds at least: one that ends at once does not guard later freezes.
_LEAST: typing.Final = 5.0
# Errors of a control group that was removed.
_GONE: typing.Final = (errno.ENOENT, errno.ENODEV)

_log = logging.getLogger(__name__)


def switch(
    pid: int, other: int, container: str, root: pathlib.Path = pathlib.Path("/")
) -> pathlib.Path | None:
    """Return the file that freezes a container's control group with two of its processes.

    The processes need not be in the same groups (gpu_runtime.cgroups). If v1 is mounted too, v2's
    group is frozen as well.

    Args:
        pid: the first process, which is in the container's groups or has moved itself below them;
            its number may have been reused.
        other: a step's process, for which the same holds.
        container: the container's name, which its control group has.
        root: the root of the file system.

    Returns:
        None if a process is gone or not the container's, or no such group has both.
    """
    top = str(root).rstrip("/")
    own, its = (groups.of(top, f"/proc/{process}")[0] for process in (pid, other))
    for hierarchy, place in own.items():
        path = groups.of_container(place, container)
        is_theirs = path and groups.is_below(its.get(hierarchy, ""), path)
        if is_theirs and "freezer" in hierarchy.split(","):
            return root / f"{_CGROUPS}/freezer{path}/freezer.state".lstrip("/")
        if is_theirs and hierarchy == groups.UNIFIED:
            for folder in groups.folders(top, {hierarchy: path}):
                own_switch = pathlib.Path(folder, "cgroup.freeze")
                if own_switch.exists():
                    return own_switch
    return None


@dataclasses.dataclass(frozen=True)
class Guard:
    """The service that thaws the groups on a list, whatever happens to this program.

    Attributes:
        list: the file with the switch of each group that may be frozen, a line each.
        start: starts a transient service.
        stop: stops a service, if it runs.
    """

    list: pathlib.Path = _LIST
    start: collections.abc.Callable[..., None] = transient.start
    stop: collections.abc.Callable[[str], bool] = services.ensure_stopped


class Freezer:
    """The groups that this program has frozen. There are none before `begin` and after `end`."""

    def __init__(self, held: float, guard: Guard = Guard()) -> None:
        """Begin with none.

        Args:
            held: after how many seconds, 5 at least, the guard thaws frozen groups.
            guard: the guard.
        """
        self._held, self._guard = max(held, _LEAST), guard
        self._frozen: set[pathlib.Path] = set()
        self._refused: set[pathlib.Path] = set()

    def begin(self) -> None:
        """Thaw what an earlier, killed program has left, and start the guard.

        Raises:
            machine.process.CommandError: the guard did not start, so nothing may be frozen.
        """
        self._thaw_left()
        self._guard.stop(GUARD)
        files.ensure_directory(self._guard.list.parent)
        files.ensure_file(self._guard.list, "")
        argv = ["/bin/sh", "-ec", _GUARD, "sh", f"{self._held:.1f}", str(self._guard.list)]
        description = f"Lets tasks go on that stand still ({time.monotonic_ns()})"
        self._guard.start(GUARD, argv, description=description, properties={})

    def freeze(self, path: pathlib.Path) -> bool:
        """Freeze a control group. Return False if that is not possible."""
        if path in self._refused:
            return False
        with self._guard.list.open("a") as file:
            file.write(f"{path}\n")
        self._frozen.add(path)
        try:
            _write(path, _WORDS[path.name][0])
        except OSError as error:
            # Once only: the caller tries fifty times a second, and each log line is a process.
            self._refused.add(path)
            _log.warning("%s can't be frozen: %s", path, error.strerror)
            return False
        return True

    def thaw(self, path: pathlib.Path) -> None:
        """Thaw a control group."""
        self._frozen.discard(path)
        _write(path, _WORDS[path.name][1])

    def end(self) -> None:
        """Thaw all groups and stop the guard."""
        for path in (*self._frozen,):
            self.thaw(path)
        self._guard.stop(GUARD)
        files.ensure_absent(self._guard.list)

    def _thaw_left(self) -> None:
        """Thaw the groups that a killed program left frozen."""
        for line in (files.read_text(self._guard.list) or "").splitlines():
            path = pathlib.Path(line)
            if path.name in _WORDS:
                _write(path, _WORDS[path.name][1])


def _write(path: pathlib.Path, word: str) -> None:
    # Unbuffered, since a buffered file would report an error only when it is closed. The file is
    # not made if the group is gone.
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except OSError as error:
        if error.errno in _GONE:
            return
        raise
    with contextlib.closing(os.fdopen(descriptor, "wb", buffering=0)) as file:
        try:
            file.write(word.encode())
        except OSError as error:
            if error.errno not in _GONE:
                raise
