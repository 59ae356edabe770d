# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Decide what follows from observations. Pure: no clock, no file; time comes with a Moment.

One fault is one decision, no matter how many signs it shows and how often. A fault that persists
after the GPU was returned does not quarantine it again; a new fault does. A decision that was not
carried out, because the disk is full or the service was killed, is made again.
"""

import collections.abc
import dataclasses
import typing

from gpu_agent.fault_policy import circuit_breaker as breaker
from gpu_agent.fault_policy import conditions
from gpu_agent.fault_policy import fault_table as faults
from gpu_agent.fault_policy.conditions import Finding
from gpu_agent.fault_policy.fault import LEVELS, Action, Fault, Need
from gpu_agent.fault_policy.state import (
    MOST_HOLDERS,
    MOST_JOB_FAULTS,
    Gpu,
    JobFault,
    Memory,
    Out,
    Suspicion,
)
from gpu_agent.model.card import Card
from gpu_agent.model.decisions import BringBack, Decision, Suspect, TakeOut, Tell, Test
from gpu_agent.model.observations import Hang, Look, Message, Moment, Source

_HOUR: typing.Final = 3600.0
_DAY: typing.Final = 24 * _HOUR
# A suspicion from the kernel log ends with the first poll after so many seconds: a driver shows a
# failure after some seconds.
_SETTLED: typing.Final = 20.0
# Seconds after which a decision that was not carried out is made again.
_AGAIN: typing.Final = 10.0
# Seconds between two tests of a GPU that stays quarantined.
_RETEST: typing.Final = 6 * _HOUR
_MISSES: typing.Final = 2
_MOST_QUARANTINES: typing.Final = 5
_QUARANTINES_WITHIN: typing.Final = 7 * _DAY
# Seconds after the machine's start in which a driver may still be loading.
_STARTING: typing.Final = 180.0
# Seconds by which the wall clock and the boot clock may differ before that means a reboot.
_DRIFT: typing.Final = 600.0


@dataclasses.dataclass(frozen=True)
class Policy:
    """The operator's options.

    Attributes:
        mode: `enabled`, `observe` (decide without acting) or `disabled`.
        max_quarantined: limit of the circuit breaker: the share of the GPUs in percent.
        recovery: `none`, `reset` or `reboot`; with `reset` an idle GPU is quarantined for a reset
            that could wait.
    """

    mode: str = "enabled"
    max_quarantined: int = 50
    recovery: str = "none"


class Judge:
    """Decides, turn by turn.

    Attributes:
        memory: its state over restarts; save it after each turn once the decisions of that turn
            are carried out.
    """

    def __init__(self, policy: Policy, memory: Memory) -> None:
        self.policy = policy
        self.memory = memory
        self._told = ""

    def adopt(self, uuid: str, fault: str, reason: str, level: str, remedy: str) -> None:
        """Take over a record of the service that exists at its start; arguments as in TakeOut.

        The service was killed before it saved its memory, or the memory is lost.
        """
        self._enter()
        gpu = self.memory.gpus.setdefault(uuid, Gpu())
        if gpu.out is None and self.policy.mode == "enabled":
            row = faults.BY_NAME.get(fault, faults.XID)
            gpu.out = Out(
                row.name, reason, level, remedy, "", row.need, at=-1.0, seen=True, code=fault
            )  # fmt: skip

    def _enter(self) -> None:
        if self.memory.mode != self.policy.mode:
            self.memory.forget_decisions()
            self.memory.mode = self.policy.mode

    @property
    def suspect(self) -> str:
        """The cause for which the circuit breaker has tripped; empty: it has not."""
        return self.memory.suspects[0] if self.memory.suspects else ""

    def turn(self, moment: Moment) -> list[Decision]:
        """Decide on the observations since the last turn, in their order."""
        if self.policy.mode == "disabled":
            return []
        self._enter()
        decisions = [*_Turn(self.policy, self.memory, moment).decisions()]
        if self.suspect != self._told:
            self._told = self.suspect
            decisions.append(Suspect(self.suspect))
        return decisions


class _Turn:
    """One turn; it changes the memory."""

    def __init__(self, policy: Policy, memory: Memory, moment: Moment) -> None:
        self.policy = policy
        self.memory = memory
        self.moment = moment
        self.cards = {card.uuid: card for card in moment.cards}

    def decisions(self) -> collections.abc.Iterator[Decision]:
        self._begin()
        for card in self.moment.cards:
            yield from self._missed(card)
        for seen in self.moment.seen:
            if isinstance(seen, Hang):
                yield from self._hang(seen)
            elif isinstance(seen, Look):
                yield from self._look(seen)
            elif card := self.cards.get(seen.uuid):
                yield from self._message(card, seen)

    def _begin(self) -> None:
        memory, now, wall = self.memory, self.moment.now, self.moment.wall
        known = memory.wall != 0 or memory.at != 0
        drift = (wall - now) - (memory.wall - memory.at)
        if known and (now < memory.at or abs(drift) > _DRIFT):
            memory.forget_boot()
        memory.at, memory.wall = now, wall
        for uuid in self.cards:
            memory.gpus.setdefault(uuid, Gpu())
        memory.trim(tuple(self.cards))

    def _gpu(self, card: Card) -> Gpu:
        return self.memory.gpus[card.uuid]

    def _is_out(self, card: Card) -> bool:
        """Whether a fault or an operator had taken a GPU out when this turn began."""
        return self.moment.is_taken_out(card.uuid)

    def _missed(self, card: Card) -> collections.abc.Iterator[Decision]:
        """Check whether a decision was carried out; make it again if not."""
        gpu, now = self._gpu(card), self.moment.now
        out = gpu.out
        if out is None:
            return
        if self.policy.mode == "observe" or self._is_out(card):
            out.seen = True
        elif out.seen:
            gpu.out = None  # a test or the operator has brought it back
        elif now - out.at >= _AGAIN:
            out.at = now
            yield _take_out(card.uuid, out)

    def _hang(self, hang: Hang) -> collections.abc.Iterator[Decision]:
        if hang.misses < _MISSES:
            return
        for card in self.moment.cards:
            gpu = self._gpu(card)
            if faults.HANG.name not in gpu.standing:
                gpu.standing[faults.HANG.name] = ""
                yield from self._out(card, conditions.of_row(faults.HANG), faults.HANG.name)

    def _look(self, look: Look) -> collections.abc.Iterator[Decision]:
        for card in self.moment.cards:
            gpu = self._gpu(card)
            gpu.standing.pop(faults.HANG.name, None)
            shown = conditions.of_look(card, look, gpu)
            if shown is None:
                continue
            if self._starts(gpu, shown):
                continue
            before = gpu.standing
            kept = {name: before[name] for name in shown.untold if name in before}
            gpu.standing = kept | {name: one.cause for name, one in shown.findings.items()}
            gpu.held = {name: gpu.held[name] for name in gpu.held if name in gpu.standing}
            for name, finding in shown.findings.items():
                if name not in before or name in shown.fresh or name in gpu.held:
                    yield from self._found(card, finding, told=name in gpu.held)
            yield from self._pending(card)
            yield from self._after(card, look)
        breaker.end(self.memory, self.moment.now, self.cards, self.policy.max_quarantined)

    def _starts(self, gpu: Gpu, shown: conditions.Seen) -> bool:
        """Whether the machine starts: a GPU not seen since boot is not lost yet."""
        lost = not shown.findings.keys().isdisjoint((faults.LOST.name, faults.OFF_BUS.name))
        gpu.met = gpu.met or not lost
        return not gpu.met and self.moment.now < _STARTING

    def _found(
        self, card: Card, finding: Finding, *, told: bool
    ) -> collections.abc.Iterator[Decision]:
        """Act on a fault that is new at a poll."""
        if finding.row.action in (Action.OUT, Action.HOLD):
            better = conditions.confirmed(finding, self._gpu(card).suspicion)
            yield from self._out(card, better, finding.row.name, told=told)
        elif finding.row is faults.REMAP_PENDING and self.policy.recovery != "reset":
            yield from self._test(card, finding.row, finding.reason, _DAY)

    def _pending(self, card: Card) -> collections.abc.Iterator[Decision]:
        """Quarantine an idle GPU for a reset that remaps rows, if resets are allowed."""
        gpu, row = self._gpu(card), faults.REMAP_PENDING
        idle = self.moment.holdings is not None and not self.moment.holders(card.uuid)
        if (
            row.name in gpu.standing
            and self.policy.recovery == "reset"
            and idle
            and gpu.out is None
            and _is_due(gpu, row, self.moment.wall, _DAY)
        ):
            gpu.tested[row.name] = self.moment.wall
            yield from self._out(card, conditions.of_row(row), row.name)

    def _after(self, card: Card, look: Look) -> collections.abc.Iterator[Decision]:
        """End a suspicion, and decide whether the fault of a quarantined GPU is over."""
        gpu, wall = self._gpu(card), self.moment.wall
        suspicion, out = gpu.suspicion, gpu.out
        if suspicion and look.at >= suspicion.at + _SETTLED:
            gpu.suspicion = None
            if out is None:
                why = f"the kernel log reported: {_named(suspicion)}"
                yield from self._test(card, faults.KERNEL_ALONE, why, _HOUR)
        if out is None or out.level == "" or look.at <= out.at:
            return
        passing = (faults.SLOWDOWN.name, faults.REMAP_PENDING.name)
        waits = [
            name for name in gpu.standing if name != faults.REMAP_PENDING.name or name == out.fault
        ]
        if waits:
            out.asked = None
        elif out.fault in passing:
            gpu.out = None
            yield BringBack(card.uuid, out.fault)
        elif out.seen and (out.asked is None or abs(wall - out.asked) >= _RETEST):
            out.asked = wall
            yield Test(card.uuid, out.level, f"after {out.reason}")
            if self.policy.mode == "observe":
                gpu.out = None

    def _message(self, card: Card, message: Message) -> collections.abc.Iterator[Decision]:
        finding, gpu = conditions.of_message(message), self._gpu(card)
        if finding is None:
            return
        if message.source is Source.KERNEL:
            if finding.row.action is Action.OUT and gpu.suspicion is None:
                text = conditions.one_line(message.text)
                gpu.suspicion = Suspicion(message.at, finding.row.name, message.xid, text)
        elif finding.row.action is Action.OUT:
            yield from self._out(card, finding)
        elif finding.row is faults.JOB and finding.xid is not None:
            yield from self._job(card, finding, finding.xid)
        elif finding.row.action is Action.TEST:
            if finding.words:
                yield Tell(card.uuid, finding.row.name, finding.words, hardware=False)
            yield from self._test(card, finding.row, finding.reason, _HOUR)

    def _out(
        self, card: Card, finding: Finding, stands: str = "", *, told: bool = False
    ) -> collections.abc.Iterator[Decision]:
        """Quarantine a GPU, unless its record weighs as much or the circuit breaker has tripped.

        Args:
            card: the GPU.
            finding: the fault.
            stands: the name of the row that polls keep showing, so that the decision can be made
                later; empty: polls do not show it.
            told: whether the job's log has a line about it.
        """
        gpu, row, now = self._gpu(card), finding.row, self.moment.now
        before = gpu.out
        if before and not conditions.outweighs(row, before.level, before.need):
            return
        tell = Tell(card.uuid, row.name, finding.words, hardware=True, xid=finding.xid)
        # A hanging driver is one fault of the driver, not a fault of many GPUs.
        cause = "" if row.action is Action.ALL else finding.cause
        fresh = before is None and not self._is_out(card)
        held = breaker.held(self.memory, cause, card.uuid) if fresh else ""
        if held and stands:
            gpu.held[stands] = held
        elif held:
            yield from self._test(card, row, finding.reason, _HOUR)
        else:
            out = gpu.out = self._weighed(card, finding, before)
            gpu.held, gpu.suspicion = {}, None
            yield _take_out(card.uuid, out)
            told = told or (before is not None and out.reason == before.reason)
        if finding.words and not told:
            yield tell
        if fresh and not (held and told):
            breaker.note(self.memory, now, held or cause, card.uuid)
            breaker.trip(self.memory, now, self.cards, self.policy.max_quarantined)

    def _weighed(self, card: Card, finding: Finding, before: Out | None) -> Out:
        """Merge a fault into the record: the reason that needs more, and the higher level."""
        row, wall, gpu = finding.row, self.moment.wall, self._gpu(card)
        out = Out(
            row.name, finding.reason, row.level, _remedy(row, card), finding.cause, row.need,
            self.moment.now, code=finding.code,
        )  # fmt: skip
        counted = before is not None and faults.BY_NAME[before.fault].counted
        if before:
            level = max(before.level, row.level, key=LEVELS.index)
            words = before if before.need > row.need else out
            out = dataclasses.replace(
                words, level=level, need=max(before.need, row.need), at=out.at, asked=None
            )
        if row.counted and not counted and not (before is None and self._is_out(card)):
            lately = [then for then in gpu.history if wall - then < _QUARANTINES_WITHIN]
            gpu.history = (*lately, wall)[-_MOST_QUARANTINES:]
            if len(gpu.history) == _MOST_QUARANTINES:
                out.level, out.need = "", Need.REPAIR
                out.reason = f"{out.reason}, {faults.OFTEN.title}"
                out.remedy = _remedy(faults.OFTEN, card)
        return out

    def _job(self, card: Card, finding: Finding, code: int) -> collections.abc.Iterator[Decision]:
        """Report a job's own fault to it once; request a test if two jobs had it."""
        gpu, wall = self._gpu(card), self.moment.wall
        holders = self.moment.holders(card.uuid)
        if holders and all(holding.ours for holding in holders):
            return
        names = tuple(sorted({one.container for one in holders if not one.ours}))[:MOST_HOLDERS]
        lately = [one for one in gpu.job_faults if abs(wall - one.wall) < _DAY]
        known = any(one.xid == code and set(names) <= set(one.containers) for one in lately)
        if not known:
            lately.append(JobFault(wall, code, names))
            yield Tell(card.uuid, finding.row.name, finding.words, hardware=False, xid=code)
        gpu.job_faults = tuple(lately[-MOST_JOB_FAULTS:])
        jobs = [
            set(one.containers)
            for one in gpu.job_faults
            if one.xid in faults.SUSPICIOUS_XIDS and one.containers
        ]
        if not known and any(one.isdisjoint(other) for one in jobs for other in jobs):
            why = f"{finding.reason}, in two jobs within 24 h"
            yield from self._test(card, faults.JOB_TWICE, why, _DAY)

    def _test(
        self, card: Card, row: Fault, why: str, every: float
    ) -> collections.abc.Iterator[Decision]:
        """Request a test of a GPU that is not quarantined, at most one in `every` seconds."""
        gpu = self._gpu(card)
        if gpu.out is None and _is_due(gpu, row, self.moment.wall, every):
            gpu.tested[row.name] = self.moment.wall
            yield Test(card.uuid, row.level or LEVELS[0], why)


def _take_out(uuid: str, out: Out) -> TakeOut:
    code = out.code or out.fault
    return TakeOut(uuid, out.fault, out.reason, out.level, out.remedy, out.cause, code)


def _remedy(row: Fault, card: Card) -> str:
    return row.remedy.format(
        uuid=card.uuid, index=card.index, model=card.model, address=card.pci_address
    )


def _named(suspicion: Suspicion) -> str:
    if suspicion.xid is None:
        return faults.BY_NAME[suspicion.fault].title
    return conditions.of_xid(suspicion.xid, suspicion.text).reason


def _is_due(gpu: Gpu, row: Fault, wall: float, every: float) -> bool:
    last = gpu.tested.get(row.name)
    return last is None or abs(wall - last) >= every
