# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""From one release of Concourse to another, and back where web or worker do not run on it."""

import collections.abc
import dataclasses
import logging
import typing

from ci.concourse import release
from ci.concourse.plan.model import ReleasePlan
from ci.concourse.upgrade import trial
from ci.concourse.upstream import works_with
from lifecycle import drain
from lifecycle import part_runner as attempts
from options.part import Part
from plan import plan
from plan.draining import Purpose
from plan.model import Plan
from plan.state import UnitState

Say = collections.abc.Callable[[str], None]

_log = logging.getLogger(__name__)

_LEFT: typing.Final = (
    "Concourse {version} was left again, since {why}; {before} runs. See journalctl -u "
    "concourse-web -u concourse-worker. It is tried anew after another concourse-version, "
    "resource or revision of the charm; juju config {application} concourse-version={before} ends "
    "this"
)


def ensure(state: UnitState, wanted: ReleasePlan, say: Say, *, drains: bool = True) -> UnitState:
    """Have the release of the plan, or the one that stands in for it; the state tells which.

    The worker is drained before another one takes the place of its own, where it `drains`.
    """
    trial.note_if_well()
    drained = ForRelease(state, say)
    arguments = (wanted, say, drained.is_time) if drains else (wanted, say)
    had, state = attempts.make(state, Part.RELEASE, release.ensure, *arguments)
    # Where it failed, the worker runs on with what it has.
    drained.settle()
    if had is None:
        return state
    return dataclasses.replace(
        state, installed=had.version, release_waits=had.waits, release_failed=had.failed
    )


def settle(
    state: UnitState,
    wanted: Plan,
    finish: collections.abc.Callable[[UnitState, Plan], UnitState],
    say: Say,
) -> UnitState:
    """Go back to the release before where web or worker do not run on a new one.

    That is not done where the one before would be of no use to the web that is served.

    Args:
        state: the unit's, after all was done for the new release.
        wanted: what was to be done.
        finish: does it; here once more, for the release before.
        say: told what takes long.
    """
    why = trial.judge(wanted, say)
    now, back = release.installed(), release.before()
    if not why or not wanted.release or now is None or back is None:
        return state
    if not all(works_with(back.version, web) for web in wanted.release.webs):
        return state
    say(f"Going back to Concourse {back.version}")
    text = _LEFT.format(
        version=now.version, why=why, before=back.version, application=state.application
    )
    trial.go_back(now, back, text, alone=state.planned_units == 1)
    state = ensure(state, wanted.release, say, drains=False)
    return finish(state, plan.make(state))


class ForRelease:
    """The drain for another release of Concourse, in one hook."""

    def __init__(self, state: UnitState, progress: drain.Progress) -> None:
        self._rules, self._progress = drain.rules(state), progress
        self._is_time: bool | None = None
        # Web gives nothing to a worker of another release, and takes nothing back from it.
        ours = state.installed
        self._is_cut_off = any(not works_with(ours, web) for web in state.tsa.versions if ours)

    def is_time(self, version: str) -> bool:
        """Whether the release may be switched to this version now."""
        try:
            then = f"Concourse {version}"
            self._is_time = self._is_cut_off or drain.ready(
                Purpose.RELEASE, then, self._rules, self._progress
            )
        except OSError as error:
            _log.warning("Concourse %s waits, as its drain can't be noted: %s", version, error)
            self._is_time = False
        return self._is_time

    def settle(self) -> None:
        """The release is as it can be in this hook."""
        if self._is_time:
            drain.finish(Purpose.RELEASE)
        elif self._is_time is None:
            drain.cancel(Purpose.RELEASE)
