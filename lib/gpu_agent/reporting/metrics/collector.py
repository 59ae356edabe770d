# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the watch tells Prometheus: each turn's moment is kept, and told when somebody asks.

Nothing old is told as if it were fresh: a GPU's figures end with the second poll that did not come
back, and all but the age of what is known where the watch itself stands still.
"""

import collections.abc
import dataclasses
import logging
import pathlib
import re
import time
import typing

from gpu_agent.fault_policy import fault_table as faults
from gpu_agent.model.card import Card, Figures
from gpu_agent.model.decisions import Decision, Suspect
from gpu_agent.model.observations import Hang, Holding, Look, Message, Moment, Source
from gpu_agent.reporting.metrics import definitions as exporter
from gpu_agent.reporting.metrics import refusal_reasons as refusals
from gpu_agent.reporting.metrics.definitions import Histogram, Page

_MIB: typing.Final = 1 << 20
_XIDS_EACH: typing.Final = 32  # numbers of Xids that one GPU's counter tells apart
_XID_CAUSE: typing.Final = re.compile(r"Xid [0-9]{1,3}(?![0-9])")
_CAUSES: typing.Final = {row.short for row in faults.TABLE} - {""}
_OTHER: typing.Final = "other"
_HUNG: typing.Final = 2  # calls in a row that did not return

_log = logging.getLogger(__name__)


class Job(typing.Protocol):
    """Whose a container is; a text is empty where that is not known."""

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
"""From a container's id to its job; None while that is not known. It never waits."""


def nobody(_container: str) -> Job | None:
    """Names where nothing resolves any."""
    return None


@dataclasses.dataclass(frozen=True)
class _Known:
    """All that is told; made anew by each turn, since another thread reads it.

    Attributes:
        moment: the last turn's.
        polled: when the last good poll was, in seconds since the epoch; None: there was none.
        jobs: index of a GPU, team, pipeline and job.
        xids: how many by GPU's UUID and number.
        misses: how many calls did not return.
        hung: whether the driver hangs.
        breaker: whether it is tripped.
        waits: of tasks that got GPUs, in seconds.
        refused: how many by reason.
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


class Metrics:
    """A part of the watch; `text` may be called from any thread."""

    def __init__(
        self,
        version: str,
        mode: str,
        poll_seconds: float,
        journal: pathlib.Path,
        names: Names = nobody,
    ) -> None:
        """Begin with nothing known.

        Args:
            version: the charm's, or its app's hash.
            mode: the option gpu-health.
            poll_seconds: how often the GPUs are looked at.
            journal: the wrapper's log.
            names: whose a container is.
        """
        self._info = (version, mode)
        self._fresh_seconds = 2 * poll_seconds
        self._journal = refusals.Journal(journal)
        self._journal_fails = False
        self._names = names
        self._started, self._began = time.time(), _now()
        # By GPU, number and who told: the driver and the kernel's log tell of the same ones.
        self._told: dict[tuple[str, str, Source], int] = {}
        self._known = _Known(Moment(self._began, self._started, ()))

    def turn(self, moment: Moment, decisions: collections.abc.Sequence[Decision]) -> None:
        """Take in what there is at this moment; a log that can't be read is said once."""
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
        )

    def text(self) -> str:
        """All metrics of now, as Prometheus reads them."""
        known, now, page = self._known, _now(), Page()
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
            _tell_state(page, known)
            if moment.look and now - moment.look.at <= self._fresh_seconds:
                _tell_look(page, moment.cards, moment.look)
        return page.text()

    def _count(self, message: Message) -> None:
        if message.xid is None:
            return
        number, uuid = str(message.xid), message.uuid
        known = {name for gpu, name, _ in self._told if gpu == uuid}
        if number not in known and len(known) >= _XIDS_EACH:
            number = _OTHER
        key = uuid, number, message.source
        self._told[key] = self._told.get(key, 0) + 1

    def _xids(self) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for (uuid, number, _), count in self._told.items():
            found[uuid, number] = max(count, found.get((uuid, number), 0))
        return found

    def _jobs(self, moment: Moment) -> collections.abc.Iterator[tuple[str, str, str, str]]:
        for holding in moment.holdings or ():
            if holding.ours or not holding.in_use:
                continue
            if (job := self._names(holding.container)) and job.team:
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


def _now() -> float:
    """Seconds since boot, as in Moment."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _age(seconds: float) -> float:
    return round(max(0.0, seconds), 1)


def _labels(card: Card) -> tuple[str, str, str]:
    return str(card.index), card.uuid, card.model


def _polled(moment: Moment, last: _Known) -> float | None:
    if moment.look is None:
        return None
    if last.moment.look and last.moment.look.at == moment.look.at:
        return last.polled  # the same poll is told with the same time, whatever the clock does
    return round(moment.wall - (moment.now - moment.look.at), 1)


def _tell_state(page: Page, known: _Known) -> None:
    """What the worker itself knows of its GPUs, without the driver."""
    moment = known.moment
    page.set(exporter.WATCHED, len(moment.cards))
    page.set(exporter.HUNG, known.hung)
    page.set(exporter.BREAKER, known.breaker)
    for card in moment.cards:
        labels, why = _labels(card), moment.out.get(card.uuid)
        cordoned = why is not None and card.uuid in moment.cordoned
        page.set(exporter.QUARANTINED, why is not None and not cordoned, *labels)
        page.set(exporter.CORDONED, cordoned, *labels)
        if why is not None and not cordoned:
            page.set(exporter.CAUSE, 1, *labels, _cause(why))
        if moment.holdings is not None:
            there = moment.holders(card.uuid)
            page.set(exporter.HANDING_OVER, any(one.handing_over for one in there), *labels)
            holders = [one for one in there if one.in_use]
            page.set(exporter.LEASED, _any(holders, ours=False), *labels)
            page.set(exporter.TESTED, _any(holders, ours=True), *labels)
    for names in sorted(known.jobs):
        page.set(exporter.LEASE, 1, *names)


def _any(holders: list[Holding], *, ours: bool) -> bool:
    return any(holder.ours is ours for holder in holders)


def _cause(why: str) -> str:
    """A short cause of few that there can be, of what a GPU `is` (gpu_runtime.policy.why)."""
    if why.startswith("cordoned by the operator"):
        return "operator"
    reason = why.removeprefix("quarantined: ")
    if match := _XID_CAUSE.match(reason):
        return match.group()
    short = reason.partition(":")[0]
    return short if short in _CAUSES else _OTHER


def _tell_look(page: Page, cards: tuple[Card, ...], look: Look) -> None:
    """What the driver told at the last good poll."""
    for card in cards:
        labels, figures = _labels(card), look.figures.get(card.uuid)
        if figures is None:
            lost = card.uuid in look.missing or card.uuid in look.gone
            page.set(exporter.ANSWERS, 0 if lost else None, *labels)
            continue
        page.set(exporter.ANSWERS, not figures.failure, *labels)
        if not figures.failure:
            _tell_figures(page, labels, figures)


def _tell_figures(page: Page, labels: tuple[str, ...], figures: Figures) -> None:
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
