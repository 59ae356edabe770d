# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Another version of the container toolkit is on trial until containers have worked with it."""

import dataclasses

from host import facts, toolkit
from machine import packages
from oci import quarantine
from plan import versions
from plan.parts import HostPlan, Plan, ToolkitPlan
from plan.state import UnitState
from selftest import results
from selftest.check import Level, Outcome, Progress
from selftest.results import Report


def end(state: UnitState, wanted: Plan, subject: str, progress: Progress) -> UnitState:
    """Keep the toolkit that is on trial, or go back to the one before.

    Without a verdict on it the trial goes on, unless it does not even tell its version.

    Args:
        state: what was found, the toolkit's version before among it.
        wanted: which toolkit there is to be.
        subject: what a report must be about to tell of it.
        progress: told what is done.

    Returns:
        The same where it has not gone back, else with the toolkit that is here now.

    Raises:
        machine.packages.PackageError: it can't go back now; the next hook tries again.
    """
    planned = wanted.host.toolkit if isinstance(wanted.host, HostPlan) else None
    before, report = state.packaged.previous, results.read()
    if not before or not isinstance(planned, ToolkitPlan):
        return state
    if planned.version != state.packaged.version:  # which could not be had
        return state
    if starts(state):
        if report is None or report.subject != subject:
            return state
        if not report.level.includes(Level.ISOLATION):
            return state
        if not _is_to_blame(report):
            if report.outcome == "passed":
                toolkit.keep()
            return state
    progress(f"No container worked with container toolkit {planned.version}: back to {before}")
    toolkit.roll_back(planned, before, progress)
    _give_back(state, report)
    try:
        return dataclasses.replace(state, machine=facts.machine(), packaged=toolkit.look())
    except facts.UnknownError as error:
        raise packages.PackageError(str(error), passes=True) from error


def starts(state: UnitState) -> bool:
    """Whether the toolkit that is here tells its version: else nothing can be tested with it."""
    found = state.machine.toolkit
    return found is not None and bool(versions.numbers(found.version))


def _is_to_blame(report: Report) -> bool:
    """Whether containers failed on GPUs that are well."""
    sick = _failed(report, Level.QUICK)
    return bool(_failed(report, Level.ISOLATION) - sick) and "" not in sick


def _failed(report: Report | None, level: Level) -> set[str]:
    """The ids of the GPUs that failed at a level; empty for what concerns all."""
    found = report.results if report else ()
    return {one.gpu for one in found if one.level is level and one.outcome is Outcome.FAILED}


def _give_back(state: UnitState, report: Report | None) -> None:
    """End the quarantine of GPUs for which the toolkit that is gone is to blame.

    Where a job has a GPU, the next test can't prove all of isolation, and would leave them there.
    """
    others = {entry.uuid for entry in state.quarantined} | _failed(report, Level.QUICK)
    for entry in quarantine.read():
        if entry.by == quarantine.SELF_TEST and entry.uuid not in others:
            quarantine.lift(entry.uuid)
