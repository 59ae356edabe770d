# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The loop of the GPU health service: it turns observations into a Moment for each part.

No other program waits for the loop. A part that fails is logged once and does not stop the others.
"""

import collections.abc
import logging
import time
import typing

from gpu_agent.health import lease_reader as leased
from gpu_agent.health.settings import Settings
from gpu_agent.model.decisions import Decision
from gpu_agent.model.observations import Holding, Look, Moment, Seen
from gpu_runtime.holder_usage import Host

# Seconds between turns: HELD while a GPU is held and for _AFTER after that; SOON after a decision,
# so that its effect is observed.
HELD: typing.Final = 2.0
SOON: typing.Final = 0.5
_AFTER: typing.Final = 5.0
# Shortest time between turns: the leases of many short steps change all the time.
_APART: typing.Final = 0.2

_log = logging.getLogger(__name__)

# Errors of a part that do not end the service: faults of the machine, and defects of the part.
_FAULTS: typing.Final = (
    OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError,
)  # fmt: skip


class Part(typing.Protocol):
    """Something that runs at each turn, after the decisions."""

    def turn(self, moment: Moment, decisions: collections.abc.Sequence[Decision], /) -> None:
        """Act on a moment and its decisions."""
        ...


class Judge(typing.Protocol):
    """The fault policy."""

    def turn(self, moment: Moment) -> list[Decision]:
        """Decide on a moment."""
        ...


class Sources(typing.Protocol):
    """The sources of observations."""

    def take(self, timeout: float) -> list[Seen]:
        """Wait for observations, at most so many seconds, and return them."""
        ...

    def holdings(self) -> tuple[Holding, ...] | None:
        """Return the holders of leases; None if they can't be read."""
        ...


class Watch:
    """The loop; call `turn` again and again."""

    def __init__(
        self,
        settings: Settings,
        sources: Sources,
        judge: Judge,
        parts: collections.abc.Sequence[Part],
        hurries: collections.abc.Callable[[], bool] = bool,
        clock: collections.abc.Callable[[], float] = Host.now,
    ) -> None:
        """Start without observations.

        Args:
            settings: the settings of the service.
            sources: where observations come from.
            judge: the fault policy.
            parts: run after the judge, in this order.
            hurries: whether a part needs a turn soon even without observations.
            clock: returns the seconds since boot.
        """
        self._settings, self._sources, self._judge = settings, sources, judge
        self._parts, self._hurries = parts, hurries
        self._clock = clock
        self._unavailable = leased.UnavailableGpus(settings.unavailable_folders)
        self._look: Look | None = None
        self._wait, self._held_at = 0.0, float("-inf")
        self._failed: dict[int, str] = {}
        self._is_blind = False

    def turn(self, pause: collections.abc.Callable[[float], None] = time.sleep) -> None:
        """Wait for observations or for the next turn's time, then run each part.

        Args:
            pause: sleeps for so many seconds.
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
        self._unavailable.look(settings.cards)
        holdings = self._sources.holdings()
        if (holdings is None) is not self._is_blind:
            self._is_blind = holdings is None
            _log.warning("%s read who holds a GPU", "cannot" if self._is_blind else "can")
        return Moment(
            now=self._clock(),
            wall=time.time(),
            cards=settings.cards,
            seen=seen,
            look=self._look,
            holdings=holdings,
            unavailable=self._unavailable.causes,
            driver=settings.driver,
            cuda=settings.cuda,
        )

    def _pace(self, moment: Moment, decisions: collections.abc.Sequence[Decision]) -> float:
        """Seconds until the next turn without an observation."""
        if decisions:
            return SOON
        longest = self._settings.poll_seconds
        if moment.holdings is None or any(one.in_use for one in moment.holdings):
            self._held_at = moment.now
        # Some seconds after a lease the GPU's memory is checked.
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
                _log.exception("%s fails, the other parts go on: %s", name, said)
            self._failed[place] = said
        else:
            if self._failed.pop(place, None):
                _log.info("%s works again", type(part).__name__)
