# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""After each lease: keep a GPU whose memory is still taken from tasks until the memory is free.

The rule is that of the charm's hooks (gpu_agent.availability.external_processes), which check at
Juju's events; this part checks after each lease. If data is missing, for example whether a display
uses the GPU, the records stay unchanged.
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
from gpu_runtime.lease_table import UNITS, Holder

SETTLE: typing.Final = 2.0
"""Seconds that the driver may take to free a process's memory."""

_log = logging.getLogger(__name__)


class Dirty:
    """Checks memory after each lease; a part of the GPU health service.

    Args:
        folder: the folder of the records.
        host: the machine's processes; for tests.
    """

    def __init__(self, folder: pathlib.Path = paths.EXTERNAL, host: Host | None = None) -> None:
        self._folder = folder
        self._host = host or Host()
        self._looked = 0.0
        # When each GPU was last held; removed once a later poll found its memory free.
        self._held: dict[str, float] = {}
        self._known: set[str] = set()
        self._dirty: frozenset[str] | None = None

    def wants_look(self, moment: Moment) -> bool:
        """Whether a poll is due: a lease ended SETTLE seconds ago, and no poll came since."""
        return any(
            moment.now >= held + SETTLE and self._looked < held + SETTLE
            for uuid, held in self._held.items()
            if not any(one.in_use for one in moment.holders(uuid))
        )

    def turn(self, moment: Moment, _decisions: collections.abc.Sequence[Decision]) -> None:
        """Record the GPUs whose memory is still taken; remove the records of those that are free.

        Raises:
            OSError: a record can't be read or written; a later turn tries again.
        """
        if self._dirty is None:
            self._dirty = dirt.recorded(self._folder)
        if moment.holdings is None:
            return
        for card in moment.cards:
            # A GPU that is new here may have been held a moment ago.
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
            if dirt.lift(self._folder, uuid):
                _log.info("GPU %d: its memory is free again, tasks get it", card.index)
            self._dirty = found - {uuid}
        elif uuid in found:
            # A hook may have removed the record because of an older poll.
            dirt.put(self._folder, uuid, dirt.cause(used))
        elif self._is_over(moment, uuid, at) and figures.pids == () and figures.drawing == 0:
            del self._held[uuid]
            cause = dirt.cause(used)
            if dirt.put(self._folder, uuid, cause):
                _log.warning(
                    "GPU %d is %s: tasks get it when the memory is free",
                    card.index, cause.describe(),
                )  # fmt: skip
            self._dirty = found | {uuid}

    def _is_over(self, moment: Moment, uuid: str, at: float) -> bool:
        """Whether a lease and all its processes had ended for long enough before a poll.

        Leftover processes of a step end only when the GPU is handed to another holder.
        """
        if uuid not in self._held or at < self._held[uuid] + SETTLE:
            return False
        return not any(one.in_use or self._has_left(one) for one in moment.holders(uuid))

    def _has_left(self, one: Holding) -> bool:
        if one.kind in UNITS:
            return False  # any process in it counts as use
        holder = Holder(one.bundle, [*one.devices], [], exclusive=True, since=one.since)
        try:
            return self._host.has_leftovers(one.container, holder)
        except ValueError as error:
            raise OSError(f"container {one.container}: {error}") from error
