# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""From one release of Concourse to another, and back where web or worker do not run on it."""

import collections.abc
import dataclasses
import typing

import attempts
import drain
from ci.concourse import release, trial
from ci.concourse.upstream import works_with
from plan import plan
from plan.options import Part
from plan.parts import Plan, ReleasePlan
from plan.state import UnitState

Say = collections.abc.Callable[[str], None]

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
    drained = drain.ForRelease(state, say)
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
