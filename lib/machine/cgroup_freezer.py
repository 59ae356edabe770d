# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Control groups that stand still for a while, and a guard that lets them go on whatever happens.

Each is written down before it is frozen. The guard is a service of its own: it reads that list and
needs nothing of the program that froze, which may be killed at any point.
"""

import contextlib
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
# What freezes and thaws, by the file's name: of cgroup v1's freezer, and of v2.
_WORDS: typing.Final = {"freezer.state": ("FROZEN", "THAWED"), "cgroup.freeze": ("1", "0")}
_GUARD: typing.Final = """\
sleep "$1"
while read -r switch; do
  case "$switch" in */freezer.state) word=THAWED ;; *) word=0 ;; esac
  [ ! -e "$switch" ] || echo "$word" >"$switch" || true
done <"$2"
"""
# Seconds that a guard waits at least: one that ends at once is none for what is frozen after that.
_LEAST: typing.Final = 5.0
# What a control group that was removed meanwhile answers.
_GONE: typing.Final = (errno.ENOENT, errno.ENODEV)

_log = logging.getLogger(__name__)


def switch(
    pid: int, other: int, container: str, root: pathlib.Path = pathlib.Path("/")
) -> pathlib.Path | None:
    """The file by which a container's control group is frozen with two of its processes.

    They need not be in the same groups (gpu_runtime.cgroups), and v2's are frozen beside v1 too.

    Args:
        pid: the first one, which is in the container's own groups or has moved itself below them;
            its number may be another's.
        other: a step's, of which the same is true.
        container: its name, which its control group bears.
        root: of the file system.

    Returns:
        None where one of them is gone, or not the container's, or no such group has both.
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


class Freezer:
    """What is frozen by this program. Nothing is before `begin`, nor after `end`."""

    def __init__(self, held: float) -> None:
        """Args: held: after how many seconds, 5 at least, the guard thaws what is frozen."""
        self._held = max(held, _LEAST)
        self._frozen: set[pathlib.Path] = set()
        self._refused: set[pathlib.Path] = set()

    def begin(self) -> None:
        """Thaw what an earlier one that was killed has left, and have the guard.

        Raises:
            machine.process.CommandError: there is no guard, so nothing may be frozen.
        """
        thaw_left()
        services.ensure_stopped(GUARD)
        files.ensure_directory(_LIST.parent)
        files.ensure_file(_LIST, "")
        argv = ["/bin/sh", "-ec", _GUARD, "sh", f"{self._held:.1f}", str(_LIST)]
        description = f"Lets tasks go on that stand still ({time.monotonic_ns()})"
        transient.start(GUARD, argv, description=description, properties={})

    def freeze(self, path: pathlib.Path) -> bool:
        """Have a control group stand still. Return False where that can't be had."""
        if path in self._refused:
            return False
        with _LIST.open("a") as file:
            file.write(f"{path}\n")
        self._frozen.add(path)
        try:
            _write(path, _WORDS[path.name][0])
        except OSError as error:
            # Once: who asks does so fifty times a second, and each line is a process of Juju's.
            self._refused.add(path)
            _log.warning("%s can't be frozen: %s", path, error.strerror)
            return False
        return True

    def thaw(self, path: pathlib.Path) -> None:
        """Let a control group go on."""
        self._frozen.discard(path)
        _write(path, _WORDS[path.name][1])

    def end(self) -> None:
        """Let everything go on, and the guard go."""
        for path in (*self._frozen,):
            self.thaw(path)
        services.ensure_stopped(GUARD)
        files.ensure_absent(_LIST)


def thaw_left() -> None:
    """Let go on what a program has left frozen that was killed."""
    for line in (files.read_text(_LIST) or "").splitlines():
        path = pathlib.Path(line)
        if path.name in _WORDS:
            _write(path, _WORDS[path.name][1])


def _write(path: pathlib.Path, word: str) -> None:
    # Not by a buffered file, which would tell of an error only as it is closed; and nothing is
    # made where the group is gone.
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
