# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a look or a message says is wrong with a GPU, as rows of the table. Pure."""

import dataclasses
import re
import typing

from gpu_agent.fault_policy import fault_table as faults
from gpu_agent.fault_policy.fault import LEVELS, Fault, Need
from gpu_agent.fault_policy.state import MOST_WORDS, Gpu, Streak, Suspicion
from gpu_agent.gpu.vendors.nvidia import recovery_action, xid
from gpu_agent.model.card import Card, Figures
from gpu_agent.model.observations import Look, Message

# Reasons for a lower clock that are the hardware's: thermal slowdown and power brake (nvml.h,
# nvmlClocksEventReasons; named in gpu_agent.gpu.vendors.nvidia.nvml_health too, which the watch's
# daemon does not load). The bit 0x8, hardware slowdown, goes along with them; alone it comes from
# a job's own power draw.
HARDWARE: typing.Final = {0x40: "thermal slowdown by the hardware", 0x80: "power brake"}

# Looks that come faster than this, such as after each line of the kernel's log, are one.
_APART: typing.Final = 10.0
# Four polls: looks further apart are not in a row, since nobody knows what was between them.
_UNBROKEN: typing.Final = 60.0
_LOOKS: typing.Final = 3
_LASTING: typing.Final = 600.0


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a GPU.

    Attributes:
        row: of the table.
        reason: one line; what stands before `:` is short.
        words: for the job; empty: nothing.
        cause: what several GPUs may have in common.
        xid: its number, where it is one.
    """

    row: Fault
    reason: str
    words: str = ""
    cause: str = ""
    xid: int | None = None


@dataclasses.dataclass(frozen=True)
class Seen:
    """What one look showed of one GPU.

    Attributes:
        findings: what is wrong, by the rows' names.
        untold: names of rows of which this look says nothing.
        fresh: names of rows that are wrong anew, though they were before.
    """

    findings: dict[str, Finding]
    untold: frozenset[str] = frozenset()
    fresh: frozenset[str] = frozenset()


# Ids of GPUs whose errors RAS counts: AMD's, partitions too, and those without an id of their own.
_RAS: typing.Final = re.compile(r"PCI-.+|GPU-[0-9a-f]{16}(-[0-9]+)?")
# As gpu_agent.gpu.vendors.nvidia.nvml_events writes it.
_ACTION: typing.Final = re.compile(r"recovery action ([0-9]{1,3})")

_OF_FIGURES: typing.Final = (
    faults.RECOVERY, faults.ECC, faults.RAS, faults.REMAP_FAILED, faults.REMAP_PENDING,
    faults.SLOWDOWN, faults.SLOWDOWN_LASTING,
)  # fmt: skip


def of_look(card: Card, look: Look, gpu: Gpu) -> Seen | None:
    """What a look shows of a GPU; None where it tells nothing of it.

    It notes in `gpu` what the next look is compared with.
    """
    figures = look.figures.get(card.uuid)
    if card.uuid in look.gone or card.uuid in look.missing:
        where = "PCI's list lacks it" if card.uuid in look.gone else "PCI has it, the driver not"
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
    """A row that needs no number; `text` is what was seen."""
    return Finding(row, f"{row.short}: {one_line(text) or row.title}", row.words, row.cause)


def of_xid(code: int, text: str) -> Finding:
    """An Xid; `text` is the driver's."""
    severity, meaning = xid.meaning(xid.Message(code, "", 0.0, text))
    row = faults.of_xid(code, severity)
    of_it = meaning.replace("the GPU's", "its").replace("the GPU", "it")
    words = row.words.format(code=code, meaning=of_it)
    return Finding(row, f"Xid {code}: {meaning}", words, row.cause, code)


def of_message(message: Message) -> Finding | None:
    """What a message says; None where it is of no row, or its source is none of that row's."""
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
    """A finding by the name of the Xid that the kernel's log told before, whose sign it is."""
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
    """A driver's words as one printable line of bounded length."""
    shown = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return shown[:MOST_WORDS]


def _of_action(action: int) -> Finding:
    words = recovery_action.WORDS.get(action, f"action {action}")
    finding = of_row(faults.of_action(action), f"the driver asks for {words}")
    return dataclasses.replace(finding, words=finding.words.format(what=words))


def _errors(card: Card) -> Fault:
    """The row of memory errors that a GPU could not correct."""
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
    """Whether there are more errors than before; a count that fell began anew with the driver."""
    now, before = figures.ecc_uncorrected, gpu.ecc or 0
    if now is None:
        return False
    gpu.ecc = now
    return now > (before if now >= before else 0)


def _slowed(gpu: Gpu, at: float, figures: Figures) -> tuple[list[Finding], bool]:
    """What the hardware slows down, and whether it is known to be over."""
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
    """Whether a row asks for more than what a GPU is out of use for already.

    Of reset, reboot and repair each is enough for the watch: one fault has many signs.
    """
    higher = LEVELS.index(row.level) > LEVELS.index(level)
    return higher or (row.need > Need.NOTHING and need == Need.NOTHING)
