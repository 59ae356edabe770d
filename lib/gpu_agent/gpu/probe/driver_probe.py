# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Ask the drivers through a child process, without waiting for it.

A child that is silent for too long is in a call that does not return. It is killed and left alone,
and the next child tries. If that happens twice in a row, the driver hangs.
"""

import collections.abc
import logging
import os
import pathlib
import sys
import time
import typing

from gpu_agent.gpu.probe import probe_protocol as wire
from gpu_agent.gpu.probe.probe_program import BEAT
from gpu_agent.gpu.vendors.collector import Beat, Event, Note, One
from gpu_agent.model.card import Card, Figures
from gpu_agent.model.observations import Hang, Look, Message, Seen, Source
from machine import child_process as children

POLL: typing.Final = 15
"""Seconds from one sample to the next."""

# For one GPU's queries, or anything else between two lines of a child. All times are in seconds.
_DEADLINE: typing.Final = 7
# Until a child runs: that depends on the machine, not on a driver.
_START: typing.Final = 30
_AFTER_A_HANG: typing.Final = 15
_MISSES: typing.Final = 2  # in a row; then it is tried less often
# Children that were killed in a call and have not ended; with so many, no other is started.
_MOST_LEFT: typing.Final = 3
# The pause after a child that ended by itself: twice as long each time, up to that of a hang.
_PAUSE: typing.Final = 1
# A reader that comes so late after the limit has been asleep itself.
_LATE: typing.Final = 1
# The shortest pause between requested samples, however fast messages come.
_BETWEEN_LOOKS: typing.Final = 1

_log = logging.getLogger(__name__)

Start = collections.abc.Callable[[collections.abc.Sequence[Card], pathlib.Path], children.Child]
Clock = collections.abc.Callable[[], float]


def boottime() -> float:
    """Return the seconds since boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def start(cards: collections.abc.Sequence[Card], root: pathlib.Path) -> children.Child:
    """Start a child with this program's Python and modules.

    Raises:
        OSError: it can't be started.
        EndedError: it has ended at once.
    """
    # Without `site`, which takes a tenth of its start time and a megabyte.
    argv = [
        sys.executable,
        "-B",
        "-S",
        "-m",
        "gpu_agent.gpu.probe.probe_program",
        str(os.getpid()),
        str(root),
    ]
    path = os.pathsep.join(str(pathlib.Path(place).absolute()) for place in sys.path if place)
    child = children.Child(argv, {**os.environ, "PYTHONPATH": path})
    try:
        child.say(wire.pack_cards(cards))
    except children.EndedError:
        child.kill()
        raise
    return child


