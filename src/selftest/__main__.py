# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The self-test as a command: by hand, at boot, and as the charm starts it."""

import argparse
import collections.abc
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
import types
import typing

from gpu.inventory import Gpu
from machine import files, locks
from oci import wrapper
from selftest import report, results, run, settings, unit
from selftest.check import Level, Outcome
from selftest.quick import host_checks
from selftest.results import Report
from selftest.settings import Settings

# The exit status of each outcome. A command that was asked for nonsense ends as argparse does.
STATUS: typing.Final = {"passed": 0, "failed": 1, "incomplete": 3}
WRONG_USE: typing.Final = 2
# Python's own, 1, would be a verdict.
CRASHED: typing.Final = 4

# After so many seconds something hangs, such as NVML in a driver that died. The service at boot
# has 27 s, some of which Python takes to start from a cold disk. What comes after isolation may
# download, and the unit of the charm ends it (selftest.unit).
LIMITS: typing.Final = {Level.QUICK: 22.0, Level.ISOLATION: 90.0}
# Isolation makes a container for each device that can be handed out; eight GPUs cut into MIG
# devices are 56, for each of which there is more time beyond these few, in seconds.
_FEW: typing.Final = 8
_MORE: typing.Final = 3.0

_MINUTES: typing.Final = 10
_MOST_MINUTES: typing.Final = 24 * 60


class UsageError(Exception):
    """The command can't do what it was asked for; the text says why and what to do instead."""


