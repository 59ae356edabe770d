# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The command gpu-selftest: run by hand, at boot, and by the charm."""

import argparse
import collections.abc
import dataclasses
import json
import os
import pathlib
import re
import signal
import sys
import threading
import traceback
import types
import typing

from gpu_agent import paths as wrapper
from gpu_agent.model.inventory import Gpu
from gpu_selftest import report, results, run, service, settings
from gpu_selftest.check import Level, Progress, Request
from gpu_selftest.results import STATUS, Report
from gpu_selftest.settings import Settings
from gpu_selftest.watchdog import Conclude, Watchdog
from machine import files, locks

# The exit status for wrong arguments, as of argparse.
WRONG_USE: typing.Final = 2
# Not Python's own, 1, which is the verdict failed.
CRASHED: typing.Final = 4

_MINUTES: typing.Final = 10
_MOST_MINUTES: typing.Final = 24 * 60


class UsageError(Exception):
    """The arguments can't be used here; the text says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Files and calls of the command; the defaults are the real ones.

    Attributes:
        settings: the file of this unit's settings.
        lock: the lock file of the self-test that runs.
        home: the folder of the watchdog's clock.
        user: returns the id of the user who runs it.
        test: makes the checks.
        conclude: does what follows from a report, and keeps it.
    """

    settings: pathlib.Path = settings.PATH
    lock: pathlib.Path = service.LOCK
    home: pathlib.Path = results.HOME
    user: collections.abc.Callable[[], int] = os.geteuid
    test: collections.abc.Callable[
        [Settings, Request, Progress, collections.abc.Callable[[Level], None]], Report
    ] = run.run
    conclude: Conclude = run.conclude


def main(arguments: collections.abc.Sequence[str], place: Place = Place()) -> int:
    """Run the self-test, keep its report, print it. Return the exit status."""
    asked = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        kept, request = _request(asked, place)
        files.ensure_directory(place.lock.parent)
        since = results.started(request.run)
        said = f"pid {os.getpid()}, level {request.level.value}, since {since:%H:%M:%S} UTC"
        with locks.hold(place.lock, said):
            found = _test(kept, request, place)
    except UsageError as error:
        sys.stderr.write(f"gpu-selftest: {error}\n")
        return WRONG_USE
    except locks.LockedError as error:
        sys.stderr.write(f"gpu-selftest: another self-test is running ({error}): wait for it\n")
        return WRONG_USE
    except KeyboardInterrupt:
        sys.stderr.write("gpu-selftest: stopped without a verdict; the last verdict stays\n")
        return STATUS["incomplete"]
    text = json.dumps(results.plain(found), indent=1) + "\n" if asked.json else ""
    sys.stdout.write(text or report.table(found, kept.gpus))
    return STATUS[found.outcome]


def _test(kept: Settings, request: Request, place: Place) -> Report:
    watchdog = Watchdog(kept, request, place.conclude, place.home)
    watchdog.start()
    found = place.test(kept, request, watchdog.progress, watchdog.reached)
    watchdog.conclude(found)
    watchdog.progress(report.headline(found))
    return found


def _parser() -> argparse.ArgumentParser:
    levels = [level.value for level in Level]
    parser = argparse.ArgumentParser(
        prog="gpu-selftest",
        description="Test whether this worker's GPUs work and tasks are isolated.",
        epilog="exit status: 0 passed, 1 failed, 2 wrong use, 3 incomplete, 4 crashed",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--level",
        choices=levels,
        default=Level.ISOLATION.value,
        help="the level; each level includes those before it (default: isolation)",
    )
    parser.add_argument("--gpu", default="", help="test only this GPU: its index or UUID")
    parser.add_argument(
        "--duration",
        type=int,
        metavar="MINUTES",
        help=f"the duration of the burn-in (default: {_MINUTES})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="where compute and burn-in calculate; cpu proves nothing about a GPU",
    )
    parser.add_argument("--run", help=argparse.SUPPRESS)
    return parser


def _request(asked: argparse.Namespace, place: Place) -> tuple[Settings, Request]:
    """Return this unit's settings and the request that the arguments make.

    Raises:
        UsageError: the arguments can't be used here.
    """
    level, minutes = Level(asked.level), asked.duration
    if minutes is not None and level is not Level.BURN_IN:
        raise UsageError(f"--duration is only for --level burn-in, not for {level.value}")
    if minutes is not None and not 1 <= minutes <= _MOST_MINUTES:
        raise UsageError(f"--duration {minutes}: give 1 to {_MOST_MINUTES} minutes")
    if asked.run and not re.fullmatch(results.RUN_PATTERN, asked.run):
        raise UsageError(f"--run {asked.run}: not the id of a run; leave the option out")
    if place.user() != 0:
        raise UsageError(f"the self-test needs root: sudo {wrapper.BIN}/gpu-selftest")
    kept = settings.read(place.settings)
    if kept is None:
        raise UsageError(
            f"{place.settings} is missing or damaged. If GPUs are enabled, it is written again "
            "within 5 minutes. If not: juju config <application> enable-gpu=true"
        )
    runc = kept.runc_path()
    if not pathlib.Path(runc).exists():
        raise UsageError(f"{runc}, which the self-test needs, is missing: {kept.runc_remedy}")
    request = Request(
        run=asked.run or results.new_run(),
        level=level,
        gpu=_chosen(kept.gpus, asked.gpu) if asked.gpu else "",
        device=asked.device,
        minutes=minutes or _MINUTES,
    )
    return kept, request


def _chosen(gpus: tuple[Gpu, ...], asked: str) -> str:
    """Return the id of the GPU that the option names.

    Raises:
        UsageError: tasks get no such GPU on this worker.
    """
    for gpu in gpus:
        if asked in (gpu.uuid, str(gpu.index), f"gpu-{gpu.index}"):
            return gpu.uuid
    known = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)
    raise UsageError(f"--gpu {asked}: tasks get no such GPU here. Available: {known or 'none'}")


def guard() -> None:
    """End this process with its own exit status, not a verdict's, on a bug or a full disk."""
    sys.excepthook = _crash
    # For the watchdog's thread, while the main thread hangs.
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
    # Once only: the cleanup after it must not be interrupted.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    guard()
    sys.exit(main(sys.argv[1:]))