class Asker:
    """One child after another; call `turn` when there is something to read or when it is due.

    Args:
        cards: the GPUs to query.
        root: the root of the machine's files.
        poll: seconds from one sample to the next.
        begin: starts a child.
        clock: returns the seconds since boot.
        left: returns how many children were killed and have not ended.
    """

    def __init__(
        self,
        cards: collections.abc.Sequence[Card],
        root: pathlib.Path = pathlib.Path("/"),
        poll: float = POLL,
        begin: Start = start,
        clock: Clock = boottime,
        left: collections.abc.Callable[[], int] = children.left,
    ) -> None:
        self._cards, self._root, self._poll = cards, root, poll
        self._begin, self._clock, self._left = begin, clock, left
        self._uuids = frozenset(card.uuid for card in cards)
        self._child: children.Child | None = None
        self._figures: dict[str, Figures] = {}
        self._misses = self._crashes = 0
        # Whether the child runs, is sampling, is to sample again; got time beyond its limit.
        self._begun = self._looking = self._again = self._spared = False
        self._try_at = self._look_at = self._due = self._limit = clock()
        self._waited = 0.0
        self._said = ""

    def fileno(self) -> int | None:
        """A descriptor that is readable when the child has sent a line; None without a child."""
        return self._child.fileno() if self._child else None

    def due(self) -> float:
        """The time when `turn` is due, even without output."""
        if not self._child:
            return self._try_at if self._cards else float("inf")
        return self._limit if self._looking else min(self._limit, self._next_look())

    def poll_now(self) -> None:
        """Poll as soon as possible."""
        self._again = True

    def poll_every(self, seconds: float) -> None:
        """Set the seconds between two polls."""
        if seconds != self._poll:
            self._due += seconds - self._poll
            self._poll = seconds

    def turn(self) -> list[Seen]:
        """The observations of the child since the last call, or a hang."""
        now = self._clock()
        seen: list[Seen] = []
        if not self._child and self._cards and now >= self._try_at:
            self._start(now)
        if self._child:
            try:
                seen += self._talk(self._child, now)
            except (children.EndedError, wire.GarbledError) as error:
                self._ended(f"the driver probe failed: {error}", now)
        if self._child and now >= self._limit:
            seen += self._silent(self._child, now)
        return seen

    def close(self) -> None:
        """Kill the child."""
        if self._child:
            self._child.kill()
        self._child, self._try_at = None, float("inf")

    def _start(self, now: float) -> None:
        if self._left() >= _MOST_LEFT:
            self._say("the drivers are not asked until an earlier call has returned")
            self._try_at = now + _AFTER_A_HANG
            return
        try:
            self._child = self._begin(self._cards, self._root)
        except (OSError, children.EndedError) as error:
            self._ended(f"the driver probe can't be started: {error}", now)
            return
        self._figures = {}
        self._begun, self._looking, self._again, self._look_at = False, True, False, now
        self._limit, self._spared, self._waited = now + _START, False, 0.0

    def _talk(self, child: children.Child, now: float) -> list[Seen]:
        """Read its output, and request the sample that is due."""
        seen: list[Seen] = []
        lines = child.lines()
        for line in lines:
            seen += self._heard(wire.unpack(line, self._uuids), now)
        if not self._looking and now >= self._next_look():
            child.say(b"look")
            self._looking, self._again, self._look_at = True, False, now
            self._figures = {}
            lines.append(b"")
        if lines and self._begun:
            self._limit = now + _DEADLINE + (0 if self._looking else BEAT)
            self._spared, self._waited = False, child.waited()
        return seen

    def _heard(self, said: wire.Said, now: float) -> list[Seen]:
        match said:
            case Event():
                told = Message(now, said.uuid, Source.EVENT, said.fault, said.xid, said.text)
                return [told]
            case One():
                self._figures[said.uuid] = said.figures
            case wire.End():
                return self._looked(said, now)
            case Note():
                self._say(said.text)
            case wire.Begun():
                self._begun = True
            case Beat():
                pass
        return []

    def _looked(self, end: wire.End, now: float) -> list[Seen]:
        self._looking = False
        self._due = max(now, self._look_at + self._poll)
        figures, self._figures = self._figures, {}
        if self._misses >= _MISSES:
            _log.warning("the driver answers again")
        self._misses = self._crashes = 0
        if end.scarce:
            self._say(f"the GPUs can't be sampled: {end.scarce}")
            return []
        return [Look(self._look_at, figures, frozenset(end.missing), frozenset(end.gone))]

    def _next_look(self) -> float:
        return self._look_at + _BETWEEN_LOOKS if self._again else self._due

    def _silent(self, child: children.Child, now: float) -> list[Seen]:
        """Handle a silence that is too long and not caused by a lack of processor time."""
        late = now - self._limit > _LATE
        starved = child.waited() - self._waited > _DEADLINE / 2
        if not self._spared and (late or starved):
            self._spared, self._limit = True, now + (_DEADLINE if starved else _LATE)
            return []
        if not self._begun:
            self._ended("the driver probe does not start", now)
            return []
        self._misses += 1
        _log.warning("a call into a driver has not returned; %s in a row", self._misses)
        child.kill()
        self._child = None
        self._try_at = now if self._misses < _MISSES else now + _AFTER_A_HANG
        return [Hang(now, self._misses)]

    def _ended(self, why: str, now: float) -> None:
        """Replace a child that is useless without any fault of a driver."""
        self._say(why)
        if self._child:
            self._child.kill()
        self._child = None
        # The first one at once, then after one second, two, four ...
        pause = _PAUSE * 2 ** (self._crashes - 1) if self._crashes else 0
        self._try_at = now + min(_AFTER_A_HANG, pause)
        self._crashes = min(self._crashes + 1, 10)

    def _say(self, text: str) -> None:
        """Log a text, once until another text is logged."""
        if text != self._said:
            self._said = text
            _log.warning("%s", text)
