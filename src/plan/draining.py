# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The drain and the pause of a unit: purpose, order of the units, status line. Pure.

A drained unit takes no further job, and running jobs end.
"""

import collections.abc
import dataclasses
import enum
import typing

from plan import messages
from plan.messages import Line

WAITS: typing.Final = "waits"
HAS: typing.Final = "has"
"""The words of a unit for its peers: it waits for its turn, or has it. Others mean neither."""

WORK: typing.Final = 1800
"""Seconds that the work after a drain may take beyond the drain's time-out. After that, other
units skip a unit that has its turn, and a drain that nothing continues is given up."""

# How many of the remaining builds are named.
_NAMED: typing.Final = 3


class Purpose(enum.Enum):
    """The purpose of a drain."""

    RELEASE = "release"
    DRIVER = "driver"
    REBOOT = "reboot"


@dataclasses.dataclass(frozen=True)
class Rules:
    """The rules of a drain.

    Attributes:
        unit: Juju's name of this unit, such as `worker/0`.
        timeout: how long builds are waited for, in seconds; 0: not at all.
        peers: the other units of the application, each with its word. Juju vouches for the names;
            the words are the units' own.
    """

    unit: str
    timeout: int
    peers: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Drain:
    """A drain that was begun; times are seconds since boot.

    Attributes:
        purpose: what for.
        then: the text for it, such as `NVIDIA driver 580-server`.
        unit: Juju's name of this unit.
        boot: the id of the boot whose times these are.
        timeout: how long builds are waited for, in seconds.
        asked: when it was asked for.
        since: when the worker began to land; 0: another unit has its turn before.
        turn: the unit and word that it waits for, such as `worker/1 has`; empty: none.
        turn_since: when that wait began.
        skipped: units, with their words, that it no longer waits for.
    """

    purpose: Purpose
    then: str
    unit: str
    boot: str
    timeout: int
    asked: float
    since: float = 0.0
    turn: str = ""
    turn_since: float = 0.0
    skipped: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """The word for the other units."""
        return HAS if self.since else WAITS


@dataclasses.dataclass(frozen=True)
class Pause:
    """An operator's pause; `reason` is the operator's own text."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Rest:
    """A worker that is drained or paused, for its status.

    Attributes:
        pause: the operator's; None: none.
        drain: the one that was begun; None: none.
        now: seconds since boot.
        runs: the worker's process has not ended yet.
        builds: the names of the builds that have a step here, as far as they are known.
        steps: the ids of jobs whose build is unknown.
        job: what people call what is left, such as `build`.
    """

    pause: Pause | None
    drain: Drain | None
    now: float
    runs: bool = False
    builds: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    job: str = "build"


def next_turn(drain: Drain, rules: Rules, now: float) -> Drain:
    """Return the drain with `turn`, the unit that it waits for; empty if it may begin.

    A unit that has its turn goes first, then waiting units in the order of their numbers. So all
    units compute the same order. A unit that is silent for too long is skipped.
    """
    told = {name: word for name, word in rules.peers if word in (WAITS, HAS)}
    for name in sorted(told, key=_number):
        mark = f"{name} {told[name]}"
        if told[name] == WAITS and _number(name) > _number(rules.unit):
            continue
        if mark in drain.skipped:
            continue
        if drain.turn != mark:
            return dataclasses.replace(drain, turn=mark, turn_since=now)
        if now - drain.turn_since <= rules.timeout + WORK:
            return drain
        drain = dataclasses.replace(drain, skipped=(*drain.skipped, mark))
    return dataclasses.replace(drain, turn="")


def line(rest: Rest) -> Line:
    """Return the status line of a drain or a pause."""
    left, drain = _left(rest), rest.drain
    if rest.pause or drain is None:
        return messages.line("paused", reason=rest.pause.reason if rest.pause else "", left=left)
    if not drain.since:
        unit = drain.turn.partition(" ")[0]
        turn = f"{unit} drains first" if unit else "units drain one after another"
        return messages.line("drain-queued", then=drain.then, turn=turn)
    return messages.line(
        "draining",
        left=left,
        waited=duration(max(0.0, rest.now - drain.since)),
        timeout=duration(drain.timeout),
        then=drain.then,
        builds=few((*rest.builds, *(f"step {handle}" for handle in rest.steps))),
    )


def text(rest: Rest) -> str:
    """Return the text of a drain's or pause's status line."""
    return line(rest).text


def waits(rest: Rest) -> bool:
    """Whether it has not begun, since another unit has its turn: this worker works as before."""
    return rest.pause is None and rest.drain is not None and not rest.drain.since


def few(names: collections.abc.Sequence[str]) -> str:
    """Return the first of these names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if names[_NAMED:] else ""
    return ", ".join(names[:_NAMED]) + more


def duration(seconds: float) -> str:
    """Return a duration such as `2h`, `1h30m` or `41m`, without its seconds."""
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours}h{minutes}m" if hours and minutes else f"{hours}h" if hours else f"{minutes}m"


def _left(rest: Rest) -> str:
    """Return how many builds are left, or steps if their builds are unknown."""
    count, noun = len(rest.builds) + len(rest.steps), "step" if rest.steps else rest.job
    if count:
        return f"{count} {noun}{'s' if count > 1 else ''} left"
    # A CI system may keep a worker until the builds whose data is on it have ended.
    kept = f"no step here, but unfinished {rest.job}s have data here"
    return kept if rest.runs else f"no {rest.job} left"


def _number(unit: str) -> int:
    return int(unit.rpartition("/")[2])
