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
import traceback
import types
import typing

from ci.concourse import release
from gpu_agent import paths as wrapper
from gpu_agent.model.inventory import Gpu
from gpu_selftest import report, results, run, service, settings
from gpu_selftest.check import Level
from gpu_selftest.results import STATUS, Report
from gpu_selftest.settings import Settings
from gpu_selftest.watchdog import Watchdog
from machine import files, locks

# A command that was asked for nonsense ends as argparse does.
WRONG_USE: typing.Final = 2
# Python's own, 1, would be a verdict.
CRASHED: typing.Final = 4

_MINUTES: typing.Final = 10
_MOST_MINUTES: typing.Final = 24 * 60


class UsageError(Exception):
    """The command can't do what it was asked for; the text says why and what to do instead."""


def main(arguments: collections.abc.Sequence[str]) -> int:
    """Test, keep the verdict, print it. Return the exit status."""
    asked = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        kept, request = _request(asked)
        files.ensure_directory(service.LOCK.parent)
        since = results.started(request.run)
        said = f"pid {os.getpid()}, level {request.level.value}, since {since:%H:%M:%S} UTC"
        with locks.hold(service.LOCK, said):
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
    """The settings of this service, and what is to be tested.

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
    if not release.CURRENT.exists():
        raise UsageError(
            "this machine has no release of Concourse yet, whose runc the test needs: juju status "
            "says why, or juju attach-resource <application> concourse=<release tarball>"
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
