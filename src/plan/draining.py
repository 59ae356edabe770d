# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A worker that is to have no builds for a while: what for, whose turn it is, what is said. Pure.

It lands in its Concourse: no step begins on it any more, those that run end.
"""

import collections.abc
import dataclasses
import enum
import typing

WAITS: typing.Final = "waits"
HAS: typing.Final = "has"
"""What a unit tells its peers: it waits for its turn, or has it. Another word means neither."""

WORK: typing.Final = 1800
"""What the work after a drain may take beyond its time-out, as an upgrade or a boot, in seconds:
then a unit that has its turn is taken for dead, and a drain for one that nobody wants."""

# Of the builds that are waited for, so many are named.
_NAMED: typing.Final = 3


class Purpose(enum.Enum):
    """What the worker is drained for."""

    RELEASE = "release"
    DRIVER = "driver"
    REBOOT = "reboot"


@dataclasses.dataclass(frozen=True)
class Rules:
    """How a drain is to go.

    Attributes:
        unit: Juju's name of this unit, such as `worker/0`.
        timeout: how long builds are waited for, in seconds; 0: not at all.
        peers: the other units of the application, each with the word that it tells; Juju says
            who they are, and the word is theirs.
    """

    unit: str
    timeout: int
    peers: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Drain:
    """A drain that was begun; times are seconds since boot.

    Attributes:
        purpose: what for.
        then: that in words, such as `Concourse 8.3.0`.
        unit: Juju's name of this unit.
        boot: the id of the boot whose times these are.
        timeout: how long builds are waited for, in seconds.
        asked: when it was asked for.
        since: when the worker was told to land; 0: another unit has its turn before.
        turn: whom it waits for and why, such as `worker/1 has`; empty: nobody.
        turn_since: when that began.
        skipped: of whom, in the same words, it waits no more.
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
        """What the other units are told."""
        return HAS if self.since else WAITS


@dataclasses.dataclass(frozen=True)
class Pause:
    """The operator wants no step on this worker; `reason` in the operator's words."""

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
        steps: the containers of steps of which nobody knows whose they are.
    """

    pause: Pause | None
    drain: Drain | None
    now: float
    runs: bool = False
    builds: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()


def next_turn(drain: Drain, rules: Rules, now: float) -> Drain:
    """Whom this unit waits for now: `turn` of the answer, empty where it is its turn.

    Who has its turn goes before all, and who waits for it before those of a higher number. So each
    unit comes to the same order, and whoever is silent for too long holds up nobody for ever.
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


def words(rest: Rest) -> str:
    """What status says of it, such as `Draining (2 builds left, 41m of 2h)`."""
    left = _left(rest)
    if rest.pause:
        return f"Paused: {rest.pause.reason} ({left})"
    if rest.drain is None:
        return ""
    if not rest.drain.since:
        before = rest.drain.turn.partition(" ")[0]
        whom = f"for {before}" if before else "for its turn"
        return f"Waiting {whom} before {rest.drain.then}: units drain one after another"
    waited = duration(max(0.0, rest.now - rest.drain.since))
    who = few((*rest.builds, *(f"step {handle}" for handle in rest.steps)))
    text = f"Draining ({left}, {waited} of {duration(rest.drain.timeout)}), then {rest.drain.then}"
    return f"{text}: {who}" if who else text


def waits(rest: Rest) -> bool:
    """Whether it has not begun, since another unit has its turn: this worker works as before."""
    return rest.pause is None and rest.drain is not None and not rest.drain.since


def few(names: collections.abc.Sequence[str]) -> str:
    """The first of these names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if names[_NAMED:] else ""
    return ", ".join(names[:_NAMED]) + more


def duration(seconds: float) -> str:
    """Such as `2h`, `1h30m` or `41m`; what is less than a minute is left out."""
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours}h{minutes}m" if hours and minutes else f"{hours}h" if hours else f"{minutes}m"


def _left(rest: Rest) -> str:
    """How much is left: builds where they are known, else steps."""
    count, noun = len(rest.builds) + len(rest.steps), "step" if rest.steps else "build"
    if count:
        return f"{count} {noun}{'s' if count > 1 else ''} left"
    # Web lets a worker go when the whole builds are over whose results it has.
    return "waiting for web to let it go" if rest.runs else "no build left"


def _number(unit: str) -> int:
    return int(unit.rpartition("/")[2])
