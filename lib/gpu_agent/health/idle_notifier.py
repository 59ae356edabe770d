# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm is woken when a job ends on a GPU that waits for its test or its reset."""

import collections.abc
import logging
import typing

from gpu_agent.availability import retests
from gpu_agent.health.residual_memory_watch import SETTLE
from gpu_agent.model.decisions import Decision
from gpu_agent.model.observations import Moment

# In seconds, as Juju's own events are apart: who is in use again by the time that the charm looks,
# or was tested a short while ago, does not have it run for each short job.
_APART: typing.Final = 300.0

_log = logging.getLogger(__name__)


class Freed:
    """The end of what keeps the charm from a GPU, as a part of the watch.

    Args:
        recovery: the option gpu-recovery.
        wake: has the charm look at the machine.
    """

    def __init__(self, recovery: str, wake: collections.abc.Callable[[], None]) -> None:
        self._recovers, self._wake = recovery != "none", wake
        # When each was last in use or cordoned, until it was seen to be free.
        self._busy: dict[str, float] = {}
        self._woken: dict[str, float] = {}

    def turn(self, moment: Moment, _decisions: collections.abc.Sequence[Decision]) -> None:
        """Wake the charm for a GPU that is free, and that it has something to do to.

        Raises:
            OSError: what is asked for can't be read; a later turn tries again.
        """
        if moment.holdings is None:
            return
        for uuid in (card.uuid for card in moment.cards):
            held = any(
                one.handing_over or (one.in_use and not one.ours) for one in moment.holders(uuid)
            )
            if held or uuid in moment.cordoned:
                self._busy[uuid] = moment.now
            # The driver may still be taking the memory back, without which no test begins.
            elif uuid in self._busy and moment.now >= self._busy[uuid] + SETTLE:
                waits = self._waits(uuid, moment)
                del self._busy[uuid]
                if waits and moment.now >= self._woken.get(uuid, float("-inf")) + _APART:
                    self._woken[uuid] = moment.now
                    _log.info("waking the charm: nobody uses %s any more, which waits", uuid)
                    self._wake()

    def _waits(self, uuid: str, moment: Moment) -> bool:
        return (self._recovers and uuid in moment.out) or any(
            ask.uuid == uuid for ask in retests.read()
        )
