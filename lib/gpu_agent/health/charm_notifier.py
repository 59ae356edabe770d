# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Wake the charm when the tags or the status of the unit may have changed.

Juju runs the charm when no other hook runs on this machine. The GPU health service does not wait
for that: the call is a child process, checked at each turn.
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

# Seconds between two calls: all units of the machine share Juju's lock.
APART: typing.Final = 30.0
# Longest pause after failed calls, in seconds; each failure doubles it. Juju's events go on.
_LONGEST: typing.Final = 600.0

_log = logging.getLogger(__name__)


class Waker:
    """Runs the charm, at most once in 30 s."""

    def __init__(
        self,
        unit: str,
        note: pathlib.Path,
        beside: collections.abc.Callable[
            [list[str]], contextlib.AbstractContextManager[process.Child]
        ] = process.beside,
    ) -> None:
        """Continue with a call that an earlier process left undone.

        Args:
            unit: Juju's name of this unit.
            note: a file that exists while a call is due; its folder must exist.
            beside: starts a program beside this one, as machine.process.beside does.
        """
        self._argv, self._note, self._beside = watch.command(unit), note, beside
        self._is_wanted, self._begun, self._patience = note.exists(), float("-inf"), 0.0
        self._stack, self._child = contextlib.ExitStack(), None

    @property
    def is_waiting(self) -> bool:
        """Whether a call is due or running."""
        return self._is_wanted or self._child is not None

    def want(self) -> None:
        """Request a call of the charm.

        Raises:
            OSError: the note can't be written; the request is lost if the service is killed.
        """
        self._is_wanted = True
        files.ensure_file(self._note, "")

    def turn(self, moment: Moment, decisions: collections.abc.Sequence[Decision]) -> None:
        """Check the running call, and begin the one that is due.

        Raises:
            OSError: the note can't be removed.
        """
        del decisions  # the executor calls `want`
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
                self._child = self._stack.enter_context(self._beside(self._argv))
            except process.CommandError as error:
                self._fail(str(error))

    def close(self) -> None:
        """End the running call; the next process repeats it."""
        if self._child is not None:
            self._close()

    def _close(self) -> None:
        self._child = None
        self._stack.close()

    def _fail(self, why: str) -> None:
        self._patience = min(max(2 * self._patience, APART), _LONGEST)
        self._is_wanted = True
        _log.warning("cannot wake the charm: %s; trying again in %.0f s", why, self._patience)


class NoCharm:
    """Stands for the Waker on a machine without a charm: nothing is woken."""

    is_waiting = False

    def want(self) -> None:
        """Do nothing."""

    def turn(self, moment: Moment, decisions: collections.abc.Sequence[Decision]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
