# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whether a job uses its GPU: what a look at it says, and for how long nothing has. Pure.

A job whose framework was built for the CPU alone runs, is slow and stays green. Only what is seen
to be unused at each look without a break counts; what can't be told is never "unused".
"""

import typing

from gpu_agent.model.card import Figures

PATIENCE: typing.Final = 600.0
"""So many seconds a GPU may be held and not be used."""

# Two looks further apart than this (seconds, some polls) leave a gap of which nothing is known.
_GAP: typing.Final = 60.0
# A driver's context takes more than 100 MiB, an idle GPU less than this
# (gpu_agent.availability.external_processes).
_IDLE_MIB: typing.Final = 64


def is_used(figures: Figures, *, sees_all: bool) -> bool | None:
    """Whether a GPU was in use at a look; None: that can't be told.

    Args:
        figures: of that look.
        sees_all: whether processes on it can't be hidden from this program, as they are in a
            system container, where NVML may list none although there are some.
    """
    if figures.failure:
        return None
    if figures.pids or figures.busy:
        return True
    if figures.busy is None:
        return None
    if figures.pids is not None and sees_all:
        return False
    memory = figures.memory_used_mib
    return False if memory is not None and memory <= _IDLE_MIB else None


class Idle:
    """One GPU of one lease, from look to look.

    Attributes:
        used: whether it was in use at one of them; from then on nothing is said of it.
        since: since when each look found it unused; None: none did, or there was a gap.
        last: when the last look was.
    """

    def __init__(self, *, used: bool = False) -> None:
        self.used = used
        self.since: float | None = None
        self.last = 0.0

    def look(self, at: float, *, used: bool | None) -> None:
        """Take in what a look at it said.

        Args:
            at: when it was, in seconds since boot.
            used: as of `is_used`.
        """
        self.used = self.used or used is True
        if used is not False or (self.since is not None and at - self.last > _GAP):
            self.since = None
        if used is False and self.since is None:
            self.since = at
        self.last = at

    @property
    def seconds(self) -> float:
        """For how long it is known not to have been used; 0 if it has been."""
        return 0.0 if self.used or self.since is None else self.last - self.since
