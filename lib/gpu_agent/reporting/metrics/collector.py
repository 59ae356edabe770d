# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The values of the metrics: each turn stores its moment, and each scrape publishes the last one.

Old values are not published as current ones. A GPU's figures end with the second poll that fails.
If the GPU health service stops turning, only the ages of its last turn and poll remain.
"""

import collections.abc
import dataclasses
import logging
import pathlib
import time
import typing

from gpu_agent.model import ci_figures
from gpu_agent.model.card import Card, Figures
from gpu_agent.model.ci_figures import CiFigures
from gpu_agent.model.decisions import Decision, Suspect
from gpu_agent.model.observations import Hang, Holding, Look, Message, Moment, Source
from gpu_agent.reporting.metrics import definitions as exporter
from gpu_agent.reporting.metrics import refusal_reasons as refusals
from gpu_agent.reporting.metrics.definitions import Histogram, Page
from gpu_runtime import unavailable
from gpu_runtime.holder_usage import Host
from machine import files

_MIB: typing.Final = 1 << 20
_XIDS_EACH: typing.Final = 32  # numbers of Xids with a series of their own, per GPU
_OTHER: typing.Final = "other"
# How long figures of the CI system are current, in seconds: its daemon can wait a minute for an
# answer before it writes the next ones.
_CI_FRESH: typing.Final = 120.0
_HUNG: typing.Final = 2  # calls in a row that did not return
_KINDS: typing.Final = (
    (exporter.QUARANTINED, unavailable.QUARANTINED),
    (exporter.CORDONED, unavailable.CORDONED),
    (exporter.EXTERNAL, unavailable.EXTERNAL),
    (exporter.UNUSABLE, unavailable.UNUSABLE),
)

_log = logging.getLogger(__name__)


class Job(typing.Protocol):
    """The CI job of a container; unknown names are empty."""

    @property
    def team(self) -> str:
        """The team."""
        ...

    @property
    def pipeline(self) -> str:
        """The pipeline; empty for a one-off build."""
        ...

    @property
    def job(self) -> str:
        """The job; empty for a one-off build."""
        ...


Names = collections.abc.Callable[[str], Job | None]
"""Gets a container's id, returns its job; None while the job is unknown. It never blocks."""


def nobody(_container: str) -> Job | None:
    """Know no container's job."""
    return None


@dataclasses.dataclass(frozen=True)
class Ci:
    """What the CI system says.

    Attributes:
        names: returns the job of a container.
        figures: the file with its figures; None: it has none.
    """

    names: Names = nobody
    figures: pathlib.Path | None = None


_NO_CI: typing.Final = Ci()


@dataclasses.dataclass(frozen=True)
class _Known:
    """The data of one scrape. Each turn makes a new one, since another thread reads it.

    Attributes:
        moment: the moment of the last turn.
        polled: time of the last successful poll, in seconds since the epoch; None: there was none.
        jobs: index of a GPU, team, pipeline and job.
        xids: number of Xids by the GPU's UUID and the Xid's number.
        misses: number of calls into the driver that did not return.
        hung: whether the driver hangs.
        breaker: whether the circuit breaker has tripped.
        waits: waiting times of tasks that got GPUs, in seconds.
        refused: number of refusals by reason.
        ci: figures of the CI system; None: it has none.
    """

    moment: Moment
    polled: float | None = None
    jobs: frozenset[tuple[str, str, str, str]] = frozenset()
    xids: collections.abc.Mapping[tuple[str, str], int] = dataclasses.field(
        default_factory=dict[tuple[str, str], int]
    )
    misses: int = 0
    hung: bool = False
    breaker: bool = False
    waits: Histogram = Histogram()
    refused: collections.abc.Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    ci: CiFigures | None = None


