# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Waits for GPUs' nodes to come and go, and wakes the charm once they have settled."""

import collections.abc
import contextlib
import logging
import time
import typing

from gpu_agent.gpu.kernel import device_nodes as nodes
from machine import inotify, process

# In seconds. A card comes with several nodes, a driver with all of its cards, and of several that
# are passed in one after the other each 0.4 later. What comes until the charm looks, about 1 after
# that, costs no wake of its own.
_QUIET: typing.Final = 0.5
_AT_MOST: typing.Final = 5.0
# How long the machine's other hooks have their turn, where nodes come and go all the time.
_APART: typing.Final = 5.0
# After a wake that failed, doubled for each further one: Juju's own events come meanwhile.
_AGAIN: typing.Final = 30.0
_LONGEST: typing.Final = 600.0

_JUJU_EXEC: typing.Final = "/usr/bin/juju-exec"
_COMMAND: typing.Final = "JUJU_DISPATCH_PATH=hooks/update-status ./dispatch"
HOOKS: typing.Final = 900.0
"""How long a call may take, in seconds: it waits for the hooks that are before it."""

_log = logging.getLogger(__name__)


def follow(
    changes: inotify.Watch,
    wake: collections.abc.Callable[[], None],
    is_left: collections.abc.Callable[[], bool],
) -> None:
    """Wake the charm each time that the nodes are others than it knows, one wake at a time.

    What it saw in a hook of Juju's own it knows. What changes during a wake leads to one more.

    Args:
        changes: of the names in /dev.
        wake: returns when the charm has looked at the machine.
        is_left: whether there is a charm to wake; this ends when there is none.

    Raises:
        OSError: /dev can't be looked at.
    """
    changes.add(nodes.DEV)
    # At boot nothing is noted: Juju's first event will look at what is here.
    told, patience = (nodes.present() if nodes.known() is None else None), 0.0
    while True:
        now = _settled(changes)
        if not is_left():
            break
        known = nodes.known()
        told = None if now == known else told  # what it has seen since, it may lose again
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
    _log.info("the charm is gone: nobody is left to wake")


def wake(unit: str) -> None:
    """Run the charm as at an update-status, by Juju and so under the machine's lock.

    Raises:
        machine.process.CommandError: Juju did not take it, or the charm failed.
    """
    process.run(command(unit), timeout=HOOKS)


def command(unit: str) -> list[str]:
    """What wakes this unit's charm."""
    return [_JUJU_EXEC, "-u", unit, _COMMAND]


def _settled(changes: inotify.Watch) -> tuple[str, ...]:
    """The nodes, once none has come or gone for a while."""
    end = time.monotonic() + _AT_MOST
    while time.monotonic() < end:
        if not _await_change(changes, _QUIET) and not nodes.is_half_made():
            break
    for folder in (nodes.DRI, nodes.CAPS):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            changes.add(folder)
    return nodes.present()


def _await_change(changes: inotify.Watch, seconds: float | None) -> bool:
    """Wait for a name that may be a node's. Return whether one came."""
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            return False
        if any(map(nodes.may_be, changes.names(left))):
            return True
