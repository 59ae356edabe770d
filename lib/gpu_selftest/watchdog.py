# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""End a self-test that hangs, and decide whether the driver is at fault."""

import collections.abc
import os
import pathlib
import sys
import threading
import time
import types
import typing

from gpu_selftest import report, results
from gpu_selftest.check import Level, Outcome, Request, Result
from gpu_selftest.quick import host_checks
from gpu_selftest.results import Report
from gpu_selftest.settings import Settings
from gpu_selftest.starvation_clock import Pulse

# After so many seconds something hangs, such as NVML in a driver that died. The service at boot
# has 27 s, some of which Python needs to start from a cold disk. Levels after isolation may
# download; the charm's unit limits them (gpu_selftest.service).
LIMITS: typing.Final = {Level.QUICK: 22.0, Level.ISOLATION: 90.0}
# Isolation makes a container for each device that can be handed out. Eight GPUs in MIG mode have
# 56 devices: each device above _FEW adds _MORE seconds.
_FEW: typing.Final = 8
_MORE: typing.Final = 3.0

# The modules that ask drivers. A module that waits for dpkg, a disk or /dev proves no GPU fault.
_ASKING: typing.Final = ("gpu_agent.gpu.", "gpu_agent.availability.external_processes")
_ASKING_NO_DRIVER: typing.Final = frozenset(
    {
        "gpu_agent.gpu.vendors.device_nodes",
        "gpu_agent.gpu.vendors.nvidia.driver_files",
        "gpu_agent.gpu.vendors.nvidia.driver_packages",
        "gpu_agent.gpu.vendors.nvidia.driver_state",
        "gpu_agent.gpu.vendors.nvidia.kernel_modules",
        "gpu_agent.gpu.vendors.nvidia.module_version",
    }
)

Conclude = collections.abc.Callable[[Settings, Report], None]


class Watchdog:
    """Ends this process with a report if the checks hang.

    Python can't end a thread that waits for the kernel, so a second thread does what is left to
    do. Without a report, a worker with a hanging driver would go on unchanged.

    The driver is blamed if one and the same question to it had no answer for nearly all the time
    while the machine served others. Anything else that hangs may be caused by a job: then the
    test is incomplete and no GPU is taken out of use.

    Attributes:
        limit: the time for quick and isolation together, in seconds.
    """

    def __init__(
        self, kept: Settings, request: Request, conclude: Conclude, home: pathlib.Path
    ) -> None:
        """Do nothing yet.

        Args:
            kept: the settings of this unit.
            request: what is tested.
            conclude: does what follows from a report.
            home: the folder of the clock's file.
        """
        self._settings, self._request, self._conclude = kept, request, conclude
        self._started, self._began = results.started(request.run), time.monotonic()
        self.limit = LIMITS.get(request.level, LIMITS[Level.ISOLATION])
        if request.level is not Level.QUICK:
            devices = sum(len(gpu.devices) for gpu in kept.gpus)
            self.limit += _MORE * max(0, devices - _FEW)
        self._timer = threading.Timer(self.limit, self._end)
        self._pulse = Pulse(_asked, home=home)
        self._last = ""
        self._decided = threading.Lock()

    def start(self) -> None:
        """Start waiting."""
        self._timer.daemon = True
        self._timer.start()
        self._pulse.start(self.limit)

    def reached(self, level: Level) -> None:
        """Stop waiting when a level without a limit begins."""
        if level not in LIMITS:
            self._timer.cancel()
            self._pulse.stop()

    def progress(self, text: str) -> None:
        """Print the step that begins, and remember it in case it hangs."""
        self._last = text
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def conclude(self, found: Report) -> None:
        """Make this report the one that counts, unless time ran out just now."""
        # Held until this process ends: the other thread finds it taken, or is about to exit.
        self._decided.acquire()
        self._pulse.stop()
        self._conclude(self._settings, found)

    def _end(self) -> None:
        if not self._decided.acquire(blocking=False):
            return
        result = self._told(_asked())
        found = Report(
            run=self._request.run,
            # The subject of this test is unknown: the next event has to test again.
            subject="",
            level=self._request.level,
            device=self._request.device,
            gpu=self._request.gpu,
            outcome=results.outcome([result]),
            started=self._started.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self._began, 1),
            results=(result,),
        )
        self._conclude(self._settings, found)
        sys.stdout.write(report.table(found, self._settings.gpus))
        sys.stdout.flush()
        os._exit(results.STATUS[found.outcome])

    def _told(self, question: types.FrameType | None) -> Result:
        """Return the result of a test that has not ended while this question is open."""
        within = f"within {self.limit:g} s"
        last = f"; last step: {self._last}" if self._last else ""
        if question is None:
            text = f"the self-test did not end {within}, and does not wait for a driver{last}"
            return host_checks.DRIVER.result(Outcome.NOT_RUN, text)
        if not self._pulse.is_sure(self.limit, question):
            text = (
                f"the GPU's driver did not answer everything {within}, but it answered some, or "
                f"this machine was starved{last}"
            )
            return host_checks.DRIVER.result(Outcome.NOT_RUN, text)
        return host_checks.DRIVER.result(
            Outcome.FAILED,
            f"the GPU's driver hangs: no answer {within}{last}",
            remedy="Look at the kernel log (sudo dmesg) for messages of the driver, then reboot "
            "the machine: nothing else ends a process that waits for the driver. Then "
            f"`juju run {self._settings.unit} gpu-selftest`",
        )


def _asks_drivers(module: str) -> bool:
    # A vendor's own value only passes a call on.
    passes_on = module.endswith(".vendor")
    return module.startswith(_ASKING) and not passes_on and module not in _ASKING_NO_DRIVER


def _asked() -> types.FrameType | None:
    """Return the main thread's frame if it asks a driver, directly or in a call below that."""
    # The documented use of this function.
    frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    innermost = frames.get(threading.main_thread().ident or 0)
    frame = innermost
    while frame and not _asks_drivers(str(frame.f_globals.get("__name__"))):
        frame = frame.f_back
    return innermost if frame else None
