# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run the self-tests of single GPUs that the GPU health service requests, in the charm's hooks.

The tests run one after another, each on one GPU that is not in use. A test that takes longer than
a hook is started in one hook and its verdict is read in a later one. A GPU that failed is left to
the operator. A test that could not run is repeated after growing pauses, and in the end given up.
"""

import collections.abc
import dataclasses
import datetime
import logging
import pathlib
import time
import typing

from gpu_agent.availability import external_use, retests
from gpu_agent.availability import lease_report as leases
from gpu_agent.availability.retests import Ask
from gpu_agent.model.leases import Lease
from gpu_selftest import results, service, settings
from gpu_selftest.check import Level, Progress
from gpu_selftest.last_pass import Records
from gpu_selftest.results import Report
from gpu_selftest.service import SelftestError, Service

# How long one hook follows such tests altogether, in seconds, as parts.selftest does.
_PATIENCE: typing.Final = 120
# The pause after the last start, in seconds, by the number of starts within a day. A job that
# causes retests of a GPU again and again so causes four or five a day.
_PAUSES: typing.Final = (0, 600, 3600, 6 * 3600)
_DAY: typing.Final = 24 * 3600
# After so many starts without a verdict the request is dropped.
_MOST_TRIES: typing.Final = 5

_SECOND: typing.Final = len("2026-11-21T17:00:00")

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Retests:
    """The tests that the GPU health service requests; the defaults are the real ones.

    Attributes:
        service: starts and follows self-tests.
        settings: the file of this unit's settings.
        records: the reports.
        holders: returns the leases, by container; None if they can't be read now.
        external: returns the GPUs that are in use outside CI, by id.
    """

    service: Service = service
    settings: pathlib.Path = settings.PATH
    records: Records = Records()
    holders: collections.abc.Callable[[], collections.abc.Mapping[str, Lease] | None] = (
        leases.holders
    )
    external: collections.abc.Callable[[], collections.abc.Container[str]] = external_use.read

    def ensure(self, progress: Progress) -> None:
        """Note the verdicts on requested tests and start the tests that are due.

        Afterwards a GPU that passed is in use again, and a GPU that failed is quarantined.

        Raises:
            OSError: the requests or tries can't be read or written.
        """
        until = time.monotonic() + _PATIENCE
        while (now := until - time.monotonic()) > 0:
            self._settle()
            due = None if self._is_testing() else self._due()
            if due is None:
                return
            level = Level(due.level)
            progress(f"Self-test of one GPU, level {due.level}: {due.why}")
            try:
                run = self.service.start(level, gpu=due.uuid)
                retests.tried(due.uuid, run)
                if not Level.ISOLATION.includes(level):  # hours, perhaps
                    return
                self.service.follow(run, now, lambda line: progress(f"Self-test: {line}"))
            except SelftestError as error:
                # The try is counted, so that no other GPU's test has to wait for this one.
                _log.warning("self-test of %s for the GPU health service: %s", due.uuid, error)
                return

    def _settle(self) -> None:
        """Drop requests that have a verdict, from any self-test, or that had too many tries."""
        for ask in retests.read():
            runs = retests.tries(ask.uuid)
            reports = [self.records.report(run) for run in (*runs[-1:], "")]
            told = [report for report in reports if report and _answers(report, ask)]
            for report in told:
                retests.forget(ask.uuid, report.level.value)
            since = [run for run in runs if _time(run) >= ask.since[:_SECOND]]
            if not told and len(since) >= _MOST_TRIES and not self._is_testing():
                _log.warning("%d self-tests of %s gave no verdict: given up", len(since), ask.uuid)
                retests.forget(ask.uuid)

    def _is_testing(self) -> bool:
        """Return whether any self-test runs now."""
        return self.service.running() is not None or self.service.wait_for_others(0) != ""

    def _due(self) -> Ask | None:
        """Return the next request: of a GPU that is present, unused, and past its pause."""
        kept, held = settings.read(self.settings), self.holders()
        if kept is None or held is None:
            return None
        external = self.external()
        used = {device for lease in held.values() if lease.occupied for device in lease.devices}
        idle = {
            gpu.uuid
            for gpu in kept.gpus
            if used.isdisjoint({gpu.uuid, *gpu.devices}) and gpu.uuid not in external
        }
        return next((ask for ask in retests.read() if ask.uuid in idle and _is_rested(ask)), None)


def _answers(report: Report, ask: Ask) -> bool:
    """Return whether a report is a verdict on a request and newer than the request."""
    if report.device != "cuda" or report.started[:_SECOND] < ask.since[:_SECOND]:
        return False
    failed = any(result.gpu == ask.uuid and results.condemns(result) for result in report.results)
    meant = report.gpu in ("", ask.uuid)
    return failed or (meant and results.passed(report, ask.uuid, Level(ask.level)))


def _is_rested(ask: Ask) -> bool:
    """Return whether the pause after the last test of this GPU is over."""
    now = datetime.datetime.now(datetime.timezone.utc)
    ages = [(now - results.started(run)).total_seconds() for run in retests.tries(ask.uuid)]
    # By the wall clock, since runs outlive boots. A clock that was set back ends the pause.
    recent = [age for age in ages if 0 <= age < _DAY]
    return not recent or min(recent) >= _PAUSES[min(len(recent), len(_PAUSES) - 1)]


def _time(run: str) -> str:
    """Return when a run started, in the form of reports, to the second."""
    return results.started(run).isoformat(timespec="seconds")[:_SECOND]
