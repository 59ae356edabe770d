# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Draw a burn-in as SVG: clock, power and temperature of one GPU over time."""

import collections.abc
import dataclasses
import html
import math
import pathlib
import statistics
import typing

from gpu_agent.model import clock_reasons
from gpu_agent.model.gpu_health import Sample
from machine import templates

# In pixels.
_TEMPLATES: typing.Final = pathlib.Path(__file__).resolve().parents[1] / "templates"
_WIDTH: typing.Final = 760
_LEFT: typing.Final = 70
_RIGHT: typing.Final = 20
_TOP: typing.Final = 56
_PANEL: typing.Final = 120
_GAP: typing.Final = 22
_BOTTOM: typing.Final = 44
_PLOT: typing.Final = _WIDTH - _LEFT - _RIGHT

# Longer runs show the median of neighbouring samples, so that a picture stays small.
_MOST_POINTS: typing.Final = 600

Values = collections.abc.Sequence[float | None]


@dataclasses.dataclass(frozen=True)
class Moment:
    """A sample and its time, in seconds from the start of the load."""

    at: float
    sample: Sample


@dataclasses.dataclass(frozen=True)
class Tick:
    """A mark on an axis: its place in pixels, and its label."""

    at: float
    label: str


@dataclasses.dataclass(frozen=True)
class Panel:
    """One quantity over time; `lines` are the points of polylines, one for each unbroken part."""

    label: str
    colour: str
    top: float
    ticks: tuple[Tick, ...]
    lines: tuple[str, ...]


def draw(title: str, moments: collections.abc.Sequence[Moment]) -> str:
    """Return the picture of one GPU.

    Args:
        title: the title above it.
        moments: in the order of time; may be empty.
    """
    seconds = max([moment.at for moment in moments], default=0.0) or 1.0
    step = math.ceil(len(moments) / _MOST_POINTS) or 1
    parts = [moments[start : start + step] for start in range(0, len(moments), step)]
    places = [_LEFT + part[0].at / seconds * _PLOT for part in parts]
    quantities = (
        ("SM clock, MHz", "#1f5fa8", [_middle(part, "sm_clock_mhz") for part in parts]),
        ("power, W", "#b35900", [_middle(part, "power_w") for part in parts]),
        ("temperature, °C", "#a3195b", [_middle(part, "temperature") for part in parts]),
    )
    panels = [
        _panel(label, colour, _TOP + number * (_PANEL + _GAP), places, values)
        for number, (label, colour, values) in enumerate(quantities)
    ]
    return templates.render(
        _TEMPLATES,
        "burn-in.svg",
        title=html.escape(title),
        width=_WIDTH,
        height=_TOP + len(panels) * (_PANEL + _GAP) - _GAP + _BOTTOM,
        left=_LEFT,
        right=_WIDTH - _RIGHT,
        panel_height=_PANEL,
        panels=panels,
        times=_times(seconds),
        spans=_throttled(moments, seconds),
    )


def _middle(part: collections.abc.Sequence[Moment], field: str) -> float | None:
    """Return the median of neighbouring samples; None if none has the value."""
    values = [getattr(moment.sample, field) for moment in part]
    told = [value for value in values if value is not None]
    return statistics.median(told) if told else None


def _panel(label: str, colour: str, top: float, places: list[float], values: Values) -> Panel:
    step, count = _scale(max([value for value in values if value is not None], default=1.0), 4)

    def height(value: float) -> float:
        return top + _PANEL * (1 - value / (step * count))

    lines: list[str] = []
    points: list[str] = []
    for place, value in zip([*places, 0.0], [*values, None], strict=True):
        if value is not None:
            points.append(f"{place:.1f},{height(value):.1f}")
        elif points:
            # A single sample has no length: drawn twice it shows as a dot.
            lines.append(" ".join(points if len(points) > 1 else points * 2))
            points = []
    ticks = tuple(Tick(height(step * n), f"{step * n:g}") for n in range(count + 1))
    return Panel(label, colour, top, ticks, tuple(lines))


def _scale(highest: float, marks: int) -> tuple[float, int]:
    """Return the distance of an axis's marks from 0 on, and their number above 0."""
    rough = max(highest, 1e-9) / marks
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    return step, math.ceil(highest / step) or 1


def _times(seconds: float) -> list[Tick]:
    """Return the marks of the time axis, in minutes, or in seconds if it is short."""
    unit, word = (60, "min") if seconds >= 180 else (1, "s")
    step, count = _scale(seconds / unit, 8)
    marks = [step * n for n in range(count + 1) if step * n * unit <= seconds]
    return [
        Tick(_LEFT + mark * unit / seconds * _PLOT, f"{mark:g} {word}" if mark else "0")
        for mark in marks
    ]


def _throttled(
    moments: collections.abc.Sequence[Moment], seconds: float
) -> list[tuple[float, float]]:
    """Return when the GPU was slowed down: left edge and width of each span, in pixels."""
    spans: list[tuple[float, float]] = []
    begun: float | None = None
    for moment in moments:
        slowed = bool((moment.sample.reasons or 0) & clock_reasons.THROTTLED)
        if slowed and begun is None:
            begun = moment.at
        if not slowed and begun is not None:
            spans.append((begun, moment.at))
            begun = None
    if begun is not None:
        spans.append((begun, seconds))
    scale = _PLOT / seconds
    # At least a pixel: the reader looks for short ones.
    return [(_LEFT + start * scale, max((end - start) * scale, 1.0)) for start, end in spans]
