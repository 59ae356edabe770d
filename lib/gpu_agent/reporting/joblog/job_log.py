# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Write into the log of a job which GPUs it got, their faults and their use.

Each line is written once: a note of it is saved first and outlasts this program. A line that can't
be written is dropped after a while. Writing never delays or ends a job.
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
from gpu_runtime.lease_table import RUNNER, STEP

NOTES: typing.Final = pathlib.Path("/run/gpu-ci/health/joblog.json")

_STARTED: typing.Final = 120.0  # s after the lease in which the step's process must start
_TRIED: typing.Final = 30.0  # s that a line is tried while it can't be written
# Minutes after the start at which the use is summed up; then hourly.
_SUMMED: typing.Final = (1, 5, 15, 30, 60)
_PIECE: typing.Final = 4096  # PIPE_BUF of Linux: a pipe takes it in one piece
_ALL_PROCESSES: typing.Final = "pid:[4026531836]"  # PROC_PID_INIT_INO of Linux, proc_ns.h

_log = logging.getLogger(__name__)


@dataclasses.dataclass
class _Line:
    """A line to be written.

    Attributes:
        text: the line with its end.
        until: when it is dropped, in seconds since boot; None: with the lease.
        waits: whether it is kept until the step's process starts.
    """

    text: bytes
    until: float | None = None
    waits: bool = True


class JobLog:
    """Writes job logs; a part of the GPU health service.

    Args:
        mode: `enabled`; `faults`: only faults of GPUs; `disabled`.
        unused: what happens to a job that does not use its GPU: `ignore`, `warn` or `fail`.
        notes: the file with the notes of written lines.
        pen: writes lines; for tests.
        host: the machine's processes; for tests.
        sees_all: whether NVML lists all processes here; None: find out.
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
        self.operators_log = journal.PATH  # gets a line for each killed step
        self._pen, self._host = pen or Pen(), host or Host()
        own = pathlib.Path("/proc/self/ns/pid")
        self._sees_all = str(own.readlink()) == _ALL_PROCESSES if sees_all is None else sees_all
        self._lines: dict[str, list[_Line]] = {}
        self._sent: dict[str, list[_Line]] = {}
        self._tells: list[tuple[float, Tell]] = []
        self._last: dict[str, Sample] = {}

    def turn(self, moment: Moment, decisions: collections.abc.Sequence[Decision]) -> None:
        """Take in observations and decisions, and write the lines that are due.

        Raises:
            OSError: the notes can't be saved; the lines are written nevertheless.
        """
        self._tells += [(moment.now, one) for one in decisions if isinstance(one, Tell)]
        self._settle(moment.now)
        if moment.holdings is None:
            self._tells = [one for one in self._tells if moment.now - one[0] < _TRIED]
            return
        # Other holders write to their engine's log or to a terminal.
        held = [one for one in moment.holdings if one.in_use and not one.ours]
        jobs = [one for one in held if one.kind == STEP]
        # A runner has its GPUs longer than its job: faults alone are surely the job's.
        of_runners = [one for one in held if one.kind == RUNNER and not one.is_idle]
        notes = {one.container: self._notes.of(one, moment) for one in (*jobs, *of_runners)}
        self._look(moment, jobs, notes)
        for job in jobs:
            self._take_in(moment, job, notes[job.container])
        for job in of_runners:
            self._take_in_faults(moment, job, notes[job.container])
        self._tells = []
        there = notes.keys()
        self._lines = {name: lines for name, lines in self._lines.items() if name in there}
        try:
            self._notes.save({(one.container, one.since) for one in moment.holdings})
        finally:
            for job in (*jobs, *of_runners):
                self._write(moment.now, job)
            for job in jobs:
                self._end(moment, job, notes[job.container])

    def _look(
        self,
        moment: Moment,
        jobs: collections.abc.Sequence[Holding],
        notes: collections.abc.Mapping[str, Note],
    ) -> None:
        """Take in a new poll of the GPUs."""
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
        if self._mode == "enabled":
            self._start(moment, job, note, cards)
            self._sum_up(moment, job, note, cards)
        self._take_in_faults(moment, job, note)
        if self._unused != "ignore":
            self._idle(moment, job, note, cards)

    def _take_in_faults(self, moment: Moment, job: Holding, note: Note) -> None:
        if self._mode != "disabled":
            # A job that came later is not affected.
            for tell in [tell for at, tell in self._tells if job.since <= at]:
                self._fault(moment, job, note, tell)

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
        # A late line covers those before it.
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
        # A hardware fault gets one line, no matter how many sources report it.
        what = "failed" if tell.hardware else f"{tell.fault} {tell.xid or ''}"
        if card and note.is_news(f"{what} {tell.uuid}"):
            line = job_words.fault(card, tell, out=_is_out(moment, tell.uuid))
            _log.info("to the log of container %s: %s", job.container, line)
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
        # One GPU in use is enough to leave the job alone.
        ends = self._unused == "fail" and len(idle) == len(cards) and not note.condemned
        news = [card for card in idle if note.is_news(f"unused {card.uuid}")]
        if not ends and (not news or self._mode != "enabled" or note.condemned):
            return
        seconds = min(note.idle[card.uuid].seconds for card in idle)
        line = job_words.unused(idle, seconds, ends=ends)
        _log.info("to the log of container %s: %s", job.container, line)
        self._queue(job, line, until=moment.now + _TRIED, waits=False)
        if ends:
            note.condemned = moment.now

    def _end(self, moment: Moment, job: Holding, note: Note) -> None:
        """Kill a step that was warned, once a later poll finds its GPUs still unused."""
        if not note.condemned or note.ended or self._unused != "fail":
            return
        looks = list(note.idle.values())
        if any(one.seconds < unused.PATIENCE for one in looks):
            note.condemned = 0.0
            return
        told = job.container not in self._lines and self._pen.is_free(job.container)
        # A job must not keep its GPU by blocking the line.
        if not told and moment.now - note.condemned < _TRIED:
            return
        if all(one.last > note.condemned for one in looks):
            _log.warning("container %s: killing its step, which uses no GPU", job.container)
            note.ended = True
            try:
                self._host.end_steps(job.container, job.bundle)
                self._tell_operator(job)
            except ValueError as error:  # a file of containerd has unexpected content
                _log.warning("cannot kill the step of container %s: %s", job.container, error)

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
        """Write the waiting lines in one piece, with one writer at a time per container."""
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
        """Take the results of writes."""
        for container, (outcome, left) in self._pen.take().items():
            sent = self._sent.pop(container, [])
            again: list[_Line] = []
            if outcome is Outcome.NOBODY:
                again = [line for line in sent if line.waits]
            elif left and outcome is not Outcome.SAID:
                # It is full, or for a moment still runc's, which starts the step.
                until = [line.until for line in sent if line.until is not None]
                again = [_Line(left, min([now + _TRIED, *until]))]
            self._keep(container, [*again, *self._lines.get(container, [])])

    def _keep(self, container: str, lines: list[_Line]) -> None:
        self._lines.pop(container, None)
        if lines:
            self._lines[container] = lines


def _is_out(moment: Moment, uuid: str) -> bool:
    """Whether the GPU is unavailable; a record written in this turn counts too."""
    try:
        return uuid in moment.unavailable or quarantine.find(uuid) is not None
    except OSError:
        return False  # the line then says less, but nothing wrong
