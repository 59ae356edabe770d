# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Decide whether a self-test is due, and at which level."""

import datetime
import time
import typing

from gpu_selftest import results
from gpu_selftest.check import Level, Outcome, Result
from gpu_selftest.last_pass import Records

# The pause in seconds before a self-test is repeated that was incomplete because a job held a GPU,
# or that failed of something that a job may have caused, such as a full disk.
_TRY_AGAIN: typing.Final = 300


def due(subject: str, records: Records, *, repaired: bool) -> Level | None:
    """Return the level that is to be tested now; None if nothing is due.

    Args:
        subject: the subject of a test now.
        records: what earlier tests found.
        repaired: whether the charm has just repaired something.
    """
    last, proven = records.report(), records.kept()
    if last is None or last.subject != subject or not records.is_tested():
        return Level.ISOLATION
    whole = not last.gpu and last.level.includes(Level.ISOLATION)
    # A failed GPU stays out of use until the operator, or a change, triggers a new test.
    anew = repaired if whole and last.outcome != "passed" else proven != subject
    if anew:
        return Level.ISOLATION
    started = datetime.datetime.fromisoformat(last.started).timestamp()
    # By the wall clock, since a report outlives boots. The clock may have been set back.
    if 0 <= time.time() - started <= _TRY_AGAIN:
        return None
    if whole and _left_out(last):
        return Level.ISOLATION
    if not any(map(_may_be_over, last.results)):
        return None
    return Level.QUICK if proven == subject else Level.ISOLATION


def _may_be_over(result: Result) -> bool:
    """Return whether a job may have caused the failure and the quick level shows its end."""
    failed = result.outcome is Outcome.FAILED and not result.condemns
    return failed and result.level is Level.QUICK


def _left_out(report: results.Report) -> bool:
    """Return whether a report lacks checks of GPUs that did not fail, because a job had them."""
    failed = {result.gpu for result in filter(results.condemns, report.results)}
    not_run = {result.gpu for result in report.results if result.outcome is Outcome.NOT_RUN}
    if not failed or "" in failed:
        return bool(not_run) and not failed
    return not not_run <= failed | {""}
