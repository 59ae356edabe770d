# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The machine as the levels compute and burn-in use it, as values that a test replaces."""

import collections.abc
import contextlib
import dataclasses
import pathlib

from gpu_agent.gpu.vendors import registry
from gpu_agent.gpu.vendors.vendor import Vendor
from gpu_selftest import gpu_reservation, results
from gpu_selftest.check import Obstacle, Progress
from gpu_selftest.compute import environment
from gpu_selftest.compute.environment import Environment
from gpu_selftest.starvation_clock import Pulse


@dataclasses.dataclass(frozen=True)
class Times:
    """Pauses and limits, in seconds.

    Attributes:
        work: the limit of one measurement; the slowest GPUs that PyTorch supports need a tenth.
        look: the pause between two samples of GPUs under load.
        tell: the pause between two reports on the burn-in.
        silence: the limit for the load's output. It prints its state about each second. Before
            that it loads PyTorch, and the driver if persistence mode is off.
        stop: how long the load may take to end after it was asked to.
    """

    work: float = 600.0
    look: float = 1.0
    tell: float = 30.0
    silence: float = 120.0
    stop: float = 10.0


@dataclasses.dataclass(frozen=True)
class Equipment:
    """What the levels compute and burn-in work with; the defaults are the real ones.

    Attributes:
        home: the folder of the rates and pictures that are kept.
        vendor: returns the vendor of that name.
        alone: reserves GPUs (gpu_selftest.gpu_reservation).
        pytorch: makes the environment of PyTorch (gpu_selftest.compute.environment.ensure).
        clock: makes a clock that is not started yet.
        times: pauses and limits.
    """

    home: pathlib.Path = results.HOME
    vendor: collections.abc.Callable[[str], Vendor] = registry.find
    alone: collections.abc.Callable[
        [str, collections.abc.Iterable[str]], contextlib.AbstractContextManager[Obstacle | None]
    ] = gpu_reservation.alone
    pytorch: collections.abc.Callable[[str, str, str, Progress], Environment] = environment.ensure
    clock: collections.abc.Callable[[], Pulse] = Pulse
    times: Times = Times()
