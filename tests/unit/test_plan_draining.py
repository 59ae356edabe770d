# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How long a drain may take, whose turn it is, and what status says of it."""

import dataclasses

import pytest

from options.table import drain_timeout
from options.values import OptionError
from plan import draining
from plan.draining import HAS, WAITS, Drain, Pause, Purpose, Rest, Rules
from tests.unit.situations import DEFAULTS
from tests.unit.situations import parse_options as parse

DRAIN = Drain(Purpose.RELEASE, "Concourse 8.4.0", "worker/1", "boot", 7200, 100.0, since=100.0)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        *(("2h", 7200), ("90m", 5400), ("1h30m", 5400), ("0", 0), ("0s", 0), ("168h", 604800)),
        *((" 10m ", 600), ("30s", 30), ("7d", 604800), ("1d1h1m1s", 90061), ("240s", 240)),
    ],
)
def test_a_time_is_read(said, seconds):
    assert drain_timeout({"drain-timeout": said}) == seconds
    assert parse({**DEFAULTS, "drain-timeout": said}).drain_timeout == seconds


@pytest.mark.parametrize(
    "said",
    [
        "",
        "2",
        "00",
        "-1h",
        "2 h",
        "2H",
        "8d",
        "1.5h",
        "30m1h",
        "h",
        "169h",
        "7d1s",
        "99999h",
        "٢h",
    ],
)
def test_what_is_none_is_refused_in_words(said):
    with pytest.raises(
        OptionError, match=r"drain-timeout '.*' is not a duration from 0s to 7d: use"
    ):
        drain_timeout({"drain-timeout": said})
    options = parse({**DEFAULTS, "drain-timeout": said})
    assert [wrong.option for wrong in options.wrong] == ["drain-timeout"]


def test_two_hours_are_the_default():
    assert drain_timeout(DEFAULTS) == parse({}).drain_timeout == 7200


FIVE = "step 1, step 2, step 3 and 2 more"
WAITING = dataclasses.replace(DRAIN, since=0.0)


@pytest.mark.parametrize(
    ("peers", "turn"),
    [
        ((), ""),
        ((("worker/0", ""), ("worker/2", "")), ""),
        ((("worker/0", WAITS),), "worker/0 waits"),
        ((("worker/2", WAITS), ("worker/10", WAITS)), ""),
        ((("worker/2", HAS),), "worker/2 has"),
        ((("worker/10", HAS), ("worker/0", WAITS)), "worker/0 waits"),
        # What is no word of ours is no claim, however it looks.
        ((("worker/0", "has\n"), ("worker/2", "HAS"), ("worker/3", "x" * 10**6)), ""),
    ],
)
def test_who_goes_before(peers, turn):
    assert draining.next_turn(WAITING, Rules("worker/1", 7200, peers), 200.0).turn == turn


def test_one_unit_begins_at_a_time_and_all_do():
    """Whatever the order in which they look, each sees the same one before it."""
    numbers = [10, 2, 0, 7]
    words, order = dict.fromkeys(numbers, WAITS), []
    while words:
        free = []
        for number in words:
            peers = tuple((f"worker/{one}", word) for one, word in words.items() if one != number)
            drain = dataclasses.replace(WAITING, unit=f"worker/{number}")
            if not draining.next_turn(drain, Rules(drain.unit, 7200, peers), 0.0).turn:
                free.append(number)
        (one,) = free
        order.append(one)
        del words[one]
    assert order == sorted(numbers)


def test_a_dead_unit_holds_up_nobody_for_ever():
    rules = Rules("worker/5", 600, (("worker/0", HAS), ("worker/1", WAITS)))
    drain, now = WAITING, 1000.0
    drain = draining.next_turn(drain, rules, now)
    assert drain.turn == "worker/0 has"
    patience = 600 + draining.WORK
    assert draining.next_turn(drain, rules, now + patience).turn == "worker/0 has"
    drain = draining.next_turn(drain, rules, now + patience + 1)
    assert drain.turn == "worker/1 waits", "its time begins now, not while it waited itself"
    assert draining.next_turn(drain, rules, now + 2 * patience).turn == "worker/1 waits"
    drain = draining.next_turn(drain, rules, now + 2 * patience + 2)
    assert not drain.turn
    assert draining.next_turn(drain, rules, now + 3 * patience).turn == ""


@pytest.mark.parametrize(
    ("rest", "code", "shown"),
    [
        (
            Rest(None, DRAIN, 100 + 41 * 60, runs=True, builds=("main/a/b #1", "main/a/c #2")),
            "draining",
            ("(2 builds left, 41m of 2h)", "Concourse 8.4.0", ": main/a/b #1, main/a/c #2"),
        ),
        (
            Rest(None, DRAIN, 100.0, runs=True, steps=("1", "2", "3", "4", "5")),
            "draining",
            ("(5 steps left, 0m of 2h)", f": {FIVE}"),
        ),
        (
            Rest(None, DRAIN, 4000.0, runs=True),
            "draining",
            ("no step here, but unfinished builds", "1h5m of 2h"),
        ),
        (
            Rest(Pause("dust"), None, 0.0, builds=("main/a/b #1",)),
            "paused",
            ("dust (1 build left",),
        ),
        (Rest(Pause("dust"), DRAIN, 0.0), "paused", ("dust (no build left)",)),
        (
            Rest(None, dataclasses.replace(WAITING, turn="worker/0 has"), 0.0, runs=True),
            "drain-queued",
            ("Concourse 8.4.0: worker/0 drains first",),
        ),
        (Rest(None, WAITING, 0.0, runs=True), "drain-queued", ("one after another",)),
    ],
)
def test_what_status_shows(rest, code, shown):
    line = draining.line(rest)
    assert line.code == code
    assert all(part in line.text for part in shown), line.text
    assert draining.text(rest) == line.text
