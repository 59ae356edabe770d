# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""`python3 -m gpu_agent.health`: what gpu-ci-health.service runs."""

import collections.abc
import contextlib
import functools
import logging
import pathlib
import sys
import typing

from gpu_agent.availability import quarantine
from gpu_agent.fault_policy.judge import Judge, Policy
from gpu_agent.fault_policy.state import Memory
from gpu_agent.health import lease_reader as leased
from gpu_agent.health import settings
from gpu_agent.health.charm_notifier import NoCharm, Waker
from gpu_agent.health.executor import MEMORY, SUSPECT, Clerk
from gpu_agent.health.gone_leases import Returned
from gpu_agent.health.idle_notifier import Freed
from gpu_agent.health.loop import Part, Watch
from gpu_agent.health.residual_memory_watch import Dirty
from gpu_agent.health.settings import Settings
from gpu_agent.health.sources import Sources
from gpu_agent.model.decisions import Decision, Tell
from gpu_agent.model.observations import Holding, Moment, Seen
from gpu_agent.reporting.joblog import step_stderr
from gpu_agent.reporting.joblog.build_info import Naming
from gpu_agent.reporting.joblog.job_log import JobLog
from gpu_agent.reporting.joblog.step_stderr import Pen
from gpu_agent.reporting.metrics import server as serving
from gpu_agent.reporting.metrics.collector import Ci, Metrics
from gpu_agent.reporting.receipts import lease_journal as journal
from gpu_agent.reporting.receipts.ledger import Ledger
from machine import files
from machine import sd_notify as notify
from machine.ending import Ending

UNTOLD: typing.Final = "untold"
"""File in settings.RUN: exists while a call of the charm is due."""

# Seconds between polls while a GPU is held.
_HELD: typing.Final = 5.0

_log = logging.getLogger(__name__)


class _Woken:
    """Sources whose wait ends when the leases in the store change."""

    def __init__(
        self, sources: Sources, changes: leased.Changes, ending: Ending, store: str
    ) -> None:
        self._sources, self._changes, self._store = sources, changes, store
        sources.wake_on(ending.descriptor)
        if changes.descriptor is not None:
            sources.wake_on(changes.descriptor)

    def poll_now(self) -> None:
        """Poll all GPUs as soon as possible."""
        self._sources.poll_now()

    def take(self, timeout: float) -> list[Seen]:
        """Return observations, and drop the notice of changed leases before they are read."""
        seen = self._sources.take(timeout)
        self._changes.settle()
        return seen

    def holdings(self) -> tuple[Holding, ...] | None:
        """Return the holders of leases; None if they can't be read."""
        return leased.holdings(self._store)


class _Pace:
    """Polls more often while a GPU is held, since usage records are made of polls."""

    def __init__(self, sources: Sources, usual: float) -> None:
        self._sources, self._usual = sources, usual

    def turn(self, moment: Moment, _decisions: collections.abc.Sequence[Decision]) -> None:
        held = moment.holdings is None or any(one.in_use for one in moment.holdings)
        self._sources.poll_every(min(_HELD, self._usual) if held else self._usual)


class _Looks:
    """Checks a GPU's memory after each lease, and requests the poll for it."""

    def __init__(self, sources: _Woken) -> None:
        self._sources, self._dirty = sources, Dirty()

    def turn(self, moment: Moment, decisions: collections.abc.Sequence[Decision]) -> None:
        self._dirty.turn(moment, decisions)
        if self._dirty.wants_look(moment):
            self._sources.poll_now()


class _Observed:
    """The job log without failures of GPUs, which stay in use in the mode observe."""

    def __init__(self, joblog: JobLog) -> None:
        self._joblog = joblog

    def turn(self, moment: Moment, decisions: collections.abc.Sequence[Decision]) -> None:
        told = [one for one in decisions if not (isinstance(one, Tell) and one.hardware)]
        self._joblog.turn(moment, told)


def main() -> int:
    """Run until systemd sends a signal, or the charm is gone."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        found = settings.parse(settings.PATH.read_bytes())
    except (OSError, ValueError) as error:
        _log.error("%s: %s; it is written again within 5 minutes", settings.PATH, error)
        return 1
    files.ensure_directory(settings.RUN, mode=0o700)
    # If the suspicion still stands, the judge writes it again at its first turn.
    files.ensure_absent(settings.RUN / SUSPECT)
    with contextlib.ExitStack() as stack:
        ending = stack.enter_context(Ending(found.dispatch))
        changes = stack.enter_context(leased.Changes(found.store))
        sources = Sources(found.cards, poll=found.poll_seconds)
        stack.callback(sources.close)
        pace = _Pace(sources, found.poll_seconds)
        watch = _composed(found, _Woken(sources, changes, ending, found.store), pace, stack)
        notify.ready()
        _log.info("watching %d GPUs", len(found.cards))
        while not ending.is_due():
            watch.turn()
            notify.alive()
        notify.stopping()
    return 0


def _composed(found: Settings, sources: _Woken, pace: Part, stack: contextlib.ExitStack) -> Watch:
    judge = Judge(Policy(found.mode, found.max_quarantined, found.recovery), _memory())
    _adopt(judge)
    waker = Waker(found.unit, settings.RUN / UNTOLD) if found.unit else NoCharm()
    stack.callback(waker.close)
    clerk = Clerk(found.mode, lambda: judge.memory, waker.want)
    pen = Pen(functools.partial(step_stderr.say, reader=found.log_reader))
    naming, joblog = Naming(found.job_names), JobLog(found.job_log, found.unused, pen=pen)
    stack.callback(naming.close)
    # Before the waker, which then wakes in the same turn.
    freed = [Freed(found.recovery, waker.want)] if found.unit else []
    parts: list[Part] = [clerk, *freed, waker, pace, Returned(found.store)]
    # In the mode observe no GPU is kept from tasks.
    parts += [joblog, _Looks(sources)] if found.mode == settings.ENABLED else [_Observed(joblog)]
    parts += [naming, Ledger(names=naming), *_metrics(found, naming, stack)]
    return Watch(found, sources, judge, parts, lambda: clerk.is_waiting or waker.is_waiting)


def _metrics(found: Settings, naming: Naming, stack: contextlib.ExitStack) -> list[Part]:
    """The part that serves the metrics, if they have a port."""
    if not found.metrics_port:
        return []
    version = pathlib.Path(__file__).resolve().parents[3].name
    ci = Ci(naming, pathlib.Path(found.ci_figures) if found.ci_figures else None)
    metrics = Metrics(version, found.mode, found.poll_seconds, journal.PATH, ci)
    server = serving.serve(found.metrics_port, metrics.text)
    if server:
        stack.callback(server.close)
    return [metrics]


def _adopt(judge: Judge) -> None:
    """Take over the service's own records: an earlier process may have been killed."""
    try:
        for one in quarantine.read():
            if one.by == quarantine.HEALTH:
                judge.adopt(one.uuid, one.check, one.reason, one.level, one.remedy)
    except OSError as error:
        _log.warning("cannot read the records of quarantined GPUs: %s", error)


def _memory() -> Memory:
    """The saved memory of the judge; an empty one if it is lost."""
    path = settings.STATE / MEMORY
    try:
        text = files.read_text(path)
        return Memory.parse(text) if text else Memory()
    except (OSError, ValueError) as error:
        _log.warning("%s: %s", path, error)
        return Memory()


if __name__ == "__main__":
    sys.exit(main())