class Watchdog:
    """Ends this process with a failed report when the checks hang.

    Python can't end a thread that waits for the kernel, so a second one does what is left to do:
    without a report, a worker whose driver hangs would go on as it was.

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
        self._last = ""
        self._decided = threading.Lock()

    def start(self) -> None:
        """Begin to wait."""
        self._timer.daemon = True
        self._timer.start()

    def reached(self, level: Level) -> None:
        """Wait no longer once what has a limit is done."""
        if level not in LIMITS:
            self._timer.cancel()

    def progress(self, text: str) -> None:
        """Show what happens now, and remember it as what may come to hang."""
        self._last = text
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def conclude(self, found: Report) -> None:
        """Have this report be the one that counts, unless time ran out just now."""
        # Held to the end of this process: the other thread finds it taken, or is about to exit.
        self._decided.acquire()
        run.conclude(self._settings, found)

    def _end(self) -> None:
        if not self._decided.acquire(blocking=False):
            return
        last = f"; the last that was begun: {self._last}" if self._last else ""
        hung = host_checks.DRIVER.result(
            Outcome.FAILED,
            f"the GPU's driver hangs: no answer within {self.limit:g} s{last}",
            remedy="Look into the kernel's log (dmesg) for what the driver says, and reboot the "
            "machine, since nothing else ends a process that waits for it; then "
            f"`juju run {self._settings.unit} gpu-selftest`",
        )
        found = Report(
            run=self._request.run,
            # Nothing is known of what was tested: the next event has to test it again.
            subject="",
            level=self._request.level,
            device=self._request.device,
            gpu=self._request.gpu,
            outcome=results.outcome([hung]),
            started=self._started.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self._began, 1),
            results=(hung,),
        )
        run.conclude(self._settings, found)
        sys.stdout.write(report.table(found, self._settings.gpus))
        sys.stdout.flush()
        os._exit(STATUS["failed"])


def main(arguments: collections.abc.Sequence[str]) -> int:
    """Test, keep the verdict, print it. Return the exit status."""
    asked = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        kept, request = _request(asked)
        files.ensure_directory(unit.LOCK.parent)
        since = results.started(request.run)
        said = f"pid {os.getpid()}, level {request.level.value}, since {since:%H:%M:%S} UTC"
        with locks.hold(unit.LOCK, said):
            found = _test(kept, request)
    except UsageError as error:
        sys.stderr.write(f"gpu-selftest: {error}\n")
        return WRONG_USE
    except locks.LockedError as error:
        sys.stderr.write(f"gpu-selftest: a self-test runs already ({error}): wait for its end\n")
        return WRONG_USE
    except KeyboardInterrupt:
        sys.stderr.write("gpu-selftest: stopped without a verdict; the last one stands\n")
        return STATUS["incomplete"]
    text = json.dumps(results.plain(found), indent=1) + "\n" if asked.json else ""
    sys.stdout.write(text or report.table(found, kept.gpus))
    return STATUS[found.outcome]


def _test(kept: Settings, request: run.Request) -> Report:
    watchdog = Watchdog(kept, request)
    watchdog.start()
    found = run.run(kept, request, watchdog.progress, watchdog.reached)
    watchdog.conclude(found)
    watchdog.progress(report.headline(found))
    return found


def _parser() -> argparse.ArgumentParser:
    levels = [level.value for level in Level]
    parser = argparse.ArgumentParser(
        prog="gpu-selftest",
        description="Tell whether this worker's GPUs can be trusted.",
        epilog="exit status: 0 passed, 1 failed, 2 wrong use, 3 incomplete, 4 crashed",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--level",
        choices=levels,
        default=Level.ISOLATION.value,
        help="how much is tested; each level includes those before it (default: isolation)",
    )
    parser.add_argument("--gpu", default="", help="only this one: its index, or its UUID")
    parser.add_argument(
        "--duration",
        type=int,
        metavar="MINUTES",
        help=f"how long burn-in loads the GPUs (default: {_MINUTES})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="where compute and burn-in calculate; cpu proves no GPU and changes no verdict",
    )
    parser.add_argument("--run", help=argparse.SUPPRESS)
    return parser


def _request(asked: argparse.Namespace) -> tuple[Settings, run.Request]:
    """The settings of this unit, and what is to be tested.

    Raises:
        UsageError: if that can't be.
    """
    level, minutes = Level(asked.level), asked.duration
    if minutes is not None and level is not Level.BURN_IN:
        raise UsageError(f"--duration is for --level burn-in only, not for {level.value}")
    if minutes is not None and not 1 <= minutes <= _MOST_MINUTES:
        raise UsageError(f"--duration {minutes}: 1 to {_MOST_MINUTES} minutes are possible")
    if asked.run and not re.fullmatch(results.RUN_PATTERN, asked.run):
        raise UsageError(f"--run {asked.run}: is no id of a run; leave it out to get one")
    if os.geteuid() != 0:
        raise UsageError(f"root is needed: sudo {wrapper.BIN}/gpu-selftest")
    kept = settings.read()
    if kept is None:
        raise UsageError(
            f"{settings.PATH} is missing or damaged. Where enable-gpu is true, the charm writes "
            "it at its next event; else: juju config <application> enable-gpu=true"
        )
    request = run.Request(
        run=asked.run or results.new_run(),
        level=level,
        gpu=_chosen(kept.gpus, asked.gpu) if asked.gpu else "",
        device=asked.device,
        minutes=minutes or _MINUTES,
    )
    return kept, request


def _chosen(gpus: tuple[Gpu, ...], asked: str) -> str:
    """The id of the GPU that is meant.

    Raises:
        UsageError: if tasks get no such GPU here.
    """
    for gpu in gpus:
        if asked in (gpu.uuid, str(gpu.index), f"gpu-{gpu.index}"):
            return gpu.uuid
    known = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)
    raise UsageError(f"--gpu {asked}: tasks get no such GPU here; there are: {known or 'none'}")


def guard() -> None:
    """Have a defect, or a full disk, end this process without ever passing for a verdict."""
    sys.excepthook = _crash
    # That of the watchdog, while the first one hangs.
    threading.excepthook = lambda told: _crash(told.exc_type, told.exc_value, told.exc_traceback)


def _crash(
    kind: type[BaseException],
    fault: BaseException | None,
    trace: types.TracebackType | None,
) -> None:
    traceback.print_exception(kind, fault, trace)
    sys.stderr.flush()
    os._exit(CRASHED)


def _interrupt(_signal: int, _frame: types.FrameType | None) -> None:
    # Once: what tidies up after it is not to be stopped.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    guard()
    sys.exit(main(sys.argv[1:]))
