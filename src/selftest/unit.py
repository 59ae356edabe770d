# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The self-test as a systemd unit: at each boot, and as the charm starts and follows it.

It is no process of a hook's: NVML may hang for ever, and a burn-in takes longer than Juju's lock
may be held.
"""

import dataclasses
import datetime
import pathlib
import re
import time
import typing

import machine.files as files
import machine.process as process
import machine.services as services
import machine.templates as templates
import machine.transient as transient
from oci import wrapper
from selftest import results
from selftest.check import Level, Progress
from selftest.results import Report

LAUNCHER: typing.Final = wrapper.BIN / "gpu-selftest"
BOOT: typing.Final = "gpu-ci-selftest.service"
RUN: typing.Final = "gpu-ci-selftest-run.service"
LOG: typing.Final = wrapper.LOG.parent / "selftest.log"
# Who tests holds it: one at a time, by whatever way it was started.
LOCK: typing.Final = wrapper.RUN / "selftest.lock"

# In seconds, above what the command itself allows; the first compute downloads gigabytes.
_LIMITS: typing.Final = {
    Level.QUICK: 60,
    Level.ISOLATION: 180,
    Level.COMPUTE: 7200,
    Level.BURN_IN: 7200,
}
_DESCRIPTION: typing.Final = re.compile(rf"GPU self-test ({results.RUN_PATTERN}), level (\S+)")
_CHARM: typing.Final = pathlib.Path(__file__).resolve().parents[2]
_POLL: typing.Final = 0.5


class SelftestError(Exception):
    """A self-test can't be started, or ended without a verdict; the text says why."""


@dataclasses.dataclass(frozen=True)
class Running:
    """A self-test that runs now.

    Attributes:
        run: its id.
        level: its level.
        since: when it was started.
    """

    run: str
    level: Level
    since: datetime.datetime


def install(*, on_start: bool) -> bool:
    """Have the command on this machine and, if `on_start`, the test at each boot.

    Returns:
        Whether anything had to be changed.
    """
    files.ensure_directory(LAUNCHER.parent)
    launcher = templates.render("gpu-selftest", charm=_CHARM, python=wrapper.PYTHON)
    changed = files.ensure_file(LAUNCHER, launcher, mode=0o755)
    if not on_start:
        return services.remove_unit(BOOT) or changed
    service = templates.render("gpu-ci-selftest.service", launcher=LAUNCHER)
    return services.ensure_unit(BOOT, service) or changed


def remove() -> bool:
    """Stop what runs, and take all of this away but the verdicts. True if anything was there."""
    changed = stop()
    changed |= services.remove_unit(BOOT)
    for path in (LAUNCHER, LOG, LOCK):
        changed |= files.ensure_absent(path)
    for folder in (LAUNCHER.parent, LAUNCHER.parent.parent, LOG.parent, LOCK.parent):
        files.remove_if_empty(folder)
    return changed


def start(level: Level, *, gpu: str = "", minutes: int = 0, device: str = "cuda") -> str:
    """Start a self-test. Return the id of the run.

    Args:
        level: how much is tested.
        gpu: index or UUID of the only GPU that is meant; empty: all.
        minutes: how long burn-in lasts; 0: as the command has it.
        device: `cuda`, or `cpu`, which proves no GPU.

    Raises:
        SelftestError: if one runs already, or systemd can't start it.
    """
    if now := running():
        raise SelftestError(
            f"A self-test of level {now.level.value} runs since {now.since:%H:%M} UTC: "
            f"wait for its end, or stop it by systemctl stop {RUN}"
        )
    run = results.new_run()
    command = [str(LAUNCHER), "--level", level.value, "--run", run, "--device", device]
    command += ["--gpu", gpu] if gpu else []
    command += ["--duration", str(minutes)] if minutes else []
    files.ensure_directory(LOG.parent)
    properties = {
        "RuntimeMaxSec": str(_LIMITS[level] + 60 * minutes),
        "TimeoutStopSec": "20",
        # Its first process stops the load and tells what it has seen; what then is left is killed.
        "KillMode": "mixed",
        "StandardOutput": "null",
        "StandardError": f"truncate:{LOG}",
        # Failed and incomplete tests are no failures of the unit.
        "SuccessExitStatus": "1 3",
        # Where memory runs out, the test goes and not a job.
        "OOMScoreAdjust": "500",
    }
    description = f"GPU self-test {run}, level {level.value}"
    try:
        transient.start(RUN, command, description=description, properties=properties)
    except process.CommandError as error:
        raise SelftestError(f"The self-test can't be started: {error}") from error
    return run


def follow(run: str, seconds: float, progress: Progress) -> Report | None:
    """Follow a self-test to its end, or for so many seconds.

    Args:
        run: what start has returned.
        seconds: how long at most.
        progress: given each new line of its log.

    Returns:
        Its report; None if it runs still.

    Raises:
        SelftestError: if it ended without a report.
    """
    deadline = time.monotonic() + seconds
    told = 0
    while True:
        # In this order: what ends after the first look has left its report for the third.
        now, lines, report = running(), _log(), results.read(run)
        runs = now is not None and now.run == run
        for line in lines[told:]:
            progress(line)
        told = len(lines)
        if report:
            return report
        if not runs:
            raise SelftestError(_why(lines))
        if time.monotonic() > deadline:
            return None
        time.sleep(_POLL)


def running() -> Running | None:
    """The self-test that the charm has started and that runs now."""
    shown = services.show(RUN, "ActiveState", "Description")
    found = _DESCRIPTION.fullmatch(shown["Description"])
    if found is None or shown["ActiveState"] in ("inactive", "failed"):
        return None
    return Running(found[1], Level(found[2]), results.started(found[1]))


def stop() -> bool:
    """End the self-test that the charm has started. Return True if it ran."""
    stopped = services.ensure_stopped(RUN)
    services.forget_failure(RUN)
    return stopped


def _log() -> list[str]:
    """The whole lines of the log."""
    whole, _, _ = (files.read_text(LOG) or "").rpartition("\n")
    return whole.splitlines()


def _why(lines: list[str]) -> str:
    """What ended a self-test that has left no report."""
    result = services.show(RUN, "Result")["Result"]
    words = {
        "oom-kill": "the machine ran out of memory",
        "timeout": "it did not end in time",
        "signal": "it was killed",
        "core-dump": "it crashed",
    }
    services.forget_failure(RUN)
    end = " / ".join(line.strip() for line in lines[-3:] if line.strip())
    return (
        f"The self-test ended without a verdict: {words.get(result, 'see its log')}"
        + (f"; its last words: {end}" if end else "")
        + f"; {LOG} has all of it"
    )
