# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The picture of a burn-in is well-formed SVG whose lines lie where the numbers say."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from gpu_agent.model import clock_reasons
from gpu_agent.model.gpu_health import Sample
from gpu_selftest.burnin import plot as picture
from gpu_selftest.burnin.plot import Moment

SVG = "{http://www.w3.org/2000/svg}"
HOT = clock_reasons.HARDWARE_THERMAL | clock_reasons.HARDWARE_SLOWDOWN


class Drawn:
    """A picture taken apart, with the quantities that its axes give to its pixels."""

    def __init__(self, moments, title="GPU 0"):
        self.text = picture.draw(title, moments)
        self.root = ElementTree.fromstring(self.text)
        self.panels = [one for one in self.root.iter(f"{SVG}g") if one.get("class") == "panel"]
        self.labels = [one.text for one in self.root.iter(f"{SVG}text")]

    def lines(self, panel):
        return [
            [tuple(map(float, point.split(","))) for point in line.get("points").split()]
            for line in self.panels[panel].iter(f"{SVG}polyline")
        ]

    def value(self, panel, height):
        """What a height means, by the panel's own marks."""
        marks = [
            (float(mark.text), float(mark.get("y")) - 4)
            for mark in self.panels[panel].iter(f"{SVG}text")
            if mark.get("text-anchor") == "end"
        ]
        (low, bottom), (high, top) = marks[0], marks[-1]
        assert (low, top < bottom) == (0, True)
        return (bottom - height) / (bottom - top) * high

    def values(self, panel):
        return [self.value(panel, y) for line in self.lines(panel) for _, y in line]

    def spans(self, panel=0):
        return [
            (float(one.get("x")), float(one.get("width")))
            for one in self.panels[panel].iter(f"{SVG}rect")
            if one.get("class") == "slowed"
        ]


def moments(count, **fields):
    return [
        Moment(float(at), Sample(**{name: value(at) for name, value in fields.items()}))
        for at in range(count)
    ]


def course(count=600):
    return moments(
        count,
        sm_clock_mhz=lambda at: 1980 if at < 5 else 1410,
        power_w=lambda at: 690.5,
        temperature=lambda at: 34 + min(at, 40),
        reasons=lambda at: HOT if 300 <= at < 360 else clock_reasons.SOFTWARE_POWER_CAP,
    )


def test_each_quantity_has_a_panel_whose_line_shows_its_values():
    drawn = Drawn(course())
    assert len(drawn.panels) == 3
    for panel, (first, last) in enumerate([(1980, 1410), (690.5, 690.5), (34, 74)]):
        values = drawn.values(panel)
        assert len(values) == 600
        assert values[0] == pytest.approx(first, rel=0.01)
        assert values[-1] == pytest.approx(last, rel=0.01)
    for label in ("SM clock, MHz", "power, W", "temperature, °C"):
        # Once in the legend, once beside its axis.
        assert drawn.labels.count(label) == 2
    assert {"slowed down", "time under load"} <= set(drawn.labels)


def test_time_runs_over_the_whole_width_and_its_marks_fit():
    drawn = Drawn(course(601))
    (line,) = drawn.lines(0)
    assert (line[0][0], line[-1][0]) == (70, 740)
    marks = [label for label in drawn.labels if label == "0" or label.endswith(" min")]
    assert marks[-6:] == ["0", "2 min", "4 min", "6 min", "8 min", "10 min"]
    middle = next(x for x, _ in line if x >= 70 + 670 / 2)
    assert middle == pytest.approx(70 + 670 / 2, abs=1.2)
    short = Drawn(course(61))
    assert [label for label in short.labels if label.endswith(" s")][-1] == "60 s"


def test_what_was_slowed_down_is_shaded_in_every_panel():
    drawn = Drawn(course(601))
    assert drawn.spans(0) == drawn.spans(1) == drawn.spans(2)
    ((x, width),) = drawn.spans()
    assert x == pytest.approx(70 + 670 / 2, abs=1)
    assert width == pytest.approx(67, abs=1)
    # One second of a day is still to be seen, and so is one that lasts to the end.
    day = moments(86400, reasons=lambda at: HOT if at in {40000, 86399} else 0)
    spans = Drawn(day).spans()
    assert len(spans) == 2
    assert all(width >= 1 for _, width in spans)
    assert not Drawn(moments(60, reasons=lambda at: clock_reasons.SOFTWARE_POWER_CAP)).spans()


def test_gaps_stay_gaps():
    drawn = Drawn(moments(9, power_w=lambda at: None if at in {3, 5} else 100.0))
    assert [len(line) for line in drawn.lines(1)] == [3, 2, 3]
    assert drawn.lines(0) == drawn.lines(2) == []


def test_everything_lies_within_the_picture():
    wide = moments(
        5000,
        sm_clock_mhz=lambda at: at,
        power_w=lambda at: at / 1000,
        temperature=lambda at: 0,
        reasons=lambda at: HOT * (at % 2),
    )
    for drawn in (Drawn(course()), Drawn([]), Drawn(wide), Drawn(course(1)), Drawn(course(2))):
        width, height = float(drawn.root.get("width")), float(drawn.root.get("height"))
        for element in drawn.root.iter():
            for x in [element.get(name) for name in ("x", "x1", "x2")]:
                assert x is None or 0 <= float(x) <= width
            for y in [element.get(name) for name in ("y", "y1", "y2")]:
                assert y is None or 0 <= float(y) <= height
        for panel in range(3):
            top = min(float(one.get("y")) for one in drawn.panels[panel].iter(f"{SVG}rect"))
            for line in drawn.lines(panel):
                assert all(70 <= x <= 740 and top <= y <= top + 120 for x, y in line)


def test_long_runs_make_no_large_picture():
    assert len(Drawn(course(86400)).text) < 60_000


def test_title_of_any_gpu_is_text_and_no_markup():
    drawn = Drawn(course(10), title='GPU 0: <script>&"x"</script>')
    assert drawn.root.find(f"{SVG}title").text == 'GPU 0: <script>&"x"</script>'
    assert not re.search(r"<script", drawn.text)