class Metrics:
    """A part of the GPU health service; `text` may be called from any thread."""

    def __init__(
        self,
        version: str,
        mode: str,
        poll_seconds: float,
        journal: pathlib.Path,
        ci: Ci = _NO_CI,
        clock: collections.abc.Callable[[], float] = Host.now,
    ) -> None:
        """Start without observations.

        Args:
            version: the charm's, or the hash of its files.
            mode: the option gpu-health.
            poll_seconds: seconds between two polls of the GPUs.
            journal: the decision log of the GPU runtime.
            ci: what the CI system says.
            clock: returns the seconds since boot, as in Moment.
        """
        self._info = (version, mode)
        self._fresh_seconds = 2 * poll_seconds
        self._journal = refusals.Journal(journal)
        self._journal_fails = False
        self._ci, self._clock = ci, clock
        self._started, self._began = time.time(), clock()
        # By GPU, number and source: the driver and the kernel log report the same Xids.
        self._counts: dict[tuple[str, str, Source], int] = {}
        self._known = _Known(Moment(self._began, self._started, ()))

    def turn(self, moment: Moment, decisions: collections.abc.Sequence[Decision]) -> None:
        """Store the observations of this moment; log an unreadable decision log once."""
        last = self._known
        hung, misses = last.hung, last.misses
        for one in moment.seen:
            if isinstance(one, Hang):
                misses += 1
                hung = one.misses >= _HUNG
            elif isinstance(one, Look):
                hung = False
            else:
                self._count(one)
        suspects = [one for one in decisions if isinstance(one, Suspect)]
        waits, refused = self._decided(last)
        self._known = _Known(
            moment=moment,
            polled=_polled(moment, last),
            jobs=frozenset(self._jobs(moment)),
            xids=self._xids(),
            misses=misses,
            hung=hung,
            breaker=bool(suspects[-1].cause) if suspects else last.breaker,
            waits=waits,
            refused=refused,
            ci=_read_ci(self._ci.figures) if self._ci.figures else None,
        )

    def text(self) -> str:
        """The metrics as Prometheus reads them."""
        known, now, page = self._known, self._clock(), Page()
        moment = known.moment
        cards = {card.uuid: _labels(card) for card in moment.cards}
        page.set(exporter.INFO, 1, *self._info)
        page.set(exporter.STARTED, self._started)
        page.set(exporter.TURN_AGE, _age(now - moment.now))
        page.set(exporter.POLL_TIME, known.polled)
        page.set(exporter.POLL_AGE, _age(now - (moment.look.at if moment.look else self._began)))
        page.set(exporter.MISSES, known.misses)
        page.set_histogram(exporter.WAIT, known.waits)
        for name in (*(one.name for one in refusals.REASONS), refusals.OTHER):
            page.set(exporter.REFUSALS, known.refused.get(name, 0), name)
        for (uuid, number), count in sorted(known.xids.items()):
            if uuid in cards:
                page.set(exporter.XIDS, count, *cards[uuid], number)
        if now - moment.now <= self._fresh_seconds:
            _add_state(page, known)
            if known.ci and now - known.ci.at <= _CI_FRESH:
                _add_ci(page, known.ci)
            if moment.look and now - moment.look.at <= self._fresh_seconds:
                _add_look(page, moment.cards, moment.look)
        return page.text()

    def _count(self, message: Message) -> None:
        if message.xid is None:
            return
        number, uuid = str(message.xid), message.uuid
        known = {name for gpu, name, _ in self._counts if gpu == uuid}
        if number not in known and len(known) >= _XIDS_EACH:
            number = _OTHER
        key = uuid, number, message.source
        self._counts[key] = self._counts.get(key, 0) + 1

    def _xids(self) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for (uuid, number, _), count in self._counts.items():
            found[uuid, number] = max(count, found.get((uuid, number), 0))
        return found

    def _jobs(self, moment: Moment) -> collections.abc.Iterator[tuple[str, str, str, str]]:
        for holding in moment.holdings or ():
            if holding.ours or not holding.in_use:
                continue
            if (job := self._ci.names(holding.container)) and job.team:
                for card in moment.cards_of(holding):
                    yield str(card.index), job.team, job.pipeline, job.job

    def _decided(self, last: _Known) -> tuple[Histogram, dict[str, int]]:
        waits, refused = last.waits, dict(last.refused)
        try:
            decided = self._journal.read()
            self._journal_fails = False
        except OSError as error:
            decided = []
            if not self._journal_fails:
                _log.warning("metrics go on without waits and refusals: %s", error)
            self._journal_fails = True
        for one in decided:
            if one.waited is not None:
                waits = waits.with_(one.waited)
            if one.refused:
                refused[one.refused] = refused.get(one.refused, 0) + 1
        return waits, refused


def _age(seconds: float) -> float:
    return round(max(0.0, seconds), 1)


