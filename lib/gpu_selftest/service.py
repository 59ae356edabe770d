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
import typing

from ci.concourse import release
from gpu_agent import install as app
from gpu_agent import paths as wrapper
from gpu_agent.reporting.notifier import wake_unit as once
from gpu_selftest import last_pass, results
from gpu_selftest.check import Level, Progress
from gpu_selftest.results import Report
from machine import files, locks, process, templates
from machine import polling as waiting
from machine import systemd as services
from machine import systemd_escaping as escaping
from machine import systemd_transient as transient

TEMPLATES: typing.Final = pathlib.Path(__file__).resolve().with_name("templates")
LAUNCHER: typing.Final = wrapper.BIN / "gpu-selftest"
BOOT: typing.Final = "gpu-ci-selftest.service"
RUN: typing.Final = "gpu-ci-selftest-run.service"
LOG: typing.Final = wrapper.LOG.parent / "selftest.log"
# Who tests holds it: one at a time, by whatever way it was started.
LOCK: typing.Final = wrapper.RUN / "selftest.lock"
PROXIES: typing.Final = wrapper.RUN / "selftest.env"

# In seconds, above what the command itself allows; the first compute downloads gigabytes.
_LIMITS: typing.Final = {
    Level.QUICK: 60,
    Level.ISOLATION: 600,
    Level.COMPUTE: 7200,
    Level.BURN_IN: 7200,
}
_PROPERTIES: typing.Final = {
    "TimeoutStopSec": "20",
    # Its first process stops the load and tells what it has seen; what then is left is killed.
    "KillMode": "mixed",
    # Failed and incomplete tests, and wrong use, are no failures of the unit.
    "SuccessExitStatus": "1 2 3",
    # Where memory runs out, the test goes and not a job.
    "OOMScoreAdjust": "500",
}
_DESCRIPTION: typing.Final = re.compile(rf"GPU self-test ({results.RUN_PATTERN}), level (\S+)")
# Tags wait for the end that is seen by that; each look is a process of systemctl's.
_POLL: typing.Final = 0.2


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

    Raises:
        gpu_agent.install.AppError: the machine has no room for the programs that they run.
    """
    changed = app.ensure(before=_write_launcher)
    if not on_start:
        return services.remove_unit(BOOT) or changed
    service = templates.render(
        TEMPLATES, "gpu-ci-selftest.service", launcher=LAUNCHER, release=release.CURRENT
    )
    return services.ensure_unit(BOOT, service) or changed


def _write_launcher(home: pathlib.Path) -> bool:
    """Have the command run the copy in this folder. True if it had to be changed.

    One that followed the link would end for want of its modules while the link leads to a version
    that has them elsewhere: until this was written anew, where a hook is killed in between.
    """
    files.ensure_directory(LAUNCHER.parent)
    launcher = templates.render(
        TEMPLATES, "gpu-selftest", app=home, stamp=app.STAMP, python=wrapper.PYTHON
    )
    return files.ensure_file(LAUNCHER, launcher, mode=0o755)


def remove() -> bool:
    """Stop what runs, and take all of this away but the verdicts. True if anything was there."""
    changed = stop()
    changed |= services.remove_unit(BOOT)
    changed |= app.remove()
    for path in (LAUNCHER, LOG, LOCK, PROXIES, last_pass.TESTED):
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
    _write_proxies()
    properties = {
        **_PROPERTIES,
        "EnvironmentFile": str(PROXIES),
        "RuntimeMaxSec": str(_LIMITS[level] + 60 * minutes),
        "StandardOutput": "null",
        "StandardError": f"truncate:{LOG}",
    }
    if not Level.ISOLATION.includes(level):
        # No hook waits for that long; without the unit systemd goes on as if none was named.
        properties |= {"OnSuccess": once.SERVICE, "OnFailure": once.SERVICE}
    description = f"GPU self-test {run}, level {level.value}"
    try:
        transient.start(RUN, command, description=description, properties=properties)
    except process.CommandError as error:
        raise SelftestError(f"The self-test can't be started: {error}") from error
    return run


def _write_proxies() -> None:
    """Keep the model's proxies, which may have passwords in them, where only root reads them."""
    proxies = process.proxies().items()
    lines = [f"{name}={escaping.environment_value(value)}\n" for name, value in proxies]
    files.ensure_directory(PROXIES.parent)
    files.ensure_file(PROXIES, "".join(lines), mode=0o600)


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
    told = 0

    def look() -> Report | None:
        nonlocal told
        # In this order: what ends after the first look has left its report for the third.
        now, lines, report = running(), _log(), results.read(run)
        for line in lines[told:]:
            progress(line)
        told = len(lines)
        if report is None and (now is None or now.run != run):
            raise SelftestError(_why(lines))
        return report

    return waiting.until(look, seconds, _POLL)


def running() -> Running | None:
    """The self-test that the charm has started and that runs now."""
    state, told = _shown()
    return None if state in ("inactive", "failed") else told


def broken_off() -> Running | None:
    """What the charm has started last, if it was killed or crashed and so left no verdict.

    Systemd knows it until the next one starts.
    """
    state, told = _shown()
    return told if state == "failed" and told and results.read(told.run) is None else None


def wait_for_others(seconds: float) -> str:
    """Wait for the end of self-tests that the charm has not started, as at boot and by hand.

    Returns:
        What the one that runs still says of itself; empty if none does.
    """
    ended = waiting.until(lambda: not locks.holder(LOCK), seconds, _POLL)
    return "" if ended else locks.holder(LOCK)


def stop() -> bool:
    """End the self-test that the charm has started. Return True if it ran."""
    stopped = services.ensure_stopped(RUN)
    state, _ = _shown()
    if state == "failed":
        services.forget_failure(RUN)
    return stopped


def _shown() -> tuple[str, Running | None]:
    """The state of the unit, and what it is or was."""
    shown = services.show(RUN, "ActiveState", "Description")
    found = _DESCRIPTION.fullmatch(shown["Description"])
    told = found and Running(found[1], Level(found[2]), results.started(found[1]))
    return shown["ActiveState"], told


def _log() -> list[str]:
    """The whole lines of the log."""
    text = LOG.read_text(encoding="utf-8", errors="replace") if LOG.exists() else ""
    return text.rpartition("\n")[0].splitlines()


def _why(lines: list[str]) -> str:
    """What ended a self-test that has left no report."""
    result = services.show(RUN, "Result")["Result"]
    words = {
        "oom-kill": "the machine ran out of memory",
        "timeout": "it did not end in time",
        "signal": "it was killed",
        "core-dump": "it crashed",
    }
    end = " / ".join(line.strip() for line in lines[-3:] if line.strip())
    return (
        f"The self-test ended without a verdict: {words.get(result, 'see its log')}"
        + (f"; its last words: {end}" if end else "")
        + f"; {LOG} has all of it"
    )
