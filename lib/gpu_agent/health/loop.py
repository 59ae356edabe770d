# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The loop of the health watch: what was seen becomes a Moment, and each part has its turn.

Nobody waits for it. A part that fails is said once, and is in the way of no other one.
"""

import collections.abc
import logging
import time
import typing

from gpu_agent.health import lease_reader as leased
from gpu_agent.health.settings import Settings
from gpu_agent.model.decisions import Decision
from gpu_agent.model.observations import Look, Moment, Seen

# In seconds: while somebody holds a GPU, and for a while after; when something was decided, which
# others are to see.
HELD: typing.Final = 2.0
SOON: typing.Final = 0.5
_AFTER: typing.Final = 5.0
# However much comes, no two turns are closer: the leases of many short steps change all the time.
_APART: typing.Final = 0.2

_log = logging.getLogger(__name__)

# What a part may fail of: the machine's faults, and what a defect in it shows as.
_FAULTS: typing.Final = (
    OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError,
)  # fmt: skip


class Part(typing.Protocol):
    """Something that has its turn after each decision."""

    def turn(self, moment: Moment, decisions: collections.abc.Sequence[Decision], /) -> None:
        """Do what follows."""
        ...


class Judge(typing.Protocol):
    """Who decides."""

    def turn(self, moment: Moment) -> list[Decision]:
        """What follows from a moment."""
        ...


class Sources(typing.Protocol):
    """What is seen."""

    def take(self, timeout: float) -> list[Seen]:
        """What came, as soon as something did; nothing after so many seconds."""
        ...


class Watch:
    """Puts the parts together; see `turn`."""

    def __init__(
        self,
        settings: Settings,
        sources: Sources,
        judge: Judge,
        parts: collections.abc.Sequence[Part],
        hurries: collections.abc.Callable[[], bool] = bool,
    ) -> None:
        """Begin without a look at the GPUs.

        Args:
            settings: what is watched.
            sources: what is seen of it.
            judge: decides.
            parts: have their turn after it, in this order.
            hurries: whether one of them has something to do soon, though nothing comes.
        """
        self._settings, self._sources, self._judge = settings, sources, judge
        self._parts, self._hurries = parts, hurries
        self._out = leased.Out(settings.cordons, settings.quarantine)
        self._look: Look | None = None
        self._wait, self._held_at = 0.0, float("-inf")
        self._failed: dict[int, str] = {}
        self._is_blind = False

    def turn(self, pause: collections.abc.Callable[[float], None] = time.sleep) -> None:
        """Wait until something was seen or it is time, and have each part do what follows.

        Args:
            pause: waits for so many seconds.
        """
        pause(_APART)
        seen = self._sources.take(max(0.0, self._wait - _APART))
        for one in seen:
            if isinstance(one, Look):
                self._look = one
        moment = self._moment(tuple(seen))
        decisions = self._judge.turn(moment)
        for place, part in enumerate(self._parts):
            self._try(place, part, moment, decisions)
        self._wait = self._pace(moment, decisions)

    def _moment(self, seen: tuple[Seen, ...]) -> Moment:
        settings = self._settings
        self._out.look(settings.cards)
        holdings = leased.holdings(settings.store)
        if (holdings is None) is not self._is_blind:
            self._is_blind = holdings is None
            _log.warning("who holds a GPU %s be told", "can't" if self._is_blind else "can")
        return Moment(
            now=time.clock_gettime(time.CLOCK_BOOTTIME),
            wall=time.time(),
            cards=settings.cards,
            seen=seen,
            look=self._look,
            holdings=holdings,
            out=self._out.reasons,
            cordoned=self._out.cordoned,
            driver=settings.driver,
            cuda=settings.cuda,
        )

    def _pace(self, moment: Moment, decisions: collections.abc.Sequence[Decision]) -> float:
        """Seconds until the next turn, if nothing comes before."""
        if decisions:
            return SOON
        longest = self._settings.poll_seconds
        if moment.holdings is None or any(one.in_use for one in moment.holdings):
            self._held_at = moment.now
        # What a lease leaves behind is looked at some seconds after it.
        idle = moment.now - self._held_at > _AFTER
        return longest if idle and not self._hurries() else min(HELD, longest)

    def _try(
        self, place: int, part: Part, moment: Moment, decisions: collections.abc.Sequence[Decision]
    ) -> None:
        try:
            part.turn(moment, decisions)
        except _FAULTS as error:
            said = f"{type(error).__name__}: {error}"
            if self._failed.get(place) != said:
                name = type(part).__name__
                _log.exception("%s fails, and the rest of the watch goes on: %s", name, said)
            self._failed[place] = said
        else:
            if self._failed.pop(place, None):
                _log.info("%s works again", type(part).__name__)
