# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Judge what was seen of a GPU under load. Without side effects."""

import collections.abc
import dataclasses
import statistics
import typing

from gpu_agent.gpu.vendors.nvidia import xid
from gpu_agent.gpu.vendors.nvidia.xid import Message, Severity
from gpu_agent.model import clock_reasons
from gpu_agent.model.gpu_health import Health
from gpu_selftest.burnin.plot import Moment
from gpu_selftest.check import Check, Level, Outcome, Result, Said
from gpu_selftest.quick.gpu_case import NOT_TOLD, Case

# leptonai/gpud (components/accelerator/nvidia/hw-slowdown) has 0.6 a minute over 10 minutes and
# looks once a minute: that share of all samples.
_SLOWED_PART: typing.Final = 0.6
_WINDOW_SECONDS: typing.Final = 600.0
# In sgl-project/sglang#39206 a GPU at a fifth of its clock was too hot in 200 of 200 samples. A
# laptop's healthy GPU is hot in a smaller share.
_HOT_PART: typing.Final = 0.9
_NOTED_PART: typing.Final = 0.1
# The same GPU ran at 375 to 480 of 1980 MHz. Their power limit alone keeps some GPUs, such as a
# T4, at half of their highest clock.
_SLOW_PART: typing.Final = 0.4
# A GPU with a lower share than this of the clock of its siblings is worth a look.
_SIBLINGS_PART: typing.Final = 0.85
# How close to its limit a GPU may come before the check warns, in °C.
_NARROW_MARGIN: typing.Final = 3
# Samples before this belong to the start; a shorter load proves nothing.
_SETTLED_SECONDS: typing.Final = 20.0

_HARDWARE: typing.Final = (
    clock_reasons.HARDWARE_SLOWDOWN | clock_reasons.HARDWARE_THERMAL | clock_reasons.POWER_BRAKE
)  # fmt: skip
_ASKED_FOR: typing.Final = clock_reasons.SOFTWARE_POWER_CAP | clock_reasons.APPLICATION_CLOCKS


def _check(name: str, proves: str, source: str = "", unit: str = "") -> Check:
    return Check(f"burn-in-{name}", Level.BURN_IN, proves, source=source, unit=unit, each_gpu=True)


RESULTS: typing.Final = _check(
    "results", "it gives equal results again and again under load", unit="wrong values"
)
ECC: typing.Final = _check(
    "ecc",
    "no uncorrected memory error occurs under load",
    "Azure/azurehpc-health-checks, ECC check",
    "errors",
)
XID: typing.Final = _check(
    "xid", "the driver reports no error under load", "NVIDIA's Xid catalogue, October 2025"
)
THROTTLE: typing.Final = _check(
    "throttle",
    "it is not slowed down for long under load",
    "leptonai/gpud, hw-slowdown; sgl-project/sglang#39206",
    "% of the time",
)
TEMPERATURE: typing.Final = _check(
    "temperature", "it stays below its limit under load", "the GPU's own limit", "°C"
)
CLOCKS: typing.Final = _check(
    "clocks", "it keeps its clock under load", "sgl-project/sglang#39206", "MHz"
)


class UnderLoad(Case):
    """The input of the checks of one GPU; its health is that after the load."""

    @property
    def again(self) -> str:
        """The command that returns the GPU to use: the level that it failed must pass."""
        return f"{super().again.rstrip('`')} level=burn-in`"


@dataclasses.dataclass(frozen=True)
class Load:
    """The work of one GPU, or of one of its MIG devices.

    Attributes:
        products: how many matrix products it made.
        mismatches: how many values differed from the first product's.
        tflops: how fast it was, in 10^12 operations a second.
        problem: why it ended early; or empty.
        starved: the same, if the machine had no memory or time for it; or empty.
        unsupported: why this GPU can't do the work; or empty.
    """

    products: int = 0
    mismatches: int = 0
    tflops: float = 0.0
    problem: str = ""
    starved: str = ""
    unsupported: str = ""


@dataclasses.dataclass(frozen=True)
class Course:
    """One GPU's time under load.

    Attributes:
        case: the GPU, and its health after the load.
        before: its health before the load.
        moments: a sample of each second under load.
        messages: the Xids in that time.
        loads: the work of the GPU, or of each of its MIG devices.
        picture: the path of its picture.
        stopped: how long it was, such as `3.0 of 10 min`, if it was stopped early; or empty.
    """

    case: UnderLoad
    before: Health
    moments: tuple[Moment, ...]
    messages: tuple[Message, ...]
    loads: tuple[Load, ...]
    picture: str
    stopped: str = ""

    @property
    def settled(self) -> list[Moment]:
        """The samples after the start."""
        return [moment for moment in self.moments if moment.at >= _SETTLED_SECONDS]

    @property
    def clock(self) -> float | None:
        """The median of its clock under load, in MHz; None if it was not reported."""
        told = [moment.sample.sm_clock_mhz for moment in self.settled]
        clocks = [clock for clock in told if clock is not None]
        return statistics.median(clocks) if clocks else None


