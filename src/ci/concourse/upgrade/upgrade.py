# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Changes the Concourse release, and rolls back if web or worker do not run on the new one."""

import collections.abc
import logging

from ci.concourse import release
from ci.concourse.plan import messages
from ci.concourse.plan.model import ReleasePlan, found, noted, planned
from ci.concourse.release import Release
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
IsTime = collections.abc.Callable[[str], bool]

_log = logging.getLogger(__name__)


class Releases:
    """The releases of Concourse on this machine."""

    def ensure(self, wanted: ReleasePlan, say: Say, is_time: IsTime) -> Release:
        """Install the release of a plan, or keep the one that must be used instead.

        Args:
            wanted: the plan.
            say: reports steps that take long.
            is_time: whether the release may be switched to a version now.

        Raises:
            ci.concourse.release.ReleaseError, machine.download.DownloadError: it cannot be had.
        """
        return release.ensure(wanted, say, is_time)

    def installed(self) -> Release | None:
        """Return the release that web and worker run from."""
        return release.installed()

    def before(self) -> Release | None:
        """Return the release that they ran from before."""
        return release.before()

    def note_if_well(self) -> None:
        """Take the release that runs here for a good one if an earlier charm did not note it."""
        trial.note_if_well()

    def judge(self, plan: Plan, say: Say) -> str:
        """Wait for what was started on a new release; return why it failed, or an empty text."""
        return trial.judge(plan, say)

    def go_back(self, now: Release, back: Release, why: str, *, alone: bool) -> None:
        """Have `ensure` go back from a release to the one before."""
        trial.go_back(now, back, why, alone=alone)


def ensure(
    state: UnitState,
    drainer: Drainer,
    releases: Releases,
    wanted: ReleasePlan,
    say: Say,
    *,
    drains: bool = True,
) -> UnitState:
    """Install the release of the plan, or keep the one that must be used instead.

    The worker is drained before its release changes, unless `drains` is False.
    """
    releases.note_if_well()
    drained = ForRelease(state, drainer, say)
    is_time = drained.is_time if drains else _at_once
    had, state = attempts.make(state, Part.RELEASE, releases.ensure, wanted, say, is_time)
    # If it failed, the worker keeps its release.
    drained.settle()
    if had is None:
        return state
    return noted(state, installed=had.version, waits=had.waits, failed=had.failed)


def roll_back_if_failed(
    state: UnitState, drainer: Drainer, releases: Releases, wanted: Plan, say: Say
) -> UnitState:
    """Roll back to the previous release if web or worker do not run on the new one.

    A worker stays on the new one if its web does not schedule on the previous one.

    Args:
        state: the unit's, after its services were started on the new release.
        drainer: drains the unit.
        releases: the releases of Concourse on this machine.
        wanted: what was to be done.
        say: reports steps that take long.

    Returns:
        The same state if nothing was rolled back. Else the services are to be started again.
    """
    why = releases.judge(wanted, say)
    now, back = releases.installed(), releases.before()
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
    releases.go_back(now, back, text, alone=state.planned_units == 1)
    return ensure(state, drainer, releases, release_plan, say, drains=False)


def _at_once(_version: str) -> bool:
    return True


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
