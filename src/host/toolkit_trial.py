# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Another version of the container toolkit is on trial until containers have worked with it."""

import dataclasses
import pathlib
import typing

from gpu_agent.availability import quarantine
from gpu_agent.diagnosis import machine as facts
from gpu_agent.model import errors, versions
from gpu_selftest import results
from gpu_selftest.check import Level, Outcome, Progress
from gpu_selftest.results import Report
from host.nvidia_toolkit import NvidiaToolkit
from machine import packages
from plan.model import HostPlan, Plan, ToolkitPlan
from plan.state import UnitState

_SECOND: typing.Final = len("2026-11-21T17:00:00")


def end(
    state: UnitState,
    wanted: Plan,
    subject: str,
    progress: Progress,
    toolkit: NvidiaToolkit,
    reports: pathlib.Path,
) -> UnitState:
    """Keep the toolkit that is on trial, or go back to the one before.

    Without a verdict the trial goes on, unless the toolkit does not even print its version.

    Args:
        state: what was found, the toolkit's version before among it.
        wanted: the plan for this unit.
        subject: the subject that a report must have to count.
        progress: reports steps that take long.
        toolkit: the machine's toolkit.
        reports: the folder of the self-test's reports.

    Returns:
        The same where it has not gone back, else with the toolkit that is here now.

    Raises:
        machine.packages.PackageError: it can't go back now; the next hook tries again.
    """
    planned = wanted.host.toolkit if isinstance(wanted.host, HostPlan) else None
    before = state.packaged.previous
    if not before or not isinstance(planned, ToolkitPlan):
        return state
    if planned.version != state.packaged.version:  # which could not be had
        return state
    report = results.read(home=reports) if _starts(state) else None
    if _starts(state):
        if report is None or report.subject != subject or not _is_whole(report):
            return state
        if not _is_to_blame(report):
            if report.outcome == "passed":
                toolkit.keep()
            return state
    progress(f"No container worked with container toolkit {planned.version}: back to {before}")
    toolkit.roll_back(planned, before, progress)
    if report:
        _give_back(report)
    try:
        return dataclasses.replace(state, machine=facts.machine(), packaged=toolkit.look())
    except errors.UnknownError as error:
        raise packages.PackageError(str(error), passes=True) from error


def _starts(state: UnitState) -> bool:
    """Whether the installed toolkit prints its version; else nothing can be tested with it."""
    found = state.machine.toolkit
    return found is not None and bool(versions.numbers(found.version))


def _is_whole(report: Report) -> bool:
    return report.level.includes(Level.ISOLATION)


def _is_to_blame(report: Report) -> bool:
    """Whether containers failed on GPUs that are well."""
    sick = _failed(report, Level.QUICK)
    return bool(_failed(report, Level.ISOLATION) - sick) and "" not in sick


def _failed(report: Report, level: Level) -> set[str]:
    """The ids of the GPUs that failed at a level; empty for what concerns all."""
    failed = (one for one in report.results if one.outcome is Outcome.FAILED)
    return {one.gpu for one in failed if one.level is level}


def _give_back(report: Report) -> None:
    """End the quarantine of GPUs for which the toolkit that is gone is to blame.

    Where a job has a GPU, the next test can't prove all of isolation, and would leave them there.
    """
    sick = _failed(report, Level.QUICK)
    for entry in quarantine.read():
        # What was out before stays out. Both are in UTC.
        new = entry.since[:_SECOND] >= report.started[:_SECOND]
        if new and entry.by == quarantine.SELF_TEST and entry.uuid not in sick:
            quarantine.lift(entry.uuid)
