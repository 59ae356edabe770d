# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Wake the charm when a GPU becomes idle that is due for a test or a reset."""

import collections.abc
import logging
import typing

from gpu_agent.availability import retests
from gpu_agent.health.residual_memory_watch import SETTLE
from gpu_agent.model.decisions import Decision
from gpu_agent.model.observations import Moment

# Seconds between two calls for the same GPU, as between Juju's own events: without the pause, each
# short job would run the charm.
_APART: typing.Final = 300.0

_log = logging.getLogger(__name__)


class Freed:
    """Reports GPUs that became idle; a part of the GPU health service.

    Args:
        recovery: what the charm may do for a GPU; unless `none`, it is woken for an idle GPU.
        wake: runs the charm.
        requests: returns the requested self-tests; raises OSError.
    """

    def __init__(
        self,
        recovery: str,
        wake: collections.abc.Callable[[], None],
        requests: collections.abc.Callable[[], tuple[retests.Ask, ...]] = retests.read,
    ) -> None:
        self._recovers, self._wake = recovery != "none", wake
        self._requests = requests
        # When each was last in use, by a lease or outside CI, until it was seen to be free.
        self._busy: dict[str, float] = {}
        self._woken: dict[str, float] = {}

    def turn(self, moment: Moment, _decisions: collections.abc.Sequence[Decision]) -> None:
        """Wake the charm for an idle GPU that is due for a test or a reset.

        Raises:
            OSError: the requests can't be read; a later turn tries again.
        """
        if moment.holdings is None:
            return
        for uuid in (card.uuid for card in moment.cards):
            held = any(
                one.handing_over or (one.in_use and not one.ours) for one in moment.holders(uuid)
            )
            returns = uuid in moment.unavailable and not moment.is_taken_out(uuid)
            if held or returns:
                self._busy[uuid] = moment.now
            # The driver may still be freeing the memory, and no test starts before that.
            elif uuid in self._busy and moment.now >= self._busy[uuid] + SETTLE:
                waits = self._waits(uuid, moment)
                del self._busy[uuid]
                if waits and moment.now >= self._woken.get(uuid, float("-inf")) + _APART:
                    self._woken[uuid] = moment.now
                    _log.info("waking the charm: %s is idle and due for a test or a reset", uuid)
                    self._wake()

    def _waits(self, uuid: str, moment: Moment) -> bool:
        return (self._recovers and uuid in moment.unavailable) or any(
            ask.uuid == uuid for ask in self._requests()
        )
