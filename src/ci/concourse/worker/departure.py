# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The wait for the builds of a worker that retires."""

import collections.abc
import contextlib
import dataclasses
import math
import time
import typing

from ci.concourse.restart import running_steps as steps

_LOOK: typing.Final = 15.0  # seconds between two looks at whether web hears of it


@dataclasses.dataclass(frozen=True)
class Departure:
    """A worker that retires, as the wait for its builds sees it.

    Attributes:
        ends: waits so many seconds for the end of its process; returns whether it has ended.
        is_heard: returns whether web may still take the results of its builds.
        alone: for how many seconds builds may go on that web does not hear of.
        running: returns the containers in which its steps run.
        clock: the time in seconds, which no change of the machine's clock touches.
    """

    ends: collections.abc.Callable[[float], bool]
    is_heard: collections.abc.Callable[[], bool]
    alone: float
    running: collections.abc.Callable[[], tuple[str, ...]] = steps.running
    clock: collections.abc.Callable[[], float] = time.monotonic

    def wait(self, seconds: float, progress: collections.abc.Callable[[str], None]) -> None:
        """Wait until the process has ended, at most so many seconds.

        Args:
            seconds: how long the builds may take, as long as web hears of them.
            progress: told what is waited for.
        """
        end = self.clock() + seconds
        unheard = math.inf
        while (left := min(end, unheard + self.alone) - self.clock()) > 0:
            progress(f"Retiring the worker: {self._waited_for(unheard)} {left:.0f} s left")
            if self.ends(min(left, _LOOK)):
                return
            if end - self.clock() > self.alone:
                unheard = math.inf if self.is_heard() else min(unheard, self.clock())

    def _waited_for(self, unheard: float) -> str:
        """What is waited for, which has so many seconds left."""
        if unheard < math.inf:
            return "web takes nothing of it any more, its builds have"
        with contextlib.suppress(OSError):
            if not self.running():
                return "no step runs, web has to take it off its list, which has"
        return "its builds have"