def _labels(card: Card) -> tuple[str, str, str]:
    return str(card.index), card.uuid, card.model


def _polled(moment: Moment, last: _Known) -> float | None:
    if moment.look is None:
        return None
    if last.moment.look and last.moment.look.at == moment.look.at:
        return last.polled  # one poll keeps its time even if the clock is set
    return round(moment.wall - (moment.now - moment.look.at), 1)


def _add_state(page: Page, known: _Known) -> None:
    """Add the samples that need no driver."""
    moment = known.moment
    page.set(exporter.WATCHED, len(moment.cards))
    page.set(exporter.HUNG, known.hung)
    page.set(exporter.BREAKER, known.breaker)
    for card in moment.cards:
        labels, cause = _labels(card), moment.unavailable.get(card.uuid)
        kind = cause.kind if cause else ""
        for metric, of_kind in _KINDS:
            page.set(metric, kind == of_kind, *labels)
        if cause and kind == unavailable.QUARANTINED:
            page.set(exporter.CAUSE, 1, *labels, cause.code or _OTHER)
        if moment.holdings is not None:
            there = moment.holders(card.uuid)
            page.set(exporter.HANDING_OVER, any(one.handing_over for one in there), *labels)
            holders = [one for one in there if one.in_use]
            page.set(exporter.LEASED, _any(holders, ours=False), *labels)
            page.set(exporter.TESTED, _any(holders, ours=True), *labels)
    for names in sorted(known.jobs):
        page.set(exporter.LEASE, 1, *names)


def _read_ci(path: pathlib.Path) -> CiFigures | None:
    """Return the CI system's figures; None if they cannot be read, and so are not published."""
    try:
        text = files.read_text(path)
        return ci_figures.parse(text) if text else None
    except (OSError, ValueError):  # those of another revision, until its daemon is restarted
        return None


def _add_ci(page: Page, ci: CiFigures) -> None:
    """Add the samples of the CI system."""
    for state, count in ci.runners.items():
        page.set(exporter.RUNNERS, count, state)
    page.set(exporter.RUNNER_FAULT, ci.fault)
    page.set(exporter.JOBS_WAITING, ci.waiting)
    if ci.requests:
        page.set(exporter.REQUESTS_LIMIT, ci.requests.limit)
        page.set(exporter.REQUESTS_LEFT, ci.requests.left)
        page.set(exporter.REQUESTS_RESET, ci.requests.reset or None)


def _any(holders: list[Holding], *, ours: bool) -> bool:
    return any(holder.ours is ours for holder in holders)


def _add_look(page: Page, cards: tuple[Card, ...], look: Look) -> None:
    """Add the samples of the last successful poll."""
    for card in cards:
        labels, figures = _labels(card), look.figures.get(card.uuid)
        if figures is None:
            lost = card.uuid in look.missing or card.uuid in look.gone
            page.set(exporter.ANSWERS, 0 if lost else None, *labels)
            continue
        page.set(exporter.ANSWERS, not figures.failure, *labels)
        if not figures.failure:
            _add_figures(page, labels, figures)


def _add_figures(page: Page, labels: tuple[str, ...], figures: Figures) -> None:
    for metric, value, factor in (
        (exporter.BUSY, figures.busy, 0.01),
        (exporter.MEMORY_USED, figures.memory_used_mib, _MIB),
        (exporter.MEMORY_TOTAL, figures.memory_total_mib, _MIB),
        (exporter.POWER, figures.power_w, 1),
        (exporter.POWER_LIMIT, figures.power_limit_w, 1),
        (exporter.TEMPERATURE, figures.temperature, 1),
        (exporter.CLOCK, figures.sm_clock_mhz, 1_000_000),
        (exporter.ENERGY, figures.energy_j, 1),
        (exporter.ECC_CORRECTED, figures.ecc_corrected, 1),
        (exporter.ECC_UNCORRECTED, figures.ecc_uncorrected, 1),
        (exporter.REMAP_PENDING, figures.remap_pending, 1),
        (exporter.REMAP_FAILED, figures.remap_failed, 1),
    ):
        page.set(metric, None if value is None else value * factor, *labels)
    if figures.reasons is not None:
        for name, bit in exporter.CLOCK_REASONS.items():
            page.set(exporter.REASON, bool(figures.reasons & bit), *labels, name)
