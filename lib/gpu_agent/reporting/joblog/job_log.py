# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Tells jobs, in their own logs, what they got, what became of it and what they made of it.

A line is told once: what was told to whom is written down before, and outlives this program. One
that nobody takes is dropped after a while; no job is held up or ended by what is written.
"""

import collections.abc
import dataclasses
import logging
import pathlib
import typing

from gpu_agent.availability import quarantine
from gpu_agent.model.card import Card
from gpu_agent.model.decisions import Decision, Tell
from gpu_agent.model.observations import Holding, Moment
from gpu_agent.reporting.joblog import idle_jobs as unused
from gpu_agent.reporting.joblog import messages as job_words
from gpu_agent.reporting.joblog.notes import Note, Notes
from gpu_agent.reporting.joblog.step_stderr import Outcome, Pen
from gpu_agent.reporting.receipts import lease_journal as journal
from gpu_agent.reporting.receipts.account import Sample
from gpu_runtime import decision_log
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_table import STEP

NOTES: typing.Final = pathlib.Path("/run/gpu-ci/health/joblog.json")

_STARTED: typing.Final = 120.0  # s after its lease a step has begun, or nobody is to be told
_TRIED: typing.Final = 30.0  # s that a line may find no room, or no stderr that it may go to
_SUMMED: typing.Final = (
    1,
    5,
    15,
    30,
    60,
)  # min after which a job is told what it used; then hourly
_PIECE: typing.Final = 4096  # PIPE_BUF of Linux: what goes into a pipe in one piece
_ALL_PROCESSES: typing.Final = "pid:[4026531836]"  # PROC_PID_INIT_INO of Linux, proc_ns.h

_log = logging.getLogger(__name__)


@dataclasses.dataclass
class _Line:
    """A line that waits to be written.

    Attributes:
        text: it, with its end.
        until: when it is dropped, in seconds since boot; None: with the lease.
        waits: whether a step is waited for that has not begun.
    """

    text: bytes
    until: float | None = None
    waits: bool = True


class JobLog:
    """The job's log as a part of the watch.

    Args:
        mode: `on`; `faults`: only what became of the GPU; `off`.
        unused: what follows where a job does not use its GPU: `ignore`, `warn` or `fail`.
        notes: where it is written down what was told.
        pen: what writes; for tests.
        host: the machine's processes; for tests.
        sees_all: whether NVML hides no process from here; None: that is found out.
    """

    def __init__(
        self,
        mode: str,
        unused: str,
        *,
        notes: pathlib.Path = NOTES,
        pen: Pen | None = None,
        host: Host | None = None,
        sees_all: bool | None = None,
    ) -> None:
        self._mode, self._unused = mode, unused
        self._notes = Notes(notes)
        self.operators_log = journal.PATH  # gets a line of each step that is ended
        self._pen, self._host = pen or Pen(), host or Host()
        own = pathlib.Path("/proc/self/ns/pid")
        self._sees_all = str(own.readlink()) == _ALL_PROCESSES if sees_all is None else sees_all
        self._lines: dict[str, list[_Line]] = {}
        self._sent: dict[str, list[_Line]] = {}
        self._tells: list[tuple[float, Tell]] = []
        self._last: dict[str, Sample] = {}

    def turn(self, moment: Moment, decisions: collections.abc.Sequence[Decision]) -> None:
        """Take in what was seen and decided, and write what is due.

        Raises:
            OSError: it can't be written down what was told; it is told nevertheless.
        """
        self._tells += [(moment.now, one) for one in decisions if isinstance(one, Tell)]
        self._settle(moment.now)
        if moment.holdings is None:
            self._tells = [one for one in self._tells if moment.now - one[0] < _TRIED]
            return
        # Others have no log of ours to write to: their engine's, or a terminal.
        jobs = [one for one in moment.holdings if one.in_use and not one.ours and one.kind == STEP]
        notes = {one.container: self._notes.of(one, moment) for one in jobs}
        self._look(moment, jobs, notes)
        for job in jobs:
            self._take_in(moment, job, notes[job.container])
        self._tells = []
        there = {job.container for job in jobs}
        self._lines = {name: lines for name, lines in self._lines.items() if name in there}
        try:
            self._notes.save({(one.container, one.since) for one in moment.holdings})
        finally:
            for job in jobs:
                self._write(moment.now, job)
                self._end(moment, job, notes[job.container])

    def _look(
        self,
        moment: Moment,
        jobs: collections.abc.Sequence[Holding],
        notes: collections.abc.Mapping[str, Note],
    ) -> None:
        """Take in a new look at the GPUs."""
        look = moment.look
        if look is None:
            return
        for uuid, figures in look.figures.items():
            before, now = self._last.get(uuid), Sample(look.at, figures)
            if before and before.at >= look.at:
                continue
            self._last[uuid] = now
            holders = [one for one in moment.holders(uuid) if one.in_use]
            for job in jobs:
                note = notes[job.container]
                if uuid in note.account.gpus and look.at > job.since:
                    alone = len(holders) == 1 and note.account.has_all(uuid)
                    note.account.look(uuid, before, now, alone=alone)
                    used = unused.is_used(figures, sees_all=self._sees_all)
                    note.idle[uuid].look(look.at, used=used)

    def _take_in(self, moment: Moment, job: Holding, note: Note) -> None:
        cards = moment.cards_of(job)
        if not cards:
            return
        if self._mode == "on":
            self._start(moment, job, note, cards)
            self._sum_up(moment, job, note, cards)
        if self._mode != "off":
            # Who came later has nothing to do with it.
            for tell in [tell for at, tell in self._tells if job.since <= at]:
                self._fault(moment, job, note, tell)
        if self._unused != "ignore":
            self._idle(moment, job, note, cards)

    def _start(
        self, moment: Moment, job: Holding, note: Note, cards: collections.abc.Sequence[Card]
    ) -> None:
        if moment.now - job.since < _STARTED and note.is_news("start"):
            line = job_words.start(cards, job.devices, job.waited, moment.driver, moment.cuda)
            self._queue(job, line, until=job.since + _STARTED)

    def _sum_up(
        self, moment: Moment, job: Holding, note: Note, cards: collections.abc.Sequence[Card]
    ) -> None:
        minutes = int((moment.now - job.since) // 60)
        due = max([one for one in _SUMMED if one <= minutes], default=0)
        due = max(due, minutes // 60 * 60)
        # One that came late tells what those before it would have.
        if due <= note.summed:
            return
        note.summed = due
        by_uuid = {card.uuid: card for card in cards}
        gpus = [one for one in note.account.receipt("", over=False).gpus if one.uuid in by_uuid]
        drawn = [one.energy_j for one in gpus if one.energy_j is not None]
        used = [
            job_words.Used(
                by_uuid[one.uuid], one.busy_percent, one.memory_peak_mib, one.memory_total_mib
            )
            for one in gpus
            if one.watched_s
        ]
        energy = sum(drawn) if len(drawn) == len(gpus) else None
        line = job_words.used(moment.now - job.since, used, energy) if used else ""
        if line:
            self._queue(job, line, until=moment.now + _TRIED, waits=False)

    def _fault(self, moment: Moment, job: Holding, note: Note, tell: Tell) -> None:
        card = next((card for card in moment.cards_of(job) if card.uuid == tell.uuid), None)
        # What the hardware did is one thing, however many tell of it.
        what = "failed" if tell.hardware else f"{tell.fault} {tell.xid or ''}"
        if card and note.is_news(f"{what} {tell.uuid}"):
            line = job_words.fault(card, tell, out=_is_out(moment, tell.uuid))
            _log.info("container %s is told: %s", job.container, line)
            self._queue(job, line)

    def _idle(
        self, moment: Moment, job: Holding, note: Note, cards: collections.abc.Sequence[Card]
    ) -> None:
        idle = [
            card
            for card in cards
            if card.uuid in note.idle and note.idle[card.uuid].seconds >= unused.PATIENCE
        ]
        if not idle:
            return
        # One that is used is enough to leave the job alone.
        ends = self._unused == "fail" and len(idle) == len(cards) and not note.condemned
        news = [card for card in idle if note.is_news(f"unused {card.uuid}")]
        if not ends and (not news or self._mode != "on" or note.condemned):
            return
        seconds = min(note.idle[card.uuid].seconds for card in idle)
        line = job_words.unused(idle, seconds, ends=ends)
        _log.info("container %s is told: %s", job.container, line)
        self._queue(job, line, until=moment.now + _TRIED, waits=False)
        if ends:
            note.condemned = moment.now

    def _end(self, moment: Moment, job: Holding, note: Note) -> None:
        """End a step that was told that it would be, once a later look says the same of it."""
        if not note.condemned or note.ended or self._unused != "fail":
            return
        looks = list(note.idle.values())
        if any(one.seconds < unused.PATIENCE for one in looks):
            note.condemned = 0.0
            return
        told = job.container not in self._lines and self._pen.is_free(job.container)
        # What stands in the line's way must not keep the GPU for the job.
        if not told and moment.now - note.condemned < _TRIED:
            return
        if all(one.last > note.condemned for one in looks):
            _log.warning("container %s: its step is ended, it uses no GPU", job.container)
            note.ended = True
            try:
                self._host.end_steps(job.container, job.bundle)
                self._tell_operator(job)
            except ValueError as error:  # a file of containerd's holds something else
                _log.warning("container %s can't be ended: %s", job.container, error)

    def _tell_operator(self, job: Holding) -> None:
        decision = decision_log.Decision(job.container)
        decision.kind = journal.UNUSED
        decision.reason = f"{', '.join(job.devices)}: not used for {unused.PATIENCE / 60:.0f} min"
        decision.write(str(self.operators_log))

    def _queue(
        self, job: Holding, line: str, *, until: float | None = None, waits: bool = True
    ) -> None:
        text = f"{line}\n".encode()
        self._lines.setdefault(job.container, []).append(_Line(text, until, waits))

    def _write(self, now: float, job: Holding) -> None:
        """Hand over what waits, in one piece, so that a container has one writer at a time."""
        lines = self._lines.get(job.container, [])
        lines = [line for line in lines if line.until is None or now < line.until]
        if not lines or not self._pen.is_free(job.container):
            self._keep(job.container, lines)
            return
        piece: list[_Line] = []
        while lines and sum(len(line.text) for line in [*piece, lines[0]]) <= _PIECE:
            piece.append(lines.pop(0))
        self._sent[job.container] = piece
        self._keep(job.container, lines)
        self._pen.hand(job, b"".join(line.text for line in piece))

    def _settle(self, now: float) -> None:
        """See what came of what was handed over."""
        for container, (outcome, left) in self._pen.take().items():
            sent = self._sent.pop(container, [])
            again: list[_Line] = []
            if outcome is Outcome.NOBODY:
                again = [line for line in sent if line.waits]
            elif left and outcome is not Outcome.SAID:
                # No room, or not a step's yet: for a moment it is runc's, which starts it.
                until = [line.until for line in sent if line.until is not None]
                again = [_Line(left, min([now + _TRIED, *until]))]
            self._keep(container, [*again, *self._lines.get(container, [])])

    def _keep(self, container: str, lines: list[_Line]) -> None:
        self._lines.pop(container, None)
        if lines:
            self._lines[container] = lines


def _is_out(moment: Moment, uuid: str) -> bool:
    """Whether no task gets that GPU now; decided a moment ago, it is written down by now."""
    try:
        return uuid in moment.out or quarantine.find(uuid) is not None
    except OSError:
        return False  # the line then says less, and nothing that may be wrong
