# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The faults that a poll or a message shows, as rows of the table. Pure."""

import dataclasses
import re
import typing

from gpu_agent.fault_policy import fault_table as faults
from gpu_agent.fault_policy.fault import LEVELS, Fault, Need
from gpu_agent.fault_policy.state import MOST_WORDS, Gpu, Streak, Suspicion
from gpu_agent.gpu.vendors.nvidia import xid
from gpu_agent.model import clock_reasons, recovery_action
from gpu_agent.model.card import Card, Figures
from gpu_agent.model.observations import Look, Message

# Reasons for a lower clock that come from the hardware. HARDWARE_SLOWDOWN accompanies them; alone
# it is caused by a job's own power draw.
HARDWARE: typing.Final = {
    clock_reasons.HARDWARE_THERMAL: "thermal slowdown by the hardware",
    clock_reasons.POWER_BRAKE: "power brake",
}

# Polls within so many seconds count as one, for example those after each line of the kernel log.
_APART: typing.Final = 10.0
# Four polls: polls further apart are not in a row, since the time between them is unknown.
_UNBROKEN: typing.Final = 60.0
_LOOKS: typing.Final = 3
_LASTING: typing.Final = 600.0


@dataclasses.dataclass(frozen=True)
class Finding:
    """One fault of a GPU.

    Attributes:
        row: its row of the table.
        reason: one line for people; the part before `:` is short.
        words: cause in the job's log; empty: no line.
        cause: common cause of several GPUs.
        xid: the Xid's number; None: the fault is not an Xid.
    """

    row: Fault
    reason: str
    words: str = ""
    cause: str = ""
    xid: int | None = None

    @property
    def code(self) -> str:
        """The fault for programs: the row's name, for an Xid with its number, such as `xid-79`."""
        return self.row.name if self.xid is None else f"{self.row.name}-{self.xid}"


@dataclasses.dataclass(frozen=True)
class Seen:
    """What one poll showed of one GPU.

    Attributes:
        findings: the faults by the names of their rows.
        untold: names of rows about which this poll has no data.
        fresh: names of rows with a new occurrence of a fault that was there before.
    """

    findings: dict[str, Finding]
    untold: frozenset[str] = frozenset()
    fresh: frozenset[str] = frozenset()


# Ids of GPUs whose errors RAS counts: AMD's, partitions too, and GPUs without a UUID.
_RAS: typing.Final = re.compile(r"PCI-.+|GPU-[0-9a-f]{16}(-[0-9]+)?")
# Written by gpu_agent.gpu.vendors.nvidia.nvml_events.
_ACTION: typing.Final = re.compile(r"recovery action ([0-9]{1,3})")

_OF_FIGURES: typing.Final = (
    faults.RECOVERY, faults.ECC, faults.RAS, faults.REMAP_FAILED, faults.REMAP_PENDING,
    faults.SLOWDOWN, faults.SLOWDOWN_LASTING,
)  # fmt: skip


def of_look(card: Card, look: Look, gpu: Gpu) -> Seen | None:
    """The faults of a GPU at a poll; None if the poll has no data of it.

    Stores in `gpu` what the next poll is compared with.
    """
    figures = look.figures.get(card.uuid)
    if card.uuid in look.gone or card.uuid in look.missing:
        where = "not in the PCI list" if card.uuid in look.gone else "not in the driver's list"
        found = [of_row(faults.OFF_BUS, where)]
        silent = {row.name for row in (*_OF_FIGURES, faults.LOST)}
        return Seen({one.row.name: one for one in found}, frozenset(silent))
    if figures is None:
        return None
    if figures.failure:
        lost = of_row(faults.LOST, figures.failure)
        return Seen({lost.row.name: lost}, frozenset(row.name for row in _OF_FIGURES))
    fresh, errors = _grown(gpu, figures), _errors(card)
    slow, clear = _slowed(gpu, look.at, figures)
    findings = [*_flags(figures, errors), *slow]
    return Seen(
        {one.row.name: one for one in findings},
        _untold(figures, slow_told=bool(slow) or clear),
        frozenset({errors.name}) if fresh else frozenset(),
    )


def of_row(row: Fault, text: str = "") -> Finding:
    """A finding without a number; `text` is what was seen."""
    return Finding(row, f"{row.short}: {one_line(text) or row.title}", row.words, row.cause)


def of_xid(code: int, text: str) -> Finding:
    """A finding for an Xid; `text` is the driver's."""
    severity, meaning = xid.meaning(xid.Message(code, "", 0.0, text))
    row = faults.of_xid(code, severity)
    of_it = meaning.replace("the GPU's", "its").replace("the GPU", "it")
    words = row.words.format(code=code, meaning=of_it)
    return Finding(row, f"Xid {code}: {meaning}", words, row.cause, code)


