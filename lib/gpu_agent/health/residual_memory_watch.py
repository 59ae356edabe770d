# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""After each lease: a GPU whose memory stays taken goes to no task until that is free.

The rule is that of the charm's hooks (gpu_agent.availability.external_processes), which look when
Juju has an event; this looks after each lease. What can't be told, such as who draws on a GPU,
leaves things as they are.
"""

import collections.abc
import logging
import pathlib
import typing

from gpu_agent import paths
from gpu_agent.availability import residual_memory as dirt
from gpu_agent.model.card import Card, Figures
from gpu_agent.model.decisions import Decision
from gpu_agent.model.observations import Holding, Moment
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_table import JOB, Holder

SETTLE: typing.Final = 2.0
"""So many seconds the driver may take to give a process's memory back."""

_log = logging.getLogger(__name__)


class Dirty:
    """The look after each lease as a part of the watch.

    Args:
        folder: of cordons.
        host: the machine's processes; for tests.
    """

    def __init__(self, folder: pathlib.Path = paths.CORDONS, host: Host | None = None) -> None:
        self._folder = folder
        self._host = host or Host()
        self._looked = 0.0
        # When each GPU was last seen to be held; looked at since, and found clean, it is not here.
        self._held: dict[str, float] = {}
        self._known: set[str] = set()
        self._dirty: frozenset[str] | None = None

    def wants_look(self, moment: Moment) -> bool:
        """Whether a poll now would tell something: the memory had its time, and no look since."""
        return any(
            moment.now >= held + SETTLE and self._looked < held + SETTLE
            for uuid, held in self._held.items()
            if not any(one.in_use for one in moment.holders(uuid))
        )

    def turn(self, moment: Moment, _decisions: collections.abc.Sequence[Decision]) -> None:
        """Cordon what stays taken, and lift the cordon of what is free again.

        Raises:
            OSError: cordons can't be read or written; a later turn tries again.
        """
        if self._dirty is None:
            self._dirty = dirt.cordoned(self._folder, dirt.WORD)
        if moment.holdings is None:
            return
        for card in moment.cards:
            # One that is new here may have had a holder just now.
            is_held = any(one.in_use for one in moment.holders(card.uuid))
            if is_held or card.uuid not in self._known:
                self._held[card.uuid] = moment.now
                self._known.add(card.uuid)
        look = moment.look
        if look is None or look.at <= self._looked:
            return
        self._looked = look.at
        for card in moment.cards:
            figures = look.figures.get(card.uuid)
            if figures is not None:
                self._judge(moment, card, look.at, figures)

    def _judge(self, moment: Moment, card: Card, at: float, figures: Figures) -> None:
        uuid, used, total = card.uuid, figures.memory_used_mib, figures.memory_total_mib
        if figures.failure or used is None or total is None:
            return
        found = self._dirty or frozenset()
        if not dirt.is_taken(used, total):
            if at >= self._held.get(uuid, at) + SETTLE:
                self._held.pop(uuid, None)
            if dirt.lift(self._folder, uuid, dirt.WORD):
                _log.info("GPU %d: its memory is free again, tasks may have it", card.index)
            self._dirty = found - {uuid}
        elif uuid in found:
            # A hook may have taken it for over, by an older look.
            dirt.put(self._folder, uuid, dirt.reason(used))
        elif self._is_over(moment, uuid, at) and figures.pids == () and figures.drawing == 0:
            del self._held[uuid]
            reason = dirt.reason(used)
            if dirt.put(self._folder, uuid, reason):
                _log.warning(
                    "GPU %d is %s: no task gets it until that is free", card.index, reason
                )
            self._dirty = found | {uuid}

    def _is_over(self, moment: Moment, uuid: str, at: float) -> bool:
        """Whether a lease of that GPU was over for long enough at a look, with all its processes.

        What a step leaves behind ends when somebody else is to have the GPU, and not before.
        """
        if uuid not in self._held or at < self._held[uuid] + SETTLE:
            return False
        return not any(one.in_use or self._has_left(one) for one in moment.holders(uuid))

    def _has_left(self, one: Holding) -> bool:
        if one.kind == JOB:
            return False  # whatever lives in it is use
        holder = Holder(one.bundle, [*one.devices], [], exclusive=True, since=one.since)
        try:
            return self._host.has_leftovers(one.container, holder)
        except ValueError as error:
            raise OSError(f"container {one.container}: {error}") from error
