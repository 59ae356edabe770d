# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The machine of a driver upgrade: its NVIDIA driver, and the self-test of its GPUs."""

import collections.abc
import dataclasses
import typing

from gpu_agent.gpu.vendors.nvidia import driver_state
from gpu_agent.model.host import Driver
from gpu_selftest import results, service
from gpu_selftest import settings as selftest_settings
from gpu_selftest.check import Level, Progress
from gpu_selftest.results import Report
from gpu_selftest.service import Running
from gpu_selftest.settings import Settings
from host import nvidia_driver_change
from host.nvidia_driver_change import Choice
from host.nvidia_driver_reload import Reload


@dataclasses.dataclass(frozen=True)
class Machine:
    """The calls by which an upgrade looks at a machine and changes it.

    The defaults are those of the machine that the charm runs on. A test hands in its own.

    Attributes:
        look: returns the state of the driver.
        present: returns the installed driver as packages.
        newest: returns the newest driver of a branch.
        preview: describes what apt would do to install a driver.
        lost: returns the first package of a driver that the archives no longer have; or empty.
        users: returns the processes that use the driver.
        install: installs a driver in place of another.
        reload: loads the installed modules; returns False if a process uses the loaded ones.
        settings: returns the settings of the self-test; None if tasks get no GPU.
        report: returns the report of the last self-test.
        start: starts a self-test, and returns its id.
        follow: follows a self-test for some seconds, and returns its report.
        running: returns the self-test that the charm started and that runs now.
        wait_for_others: waits some seconds for other self-tests; returns the one that still runs.
    """

    look: collections.abc.Callable[[], Driver] = driver_state.look
    present: collections.abc.Callable[[Driver], Choice] = nvidia_driver_change.present
    newest: collections.abc.Callable[[str, Driver], Choice] = nvidia_driver_change.newest
    preview: collections.abc.Callable[[Choice], str] = nvidia_driver_change.preview
    lost: collections.abc.Callable[[Choice], str] = nvidia_driver_change.lost
    users: collections.abc.Callable[[], tuple[str, ...]] = nvidia_driver_change.users
    install: collections.abc.Callable[[Choice, Choice, Progress], bool] = (
        nvidia_driver_change.install
    )
    reload: collections.abc.Callable[[Progress], bool] = Reload().run
    settings: collections.abc.Callable[[], Settings | None] = selftest_settings.read
    report: collections.abc.Callable[[], Report | None] = results.read
    start: collections.abc.Callable[[Level], str] = service.start
    follow: collections.abc.Callable[[str, float, Progress], Report | None] = service.follow
    running: collections.abc.Callable[[], Running | None] = service.running
    wait_for_others: collections.abc.Callable[[float], str] = service.wait_for_others


HERE: typing.Final = Machine()