def of_message(message: Message) -> Finding | None:
    """The fault that a message reports; None if it has no row, or the row has other sources."""
    if message.xid is not None:
        found = of_xid(message.xid, message.text)
    elif (row := faults.BY_NAME.get(message.fault)) and "{code}" not in row.words:
        action = _ACTION.fullmatch(message.text) if row is faults.RECOVERY else None
        found = _of_action(int(action[1])) if action else of_row(row, message.text)
        found = dataclasses.replace(found, words=found.words.format(what="a recovery"))
    else:
        return None
    return found if message.source in found.row.sources else None


def confirmed(finding: Finding, suspicion: Suspicion | None) -> Finding:
    """The finding as the Xid that the kernel log reported before, if the finding confirms it."""
    signs = (faults.LOST.name, faults.OFF_BUS.name, faults.RECOVERY.name)
    if suspicion is None or suspicion.xid is None or finding.row.name not in signs:
        return finding
    told = of_xid(suspicion.xid, suspicion.text)
    row = dataclasses.replace(
        told.row,
        level=max(told.row.level, finding.row.level, key=LEVELS.index),
        need=max(told.row.need, finding.row.need),
    )
    return dataclasses.replace(told, row=row, cause=finding.cause)


def one_line(text: str) -> str:
    """A driver's text as one printable line of bounded length."""
    shown = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return shown[:MOST_WORDS]


def _of_action(action: int) -> Finding:
    words = recovery_action.WORDS.get(action, f"action {action}")
    finding = of_row(faults.of_action(action), f"the driver asks for {words}")
    return dataclasses.replace(finding, words=finding.words.format(what=words))


def _errors(card: Card) -> Fault:
    """The row for uncorrected memory errors of this GPU."""
    return faults.RAS if _RAS.fullmatch(card.uuid) else faults.ECC


def _flags(figures: Figures, errors: Fault) -> list[Finding]:
    found: list[Finding] = []
    if figures.recovery_action:
        found.append(_of_action(figures.recovery_action))
    if figures.ecc_uncorrected:
        count = f"{figures.ecc_uncorrected} since the driver was loaded"
        found.append(of_row(errors, count))
    if figures.remap_failed:
        found.append(of_row(faults.REMAP_FAILED))
    if figures.remap_pending:
        found.append(of_row(faults.REMAP_PENDING))
    return found


def _untold(figures: Figures, *, slow_told: bool) -> frozenset[str]:
    told = (
        (faults.RECOVERY, figures.recovery_action is not None),
        (faults.ECC, figures.ecc_uncorrected is not None),
        (faults.RAS, figures.ecc_uncorrected is not None),
        (faults.REMAP_FAILED, figures.remap_failed is not None),
        (faults.REMAP_PENDING, figures.remap_pending is not None),
        (faults.SLOWDOWN, slow_told),
        (faults.SLOWDOWN_LASTING, slow_told),
    )
    return frozenset(row.name for row, is_told in told if not is_told)


def _grown(gpu: Gpu, figures: Figures) -> bool:
    """Whether there are new errors; a lower count started at 0 when the driver was loaded."""
    now, before = figures.ecc_uncorrected, gpu.ecc or 0
    if now is None:
        return False
    gpu.ecc = now
    return now > (before if now >= before else 0)


def _slowed(gpu: Gpu, at: float, figures: Figures) -> tuple[list[Finding], bool]:
    """The slowdowns by the hardware, and whether they are known to be over."""
    if figures.reasons is None:
        return [], False
    named = [words for bit, words in HARDWARE.items() if figures.reasons & bit]
    if not named and faults.SLOWDOWN.name not in gpu.standing:
        gpu.slow = None
        return [], True
    streak = gpu.slow = _streak(gpu.slow, at, bad=bool(named))
    if not streak.bad:
        return [], streak.last - streak.first >= _LASTING
    if streak.count < _LOOKS:
        return [], False
    found = [of_row(faults.SLOWDOWN, " and ".join(named))]
    if streak.last - streak.first >= _LASTING:
        found.append(of_row(faults.SLOWDOWN_LASTING, f"{' and '.join(named)} for 10 min"))
    return found, False


def _streak(before: Streak | None, at: float, *, bad: bool) -> Streak:
    if before is None or before.bad is not bad or not 0 <= at - before.last <= _UNBROKEN:
        return Streak(bad, at, at, at)
    if at - before.counted < _APART:
        return dataclasses.replace(before, last=at)
    return dataclasses.replace(before, last=at, counted=at, count=before.count + 1)


def outweighs(row: Fault, level: str, need: int) -> bool:
    """Whether a fault needs more than the one that a GPU is quarantined for already.

    Reset, reboot and repair count as equal here, since one fault has many signs.
    """
    higher = LEVELS.index(row.level) > LEVELS.index(level)
    return higher or (row.need > Need.NOTHING and need == Need.NOTHING)
