# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Learn which Concourse job a container belongs to, if web runs on this machine.

A separate program asks web. Only that program knows the admin's password, and it is killed if it
takes too long. Other parts do not wait for it: unknown names are left out.
"""

import collections.abc
import contextlib
import logging
import pathlib
import sys
import typing

from ci.concourse.api import build_info as handles
from gpu_agent.model.decisions import Decision
from gpu_agent.model.observations import Moment
from gpu_agent.reporting.joblog import build_names
from gpu_agent.reporting.receipts.receipt import Names
from machine import process

# Seconds between two requests. Each costs web a tenth of a second for the password.
_APART: typing.Final = 10.0
_MOST_DOUBLED: typing.Final = (
    6  # times that this is doubled for a container that web does not know
)
_TOO_LONG: typing.Final = 20.0
_AT_ONCE: typing.Final = 32  # containers, as ci.concourse.api.build_info_program has it

_CODE: typing.Final = pathlib.Path(__file__).resolve().parents[4]
_PATH: typing.Final = f"{_CODE}/lib:{_CODE}/src"
_PROGRAM: typing.Final = (sys.executable, "-B", "-S", "-m", "ci.concourse.api.build_info_program")

_log = logging.getLogger(__name__)


class Naming:
    """The Concourse jobs of containers with a lease. `naming(container)` returns at once."""

    def __init__(
        self,
        program: collections.abc.Sequence[str] = _PROGRAM,
        settings: pathlib.Path = handles.SETTINGS,
    ) -> None:
        """Start without names.

        Args:
            program: the program that asks web; the containers' ids are appended.
            settings: settings of web on this machine; without the file web is not asked.
        """
        self._program, self._settings = program, settings
        self._known: dict[str, Names] = {}
        self._tries: dict[str, tuple[int, float]] = {}
        self._running = contextlib.ExitStack()
        self._child: process.Child | None = None
        self._begun = float("-inf")
        self._fault = ""

    def __call__(self, container: str) -> Names | None:
        """The names of a container's job; None while unknown."""
        return self._known.get(container)

    def turn(self, moment: Moment, _decisions: collections.abc.Sequence[Decision]) -> None:
        """Read the answer, and ask web for new containers."""
        if self._child is not None:
            self._take(self._child, moment.now)
        if moment.holdings is None:
            return
        held = {one.container for one in moment.holdings if not one.ours}
        self._known = {name: self._known[name] for name in self._known.keys() & held}
        self._tries = {name: self._tries[name] for name in self._tries.keys() & held}
        wanted = [
            name
            # Also for steps that have just ended: web and the store know them for a while.
            for name in sorted(held, key=lambda name: (self._tries.get(name, (0, 0.0)), name))
            if name not in self._known
            and handles.is_handle(name)
            and self._tries.get(name, (0, moment.now))[1] <= moment.now
        ]
        if wanted and self._child is None and moment.now - self._begun >= _APART:
            self._ask(wanted[:_AT_ONCE], moment.now)

    def close(self) -> None:
        """Kill the program, if it runs."""
        self._running.close()
        self._child = None

    def _ask(self, wanted: collections.abc.Sequence[str], now: float) -> None:
        if not self._settings.exists():
            return
        for name in wanted:
            tries = self._tries.get(name, (0, 0.0))[0] + 1
            self._tries[name] = tries, now + _APART * 2 ** min(tries, _MOST_DOUBLED)
        self._begun = now
        try:
            self._child = self._running.enter_context(
                process.beside([*self._program, *wanted], env={"PYTHONPATH": _PATH})
            )
        except (OSError, process.CommandError) as error:
            self._tell(str(error))

    def _take(self, child: process.Child, now: float) -> None:
        done = child.completed()
        if done is None and now - self._begun < _TOO_LONG:
            return
        self.close()
        if done is None:
            self._tell(f"no answer within {_TOO_LONG:g} s")
        elif done.returncode:
            self._tell(done.stderr.strip().rpartition("\n")[2] or "it failed")
        else:
            try:
                self._known.update(build_names.read(done.stdout))
                self._tell("")
            except build_names.AnswerError as error:
                self._tell(str(error))

    def _tell(self, fault: str) -> None:
        """Log why names are missing, once until the reason changes."""
        if fault and fault != self._fault:
            _log.warning("cannot learn the names of teams and pipelines: %s", fault)
        self._fault = fault
