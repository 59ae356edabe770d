# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whether a job uses its GPU, by poll, and how long it has not. Pure.

A job whose framework was built for the CPU only is slow and stays green. A GPU counts as unused
only if each poll without a gap shows that; unknown use counts as use.
"""

import typing

from gpu_agent.model.card import Figures

PATIENCE: typing.Final = 600.0
"""Seconds that a GPU may be held without being used."""

# Polls more than so many seconds apart leave a gap of unknown use.
_GAP: typing.Final = 60.0
# A driver's context takes more than 100 MiB, an idle GPU less than this
# (gpu_agent.availability.external_processes).
_IDLE_MIB: typing.Final = 64


def is_used(figures: Figures, *, sees_all: bool) -> bool | None:
    """Whether a GPU was in use at a poll; None: unknown.

    Args:
        figures: the GPU's figures at that poll.
        sees_all: whether NVML lists all processes; in a system container it may list none although
            there are some.
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
    """The use of one GPU of one lease over polls.

    Attributes:
        used: whether it was ever in use; from then on it never counts as unused.
        since: since when each poll found it unused; None: none did, or there was a gap.
        last: when the last poll was.
    """

    def __init__(self, *, used: bool = False) -> None:
        self.used = used
        self.since: float | None = None
        self.last = 0.0

    def look(self, at: float, *, used: bool | None) -> None:
        """Take in a poll.

        Args:
            at: when it was, in seconds since boot.
            used: the result of `is_used`.
        """
        self.used = self.used or used is True
        if used is not False or (self.since is not None and at - self.last > _GAP):
            self.since = None
        if used is False and self.since is None:
            self.since = at
        self.last = at

    @property
    def seconds(self) -> float:
        """How long it has been unused, in seconds; 0 if it was ever used."""
        return 0.0 if self.used or self.since is None else self.last - self.since
