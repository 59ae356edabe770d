# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Decides whether a self-test is due, and of which level."""

import datetime
import time
import typing

from gpu_selftest import last_pass, results
from gpu_selftest.check import Level, Outcome, Result

# How often one is tried again, in seconds, that was incomplete, since a job held a GPU, or that
# failed of what a job may have brought about, such as a full disk.
_TRY_AGAIN: typing.Final = 300


def due(subject: str, *, repaired: bool) -> Level | None:
    """Which level is to be tested now; None if nothing is due."""
    last = results.read()
    if last is None or last.subject != subject or not last_pass.is_tested():
        return Level.ISOLATION
    whole = not last.gpu and last.level.includes(Level.ISOLATION)
    # What failed stays out of use until the operator, or a change, has it tested again.
    anew = repaired if whole and last.outcome != "passed" else last_pass.kept() != subject
    if anew:
        return Level.ISOLATION
    started = datetime.datetime.fromisoformat(last.started).timestamp()
    # By the wall clock, as a report lasts over boots. It may have been set back.
    if 0 <= time.time() - started <= _TRY_AGAIN:
        return None
    if whole and _left_out(last):
        return Level.ISOLATION
    if not any(map(_may_be_over, last.results)):
        return None
    return Level.QUICK if last_pass.kept() == subject else Level.ISOLATION


def _may_be_over(result: Result) -> bool:
    """Whether it failed of what a job may have brought about, and the quick test shows."""
    failed = result.outcome is Outcome.FAILED and not result.condemns
    return failed and result.level is Level.QUICK


def _left_out(report: results.Report) -> bool:
    """Whether a report lacks checks of GPUs that have not failed, as where a job had them."""
    failed = {result.gpu for result in filter(results.condemns, report.results)}
    prevented = {result.gpu for result in report.results if result.outcome is Outcome.PREVENTED}
    if not failed or "" in failed:
        return bool(prevented) and not failed
    return not prevented <= failed | {""}
