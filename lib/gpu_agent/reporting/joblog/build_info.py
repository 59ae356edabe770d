# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Learn which job of the CI system a container belongs to, if a program here can tell.

The program is the CI system's. Only that program knows credentials, and it is killed if it takes
too long. Other parts do not wait for it: unknown names are left out.
"""

import collections.abc
import contextlib
import logging
import pathlib
import sys
import typing

from gpu_agent.model.decisions import Decision
from gpu_agent.model.observations import Moment
from gpu_agent.reporting.joblog import build_names
from gpu_agent.reporting.receipts.receipt import Names
from machine import process

# Seconds between two requests. Each can cost the CI system a tenth of a second.
_APART: typing.Final = 10.0
# Times that this is doubled for a container that the program does not know.
_MOST_DOUBLED: typing.Final = 6
_TOO_LONG: typing.Final = 20.0
_AT_ONCE: typing.Final = 32  # containers; each is an argument

_CODE: typing.Final = pathlib.Path(__file__).resolve().parents[4]
_PATH: typing.Final = f"{_CODE}/lib:{_CODE}/src"

_log = logging.getLogger(__name__)


class Naming:
    """The jobs of containers with a lease. `naming(container)` returns at once."""

    def __init__(self, program: collections.abc.Sequence[str]) -> None:
        """Start without names.

        Args:
            program: arguments of Python that start the program; the containers' ids are appended.
                Empty: names stay unknown.
        """
        self._program = (sys.executable, "-B", *program) if program else ()
        self._known: dict[str, Names] = {}
        # By the container, and whose it is: a runner gets a job after it got its GPUs.
        self._tries: dict[tuple[str, str], tuple[int, float]] = {}
        self._running = contextlib.ExitStack()
        self._child: process.Child | None = None
        self._begun = float("-inf")
        self._fault = ""

    def __call__(self, container: str) -> Names | None:
        """The names of a container's job; None while unknown."""
        return self._known.get(container)

    def turn(self, moment: Moment, _decisions: collections.abc.Sequence[Decision]) -> None:
        """Read the answer, and ask for new containers."""
        if self._child is not None:
            self._take(self._child, moment.now)
        if moment.holdings is None:
            return
        held = {(one.container, one.who) for one in moment.holdings if not one.ours}
        names = {name for name, _ in held}
        self._known = {name: self._known[name] for name in self._known.keys() & names}
        self._tries = {one: self._tries[one] for one in self._tries.keys() & held}
        wanted = [
            one
            # Also for steps that have just ended: the CI system knows them for a while.
            for one in sorted(held, key=lambda one: (self._tries.get(one, (0, 0.0)), one))
            if one[0] not in self._known
            and build_names.is_id(one[0])
            and self._tries.get(one, (0, moment.now))[1] <= moment.now
        ]
        is_time = self._child is None and moment.now - self._begun >= _APART
        if wanted and self._program and is_time:
            self._ask(wanted[:_AT_ONCE], moment.now)

    def close(self) -> None:
        """Kill the program, if it runs."""
        self._running.close()
        self._child = None

    def _ask(self, wanted: collections.abc.Sequence[tuple[str, str]], now: float) -> None:
        for one in wanted:
            tries = self._tries.get(one, (0, 0.0))[0] + 1
            self._tries[one] = tries, now + _APART * 2 ** min(tries, _MOST_DOUBLED)
        self._begun = now
        try:
            self._child = self._running.enter_context(
                process.beside(
                    [*self._program, *(name for name, _ in wanted)], env={"PYTHONPATH": _PATH}
                )
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
