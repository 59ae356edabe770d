# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Wakes the charm when what it tells of the GPUs has changed: tags and status.

Juju gives the charm a turn when no other hook on this machine runs. Nobody waits for that: the
call is a child of the watch, which is looked after turn by turn.
"""

import collections.abc
import contextlib
import logging
import pathlib
import typing

from gpu_agent.model.decisions import Decision
from gpu_agent.model.observations import Moment
from gpu_agent.reporting.notifier import device_watch as watch
from machine import files, process

# In seconds: Juju's lock on the machine is everybody's.
APART: typing.Final = 30.0
# After a call that failed, doubled for each further one: Juju's own events come meanwhile.
_LONGEST: typing.Final = 600.0

_log = logging.getLogger(__name__)


class Waker:
    """Has the charm look at the machine, at most once in 30 s."""

    def __init__(self, unit: str, note: pathlib.Path) -> None:
        """Go on with what an earlier process has left untold.

        Args:
            unit: Juju's name of this unit.
            note: a file that is there as long as something is untold; its folder must exist.
        """
        self._argv, self._note = watch.command(unit), note
        self._is_wanted, self._begun, self._patience = note.exists(), float("-inf"), 0.0
        self._stack, self._child = contextlib.ExitStack(), None

    @property
    def is_waiting(self) -> bool:
        """Whether there is anything to do at a later turn."""
        return self._is_wanted or self._child is not None

    def want(self) -> None:
        """Have the charm woken as soon as it may be.

        Raises:
            OSError: it can't be noted, and is forgotten if the watch is killed meanwhile.
        """
        self._is_wanted = True
        files.ensure_file(self._note, "")

    def turn(self, moment: Moment, decisions: collections.abc.Sequence[Decision]) -> None:
        """Look after the call that runs, and begin the one that is due.

        Raises:
            OSError: that it is told can't be noted.
        """
        del decisions  # whoever has carried one out says so
        now = moment.now
        if self._child is not None:
            done = self._child.completed()
            if done is None and now - self._begun < watch.HOOKS:
                return
            self._close()
            if done is None or done.returncode:
                self._fail(f"{self._argv[0]} {done.stderr.strip() if done else 'took too long'}")
            else:
                self._patience = 0.0
        if not self._is_wanted:
            files.ensure_absent(self._note)
        elif now - self._begun >= max(APART, self._patience):
            self._begun, self._is_wanted = now, False
            try:
                self._child = self._stack.enter_context(process.beside(self._argv))
            except process.CommandError as error:
                self._fail(str(error))

    def close(self) -> None:
        """End the call that runs; whoever comes next makes it again."""
        if self._child is not None:
            self._close()

    def _close(self) -> None:
        self._child = None
        self._stack.close()

    def _fail(self, why: str) -> None:
        self._patience = min(max(2 * self._patience, APART), _LONGEST)
        self._is_wanted = True
        _log.warning("the charm was not woken: %s; again in %.0f s", why, self._patience)