def judge(courses: collections.abc.Sequence[Course]) -> list[Result]:
    """Return the results of all checks of these GPUs, which were under load together."""
    return [
        row.check.told(_said(row, course, courses), course.case.gpu.uuid, row.threshold)
        for course in courses
        for row in _ROWS
    ]


def _results(course: Course, _all: collections.abc.Sequence[Course]) -> Said:
    wrong = sum(load.mismatches for load in course.loads)
    products = sum(load.products for load in course.loads)
    if wrong:
        text = f"wrong results under load: {wrong} values of {products} matrices differ"
        return Said(Outcome.FAILED, text, wrong, course.case.replace)
    problem = next((load.problem for load in course.loads if load.problem), "")
    if problem:
        text = f"the load ended early: {problem}"
        return Said(Outcome.FAILED, text, wrong, course.case.reset)
    starved = next((load.starved for load in course.loads if load.starved), "")
    if starved:
        return Said(Outcome.NOT_RUN, f"the load ended early: {starved}", wrong)
    speed = sum(load.tflops for load in course.loads)
    text = f"{products} matrices alike at {speed:.3g} TFLOPS; picture: {course.picture}"
    return Said(Outcome.PASSED, text, wrong)


def _ecc(course: Course, _all: collections.abc.Sequence[Course]) -> Said:
    before, after = course.before, course.case.health
    counted = _more(before.uncorrected_volatile, after.uncorrected_volatile)
    if counted is None:
        return NOT_TOLD
    sram = 0
    if before.sram and after.sram:
        sram = max(0, after.sram.uncorrected_volatile - before.sram.uncorrected_volatile)
    # If both are known, the caches' errors may count as the memory's too.
    new = max(counted, sram)
    if new:
        text = f"uncorrected memory errors under load: {new}"
        return Said(Outcome.FAILED, text, new, course.case.reset)
    corrected = _more(before.corrected_volatile, after.corrected_volatile) or 0
    return Said(Outcome.PASSED, f"none uncorrected, {corrected} corrected", new)


def _more(before: int | None, after: int | None) -> int | None:
    """Return by how much a counter grew; None if it is unknown."""
    if before is None or after is None:
        return None
    # A driver that was loaded again counts from 0.
    return after - before if after >= before else after


def _xid(course: Course, _all: collections.abc.Sequence[Course]) -> Said:
    lost = course.case.health.failure or next(
        (moment.sample.failure for moment in course.moments if moment.sample.failure), ""
    )
    worst = Outcome.PASSED
    words: list[str] = []
    for message in course.messages:
        severity, meaning = xid.meaning(message)
        words.append(f"Xid {message.code}: {meaning}")
        if severity is Severity.FATAL:
            return Said(Outcome.FAILED, words[-1], message.code, course.case.reset)
        worst = Outcome.WARNING
    if lost:
        text = f"NVML says {lost}: the GPU stopped answering under load"
        return Said(Outcome.FAILED, text, lost, course.case.reset)
    if words:
        text = ", ".join(dict.fromkeys(words))
        again = f"Run a longer burn-in, and look at dmesg; {course.case.again}"
        return Said(worst, text, len(words), again)
    if course.case.log.problem:
        return Said(Outcome.SKIPPED, course.case.log.problem)
    return Said(Outcome.PASSED, "no Xid", 0)


def _throttle(course: Course, _all: collections.abc.Sequence[Course]) -> Said:
    told = [moment for moment in course.settled if moment.sample.reasons is not None]
    if not told:
        return NOT_TOLD
    hardware = _worst_part(told, _HARDWARE)
    hot = _worst_part(told, clock_reasons.SOFTWARE_THERMAL)
    part, reason, limit = max(
        (hardware, "slowed down by its hardware", _SLOWED_PART),
        (hot, "slowed down by its driver for heat", _HOT_PART),
        key=lambda one: one[0] / one[2],
    )
    percent = round(100 * part, 1)
    text = f"{reason}: {percent:g} % of the time"
    if part >= limit:
        return Said(Outcome.FAILED, text, percent, course.case.cool)
    if part >= _NOTED_PART:
        return Said(Outcome.WARNING, text, percent, course.case.cool)
    return Said(Outcome.PASSED, text if part else "never slowed down", percent)


def _worst_part(moments: list[Moment], bits: int) -> float:
    """Return the largest share of any 10 minutes, or of a shorter load, with these reasons."""
    worst, first, slowed = 0.0, 0, 0
    for place, moment in enumerate(moments):
        slowed += bool((moment.sample.reasons or 0) & bits)
        while moment.at - moments[first].at > _WINDOW_SECONDS:
            slowed -= bool((moments[first].sample.reasons or 0) & bits)
            first += 1
            # Whole windows count, and the last window that is not whole.
            worst = max(worst, slowed / (place + 1 - first))
    return max(worst, slowed / (len(moments) - first))


