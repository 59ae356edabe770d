# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Wake the charm after GPUs' device nodes have appeared or disappeared."""

import collections.abc
import contextlib
import logging
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


def follow(
    changes: inotify.Watch,
    wake: collections.abc.Callable[[], None],
    is_left: collections.abc.Callable[[], bool],
) -> None:
    """Wake the charm each time that the nodes differ from those it knows, one call at a time.

    The charm knows the nodes that it saw in its last hook. A change during a call leads to
    another call.

    Args:
        changes: changes of the names in /dev.
        wake: runs the charm, and returns when that is done.
        is_left: whether the charm is still installed; this ends if it is not.

    Raises:
        OSError: /dev can't be read.
    """
    changes.add(nodes.DEV)
    # At boot nothing is noted; Juju's first event looks at the nodes.
    told, patience = (nodes.present() if nodes.known() is None else None), 0.0
    while True:
        now = _settled(changes)
        if not is_left():
            break
        known = nodes.known()
        told = None if now == known else told  # nodes that the charm has seen may disappear again
        if now in (told, known):
            patience = 0.0
            _await_change(changes, _AGAIN if nodes.is_half_made() else None)
            continue
        _log.info("waking the charm: the GPUs' nodes are %s", " ".join(now) or "gone")
        try:
            wake()
            told, patience = now, 0.0
        except process.CommandError as error:
            patience = min(max(2 * patience, _AGAIN), _LONGEST)
            _log.warning("%s; again in %.0f s, or at the next change", error, patience)
        time.sleep(_APART)
        _await_change(changes, patience)
    _log.info("the charm is gone, ending")


def wake(unit: str) -> None:
    """Run the charm as at an update-status, through Juju and under the machine's lock.

    Raises:
        machine.process.CommandError: Juju did not run it, or the charm failed.
    """
    process.run(command(unit), timeout=HOOKS)


def command(unit: str) -> list[str]:
    """The command that runs this unit's charm."""
    return [_JUJU_EXEC, "-u", unit, _COMMAND]


def _settled(changes: inotify.Watch) -> tuple[str, ...]:
    """The nodes after none has changed for a while."""
    end = time.monotonic() + _AT_MOST
    while time.monotonic() < end:
        if not _await_change(changes, _QUIET) and not nodes.is_half_made():
            break
    for folder in nodes.FOLDERS:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            changes.add(folder)
    return nodes.present()


def _await_change(changes: inotify.Watch, seconds: float | None) -> bool:
    """Wait for a change of a possible node's name. Return True if one came."""
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            return False
        if any(map(nodes.may_be, changes.names(left))):
            return True
