# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Wake the charm after GPUs' device nodes have appeared or disappeared."""

import collections.abc
import contextlib
import dataclasses
import logging
import pathlib
import time
import typing

from gpu_agent.gpu.vendors import device_nodes as nodes
from machine import inotify, process

# In seconds. A card has several nodes, a driver several cards, and cards that are passed in one
# after the other come 0.4 apart. The charm looks about 1 after that; nodes that come before need
# no further call.
_QUIET: typing.Final = 0.5
_AT_MOST: typing.Final = 5.0
# Pause between calls in seconds, so that other hooks can run if nodes change all the time.
_APART: typing.Final = 5.0
# Pause after a failed call in seconds, doubled for each further one; Juju's events go on.
_AGAIN: typing.Final = 30.0
_LONGEST: typing.Final = 600.0

_JUJU_EXEC: typing.Final = "/usr/bin/juju-exec"
_COMMAND: typing.Final = "JUJU_DISPATCH_PATH=hooks/update-status ./dispatch"
HOOKS: typing.Final = 900.0
"""Longest time of a call in seconds: it waits for the hooks before it."""

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class DeviceWatch:
    """Watches the nodes.

    Attributes:
        changes: tells changes of the names in folders.
        dev: the folder with the nodes.
        note: file with the nodes that the charm knows.
        clock: returns seconds.
        sleep: sleeps for so many seconds.
    """

    changes: inotify.Watch
    dev: pathlib.Path = nodes.DEV
    note: pathlib.Path = nodes.NOTE
    clock: collections.abc.Callable[[], float] = time.monotonic
    sleep: collections.abc.Callable[[float], None] = time.sleep

    def follow(
        self, wake: collections.abc.Callable[[], None], is_left: collections.abc.Callable[[], bool]
    ) -> None:
        """Wake the charm each time that the nodes differ from those it knows, one call at a time.

        The charm knows the nodes that it saw in its last hook. A change during a call leads to
        another call.

        Args:
            wake: runs the charm, and returns when that is done.
            is_left: whether the charm is still installed; this ends if it is not.

        Raises:
            OSError: the nodes can't be read.
        """
        self.changes.add(self.dev)
        # At boot nothing is noted; Juju's first event looks at the nodes.
        told = nodes.present(self.dev) if nodes.known(self.note) is None else None
        patience = 0.0
        while True:
            now = self._settled()
            if not is_left():
                break
            known = nodes.known(self.note)
            told = None if now == known else told  # nodes that the charm has seen may disappear
            if now in (told, known):
                patience = 0.0
                self._await_change(_AGAIN if nodes.is_half_made(self.dev) else None)
                continue
            _log.info("waking the charm: the GPUs' nodes are %s", " ".join(now) or "gone")
            try:
                wake()
                told, patience = now, 0.0
            except process.CommandError as error:
                patience = min(max(2 * patience, _AGAIN), _LONGEST)
                _log.warning("%s; again in %.0f s, or at the next change", error, patience)
            self.sleep(_APART)
            self._await_change(patience)
        _log.info("the charm is gone, ending")

    def _settled(self) -> tuple[str, ...]:
        """The nodes after none has changed for a while."""
        end = self.clock() + _AT_MOST
        while self.clock() < end:
            if not self._await_change(_QUIET) and not nodes.is_half_made(self.dev):
                break
        for folder in nodes.folders(self.dev):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self.changes.add(folder)
        return nodes.present(self.dev)

    def _await_change(self, seconds: float | None) -> bool:
        """Wait for a change of a possible node's name. Return True if one came."""
        end = None if seconds is None else self.clock() + seconds
        while True:
            left = None if end is None else end - self.clock()
            if left is not None and left <= 0:
                return False
            if any(map(nodes.may_be, self.changes.names(left))):
                return True


def wake(unit: str) -> None:
    """Run the charm as at an update-status, through Juju and under the machine's lock.

    Raises:
        machine.process.CommandError: Juju did not run it, or the charm failed.
    """
    process.run(command(unit), timeout=HOOKS)


def command(unit: str) -> list[str]:
    """The command that runs this unit's charm."""
    return [_JUJU_EXEC, "-u", unit, _COMMAND]