def _temperature(course: Course, _all: collections.abc.Sequence[Course]) -> Said:
    before, after = course.before, course.case.health
    told = [moment.sample.temperature for moment in course.moments]
    highest = max((degrees for degrees in told if degrees is not None), default=None)
    if highest is None:
        return NOT_TOLD
    first, last = (
        "unknown" if degrees is None else f"{degrees} °C"
        for degrees in (before.temperature, after.temperature)
    )
    text = f"{first} before, {highest} °C at most, {last} after"
    if before.temperature is None or before.temperature_margin is None:
        return Said(Outcome.SKIPPED, f"{text}; the GPU does not report its limit", highest)
    margin = before.temperature + before.temperature_margin - highest
    if margin <= 0:
        return Said(Outcome.FAILED, f"too hot under load: {text}", highest, course.case.cool)
    outcome = Outcome.WARNING if margin <= _NARROW_MARGIN else Outcome.PASSED
    return Said(outcome, f"{text}; {margin} °C below its limit", highest, course.case.cool)


def _clocks(course: Course, courses: collections.abc.Sequence[Course]) -> Said:
    clock, highest = course.clock, course.before.sm_clock_max_mhz
    if clock is None or not highest:
        return NOT_TOLD
    text = f"{clock:g} of {highest} MHz{_power(course)}"
    if clock < _SLOW_PART * highest:
        asked = [bool((one.sample.reasons or 0) & _ASKED_FOR) for one in course.settled]
        # The operator's own power limit or clock is not a fault of the card.
        outcome = Outcome.WARNING if statistics.fmean(asked) > 0.5 else Outcome.FAILED
        remedy = (
            "Check the GPU's power limit and clocks (`nvidia-smi -q -d POWER,CLOCK`), its power "
            f"cables and its cooling; {course.case.again}"
        )
        return Said(outcome, f"slow under load: {text}", clock, remedy)
    others = [
        other.clock
        for other in courses
        if other.case.gpu.model == course.case.gpu.model and other.clock and other is not course
    ]
    usual = statistics.median(others) if others else clock
    if clock < _SIBLINGS_PART * usual:
        text = f"slower than other GPUs of its model, which have {usual:g} MHz: {text}"
        return Said(Outcome.WARNING, text, clock, course.case.cool)
    return Said(Outcome.PASSED, text, clock)


def _power(course: Course) -> str:
    """Describe power under load and its limit, and clock and power before and after."""
    told = [moment.sample.power_w for moment in course.settled]
    drawn = [power for power in told if power is not None]
    limit = course.before.power_limit_w
    text = f" at {statistics.median(drawn):.0f}" if drawn else ""
    text += f" of {limit:.0f}" if text and limit else ""
    text += " W" if text else ""
    around = [
        f"{state.sm_clock_mhz} MHz at {state.power_w:.0f} W {when}"
        for state, when in ((course.before, "before"), (course.case.health, "after"))
        if state.sm_clock_mhz is not None and state.power_w is not None
    ]
    return "; ".join([text, *around])


class _Row(typing.NamedTuple):
    check: Check
    judge: collections.abc.Callable[[Course, collections.abc.Sequence[Course]], Said]
    threshold: str


_ROWS: typing.Final = (
    _Row(RESULTS, _results, "0"),
    _Row(ECC, _ecc, "0 uncorrected"),
    _Row(XID, _xid, "none that requires a reset, a reboot or a repair"),
    _Row(THROTTLE, _throttle, "less than 60 by hardware, 90 for heat; better 10"),
    _Row(TEMPERATURE, _temperature, "below the limit of the GPU, better by 4"),
    _Row(CLOCKS, _clocks, "at least 40 % of the highest, 85 % of others of its model"),
)
CHECKS: typing.Final = tuple(row.check for row in _ROWS)
# These checks say nothing about a GPU that did not work.
_OF_LOAD: typing.Final = (THROTTLE, TEMPERATURE, CLOCKS)


def _said(row: _Row, course: Course, courses: collections.abc.Sequence[Course]) -> Said:
    unsupported = next((load.unsupported for load in course.loads if load.unsupported), "")
    if unsupported:
        return Said(Outcome.SKIPPED, unsupported)
    if row.check in _OF_LOAD and not course.settled:
        short = f"the GPU was under load for less than {_SETTLED_SECONDS:g} s"
        return Said(
            Outcome.NOT_RUN, f"stopped after {course.stopped}" if course.stopped else short
        )
    said = row.judge(course, courses)
    if course.stopped and said.outcome in (Outcome.PASSED, Outcome.WARNING):
        text = f"stopped after {course.stopped}; until then: {said.text}"
        return said._replace(outcome=Outcome.NOT_RUN, text=text)
    return said
