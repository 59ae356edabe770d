# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The self-tests of single GPUs that the watch has asked for, made in the charm's hooks.

Each is of one GPU that nobody uses, and one after the other. What needs longer than a hook is
started in one and looked at in a later one. What failed is the operator's from then on; what could
not be made is tried again after pauses that grow, and in the end given up.
"""

import datetime
import logging
import time
import typing

from gpu_agent.availability import cordons, retests
from gpu_agent.availability import lease_report as leases
from gpu_agent.availability.retests import Ask
from gpu_selftest import results, service, settings
from gpu_selftest.check import Level, Progress
from gpu_selftest.results import Report
from machine import locks

# How long a hook follows such tests in all, in seconds: as automatic does.
_PATIENCE: typing.Final = 120
# How long after the last start the next one may come, in seconds, by how many there were within a
# day: so a job that has a GPU tested again and again gets it tested four or five times.
_PAUSES: typing.Final = (0, 600, 3600, 6 * 3600)
_DAY: typing.Final = 24 * 3600
# After so many starts without a verdict nothing more is to be hoped for.
_MOST_TRIES: typing.Final = 5

_SECOND: typing.Final = len("2026-11-21T17:00:00")

_log = logging.getLogger(__name__)


def ensure(progress: Progress) -> None:
    """Note what came of the tests that were asked for, and make those that are due.

    A GPU that has passed is back by then, and one that failed is out of use for that reason.

    Raises:
        OSError: what was asked for, or tried, can't be read or written.
    """
    until = time.monotonic() + _PATIENCE
    while (now := until - time.monotonic()) > 0:
        _settle()
        due = None if _is_testing() else _due()
        if due is None:
            return
        level = Level(due.level)
        progress(f"Self-test of one GPU, level {due.level}: {due.why}")
        try:
            run = service.start(level, gpu=due.uuid)
            retests.tried(due.uuid, run)
            if not Level.ISOLATION.includes(level):  # hours, perhaps
                return
            service.follow(run, now, lambda line: progress(f"Self-test: {line}"))
        except service.SelftestError as error:
            # The try is counted: nobody else's test waits for it.
            _log.warning("the test of %s that the watch asked for: %s", due.uuid, error)
            return


def _settle() -> None:
    """Forget what there is a verdict on, by whoever it was tested, and what never comes to one."""
    for ask in retests.read():
        runs = retests.tries(ask.uuid)
        reports = [results.read(run) for run in runs[-1:]] + [results.read()]
        told = [report for report in reports if report and _answers(report, ask)]
        for report in told:
            retests.forget(ask.uuid, report.level.value)
        since = [run for run in runs if _time(run) >= ask.since[:_SECOND]]
        if not told and len(since) >= _MOST_TRIES and not _is_testing():
            _log.warning("%d tests of %s came to no verdict: given up", len(since), ask.uuid)
            retests.forget(ask.uuid)


def _answers(report: Report, ask: Ask) -> bool:
    """Whether a report is a verdict on what was asked for, since it was."""
    if report.device != "cuda" or report.started[:_SECOND] < ask.since[:_SECOND]:
        return False
    failed = any(result.gpu == ask.uuid and results.condemns(result) for result in report.results)
    meant = report.gpu in ("", ask.uuid)
    return failed or (meant and results.passed(report, ask.uuid, Level(ask.level)))


def _is_testing() -> bool:
    """Whether some self-test runs now, by whomever."""
    return service.running() is not None or bool(locks.holder(service.LOCK))


def _due() -> Ask | None:
    """What is to be tested now: of a GPU that is here, unused, and was let alone for a while."""
    kept, held, foreign = settings.read(), leases.holders(), cordons.reasons()
    if kept is None or held is None:
        return None
    used = {device for lease in held.values() if lease.occupied for device in lease.devices}
    idle = {
        gpu.uuid
        for gpu in kept.gpus
        if used.isdisjoint({gpu.uuid, *gpu.devices}) and gpu.uuid not in foreign
    }
    return next((ask for ask in retests.read() if ask.uuid in idle and _is_rested(ask)), None)


def _is_rested(ask: Ask) -> bool:
    """Whether the pause after the last test of this GPU is over."""
    now = datetime.datetime.now(datetime.timezone.utc)
    ages = [(now - results.started(run)).total_seconds() for run in retests.tries(ask.uuid)]
    # By the wall clock, as runs last over boots. One that was set back makes no pause endless.
    recent = [age for age in ages if 0 <= age < _DAY]
    return not recent or min(recent) >= _PAUSES[min(len(recent), len(_PAUSES) - 1)]


def _time(run: str) -> str:
    """When a run started, as reports have it, to the second."""
    return results.started(run).isoformat(timespec="seconds")[:_SECOND]
