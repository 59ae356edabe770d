# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What ends a self-test that hangs, and says whether that is the driver's fault."""

import os
import sys
import threading
import time
import types
import typing

from gpu_selftest import report, results, run
from gpu_selftest.check import Level, Outcome, Result
from gpu_selftest.quick import host_checks
from gpu_selftest.results import Report
from gpu_selftest.settings import Settings
from gpu_selftest.starvation_clock import Pulse

# After so many seconds something hangs, such as NVML in a driver that died. The service at boot
# has 27 s, some of which Python takes to start from a cold disk. What comes after isolation may
# download, and the unit of the charm ends it (gpu_selftest.service).
LIMITS: typing.Final = {Level.QUICK: 22.0, Level.ISOLATION: 90.0}
# Isolation makes a container for each device that can be handed out; eight GPUs cut into MIG
# devices are 56, for each of which there is more time beyond these few, in seconds.
_FEW: typing.Final = 8
_MORE: typing.Final = 3.0

# The modules that ask drivers. One that waits for dpkg, a disk or /dev says nothing of a GPU.
_ASKING: typing.Final = ("gpu_agent.gpu.", "gpu_agent.availability.external_processes")
_ASKING_NO_DRIVER: typing.Final = frozenset(
    {
        "gpu_agent.gpu.kernel.device_nodes",
        "gpu_agent.gpu.vendors.nvidia.driver_files",
        "gpu_agent.gpu.vendors.nvidia.driver_packages",
        "gpu_agent.gpu.vendors.nvidia.driver_state",
        "gpu_agent.gpu.vendors.nvidia.kernel_modules",
        "gpu_agent.gpu.vendors.nvidia.module_version",
    }
)


class Watchdog:
    """Ends this process with a report when the checks hang.

    Python can't end a thread that waits for the kernel, so a second one does what is left to do:
    without a report, a worker whose driver hangs would go on as it was.

    The driver is to blame where one and the same question to it has had no answer for nearly all
    the time, and the machine served others meanwhile. Of anything else that hangs a job may be
    the cause, so that the test is incomplete and no GPU out of use.

    Attributes:
        limit: how long quick and isolation may take together, in seconds.
    """

    def __init__(self, kept: Settings, request: run.Request) -> None:
        self._settings, self._request = kept, request
        self._started, self._began = results.started(request.run), time.monotonic()
        self.limit = LIMITS.get(request.level, LIMITS[Level.ISOLATION])
        if request.level is not Level.QUICK:
            devices = sum(len(gpu.devices) for gpu in kept.gpus)
            self.limit += _MORE * max(0, devices - _FEW)
        self._timer = threading.Timer(self.limit, self._end)
        self._pulse = Pulse(_asked)
        self._last = ""
        self._decided = threading.Lock()

    def start(self) -> None:
        """Begin to wait."""
        self._timer.daemon = True
        self._timer.start()
        self._pulse.start(self.limit)

    def reached(self, level: Level) -> None:
        """Wait no longer once what has a limit is done."""
        if level not in LIMITS:
            self._timer.cancel()
            self._pulse.stop()

    def progress(self, text: str) -> None:
        """Show what happens now, and remember it as what may come to hang."""
        self._last = text
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def conclude(self, found: Report) -> None:
        """Have this report be the one that counts, unless time ran out just now."""
        # Held to the end of this process: the other thread finds it taken, or is about to exit.
        self._decided.acquire()
        self._pulse.stop()
        run.conclude(self._settings, found)

    def _end(self) -> None:
        if not self._decided.acquire(blocking=False):
            return
        result = self._told(_asked())
        found = Report(
            run=self._request.run,
            # Nothing is known of what was tested: the next event has to test it again.
            subject="",
            level=self._request.level,
            device=self._request.device,
            gpu=self._request.gpu,
            outcome=results.outcome([result]),
            started=self._started.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self._began, 1),
            results=(result,),
        )
        run.conclude(self._settings, found)
        sys.stdout.write(report.table(found, self._settings.gpus))
        sys.stdout.flush()
        os._exit(results.STATUS[found.outcome])

    def _told(self, question: types.FrameType | None) -> Result:
        """What it comes to that the test has not ended, while this question is asked."""
        within = f"within {self.limit:g} s"
        last = f"; the last that was begun: {self._last}" if self._last else ""
        if question is None:
            text = f"the self-test has not ended {within}, and waits for no driver{last}"
            return host_checks.DRIVER.result(Outcome.PREVENTED, text)
        if not self._pulse.is_sure(self.limit, question):
            text = (
                f"the GPU's driver has not answered all {within}, but some, or this machine had "
                f"no time for anybody{last}"
            )
            return host_checks.DRIVER.result(Outcome.PREVENTED, text)
        return host_checks.DRIVER.result(
            Outcome.FAILED,
            f"the GPU's driver hangs: no answer {within}{last}",
            remedy="Look into the kernel's log (dmesg) for what the driver says, and reboot the "
            "machine, since nothing else ends a process that waits for it; then "
            f"`juju run {self._settings.unit} gpu-selftest`",
        )


def _asks_drivers(module: str) -> bool:
    return module.startswith(_ASKING) and module not in _ASKING_NO_DRIVER


def _asked() -> types.FrameType | None:
    """Where the main thread is, if it is in a package that asks drivers, or in what that calls."""
    # Documented, for such purposes as this one.
    frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    innermost = frames.get(threading.main_thread().ident or 0)
    frame = innermost
    while frame and not _asks_drivers(str(frame.f_globals.get("__name__"))):
        frame = frame.f_back
    return innermost if frame else None
