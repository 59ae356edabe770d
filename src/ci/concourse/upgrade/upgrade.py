# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Changes the Concourse release, and rolls back if web or worker do not run on the new one."""

import collections.abc
import logging

from ci.concourse import release
from ci.concourse.plan import messages
from ci.concourse.plan.model import ReleasePlan, found, noted, planned
from ci.concourse.upgrade import trial
from ci.concourse.upstream import works_with
from lifecycle import drain
from lifecycle import part_runner as attempts
from lifecycle.drain import Drainer
from options.part import Part
from plan.draining import Purpose
from plan.model import Plan
from plan.state import UnitState

Say = collections.abc.Callable[[str], None]

_log = logging.getLogger(__name__)


def ensure(
    state: UnitState, drainer: Drainer, wanted: ReleasePlan, say: Say, *, drains: bool = True
) -> UnitState:
    """Install the release of the plan, or keep the one that must be used instead.

    The worker is drained before its release changes, unless `drains` is False.
    """
    trial.note_if_well()
    drained = ForRelease(state, drainer, say)
    arguments = (wanted, say, drained.is_time) if drains else (wanted, say)
    had, state = attempts.make(state, Part.RELEASE, release.ensure, *arguments)
    # If it failed, the worker keeps its release.
    drained.settle()
    if had is None:
        return state
    return noted(state, installed=had.version, waits=had.waits, failed=had.failed)


def roll_back_if_failed(state: UnitState, drainer: Drainer, wanted: Plan, say: Say) -> UnitState:
    """Roll back to the previous release if web or worker do not run on the new one.

    A worker stays on the new one if its web does not schedule on the previous one.

    Args:
        state: the unit's, after its services were started on the new release.
        drainer: drains the unit.
        wanted: what was to be done.
        say: reports steps that take long.

    Returns:
        The same state if nothing was rolled back. Else the services are to be started again.
    """
    why = trial.judge(wanted, say)
    now, back = release.installed(), release.before()
    release_plan = planned(wanted).release
    if not why or not release_plan or now is None or back is None:
        return state
    if not all(works_with(back.version, web) for web in release_plan.webs):
        return state
    say(f"Going back to Concourse {back.version}")
    text = messages.text(
        "release-rolled-back",
        version=now.version,
        why=why,
        before=back.version,
        application=state.application,
    )
    trial.go_back(now, back, text, alone=state.planned_units == 1)
    return ensure(state, drainer, release_plan, say, drains=False)


class ForRelease:
    """The drain for another release of Concourse, in one hook."""

    def __init__(self, state: UnitState, drainer: Drainer, progress: drain.Progress) -> None:
        self._drainer = drainer
        self._rules, self._progress = drain.rules(state), progress
        self._is_time: bool | None = None
        # Web has no exchange with a worker of another release, so there is nothing to drain.
        ours = found(state).installed
        self._is_cut_off = any(
            not works_with(ours, web) for web in found(state).tsa.versions if ours
        )

    def is_time(self, version: str) -> bool:
        """Whether the release may be switched to this version now."""
        try:
            then = f"Concourse {version}"
            self._is_time = self._is_cut_off or self._drainer.ready(
                Purpose.RELEASE, then, self._rules, self._progress
            )
        except OSError as error:
            _log.warning("Concourse %s waits, as its drain can't be noted: %s", version, error)
            self._is_time = False
        return self._is_time

    def settle(self) -> None:
        """The release is as it can be in this hook."""
        if self._is_time:
            self._drainer.finish(Purpose.RELEASE)
        elif self._is_time is None:
            self._drainer.cancel(Purpose.RELEASE)
