# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run the self-test as a systemd unit: at boot, and when the charm starts and follows it.

It does not run inside a hook: NVML may hang forever, and a burn-in takes longer than a hook may
hold Juju's machine lock.
"""

import dataclasses
import datetime
import pathlib
import re
import typing

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
from machine.errors import PartError

TEMPLATES: typing.Final = pathlib.Path(__file__).resolve().with_name("templates")
LAUNCHER: typing.Final = wrapper.BIN / "gpu-selftest"
BOOT: typing.Final = "gpu-ci-selftest.service"
RUN: typing.Final = "gpu-ci-selftest-run.service"
LOG: typing.Final = wrapper.LOG.parent / "selftest.log"
# Held by the self-test that runs, however it was started: there is one at a time.
LOCK: typing.Final = wrapper.RUN / "selftest.lock"
PROXIES: typing.Final = wrapper.RUN / "selftest.env"

# In seconds, above the limits of the command itself; the first compute downloads gigabytes.
_LIMITS: typing.Final = {
    Level.QUICK: 60,
    Level.ISOLATION: 600,
    Level.COMPUTE: 7200,
    Level.BURN_IN: 7200,
}
_PROPERTIES: typing.Final = {
    "TimeoutStopSec": "20",
    # The first process stops the load and reports its results; the others are then killed.
    "KillMode": "mixed",
    # Failed and incomplete tests, and wrong use, do not fail the unit.
    "SuccessExitStatus": "1 2 3",
    # If memory runs out, the kernel kills the self-test and not a job.
    "OOMScoreAdjust": "500",
}
_DESCRIPTION: typing.Final = re.compile(rf"GPU self-test ({results.RUN_PATTERN}), level (\S+)")
# Worker tags wait for the end of a test; each look costs a systemctl process.
_POLL: typing.Final = 0.2


class SelftestError(PartError):
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


class Service(typing.Protocol):
    """What hooks use of this module, for a test that has its own; see the functions."""

    def install(self, *, on_start: bool, before: str, needs: str) -> bool:
        """Install the command and, if `on_start`, the self-test at each boot."""
        ...

    def remove(self) -> bool:
        """Stop the self-test and remove all but the reports."""
        ...

    def start(self, level: Level, *, gpu: str = "") -> str:
        """Start a self-test. Return the id of the run."""
        ...

    def follow(self, run: str, seconds: float, progress: Progress) -> Report | None:
        """Follow a self-test until it ends or the time is over."""
        ...

    def running(self) -> Running | None:
        """Return the self-test that the charm started and that runs now."""
        ...

    def broken_off(self) -> Running | None:
        """Return the last self-test that the charm started, if it was killed or crashed."""
        ...

    def wait_for_others(self, seconds: float) -> str:
        """Wait for the end of self-tests that the charm did not start."""
        ...


def install(*, on_start: bool, before: str, needs: str) -> bool:
    """Install the command and, if `on_start`, the self-test at each boot.

    Args:
        on_start: whether to test at each boot.
        before: the systemd unit that starts after that test; empty: no unit waits for it.
        needs: a file without which no boot tests; empty: every boot tests.

    Returns:
        Whether anything had to be changed.

    Raises:
        gpu_agent.install.AppError: the machine has no room for the programs.
    """
    changed = app.ensure(before=_write_launcher)
    if not on_start:
        return services.remove_unit(BOOT) or changed
    service = templates.render(
        TEMPLATES, "gpu-ci-selftest.service", launcher=LAUNCHER, before=before, needs=needs
    )
    return services.ensure_unit(BOOT, service) or changed


def _write_launcher(home: pathlib.Path) -> bool:
    """Let the command run the copy in this folder. Return True if that changed anything.

    The launcher names the folder, not the link to it. If a hook is killed between the change of
    the link and this one, the launcher still finds the modules that it was written for.
    """
    files.ensure_directory(LAUNCHER.parent)
    launcher = templates.render(
        TEMPLATES, "gpu-selftest", app=home, stamp=app.STAMP, python=wrapper.PYTHON
    )
    return files.ensure_file(LAUNCHER, launcher, mode=0o755)


def remove() -> bool:
    """Stop the self-test and remove all but the reports. Return True if there was anything."""
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
        level: the level.
        gpu: index or UUID of the only GPU to test; empty: all.
        minutes: the duration of the burn-in; 0: the command's default.
        device: `cuda`, or `cpu`, which proves nothing about a GPU.

    Raises:
        SelftestError: a self-test runs already, or systemd can't start it.
    """
    if now := running():
        raise SelftestError(
            f"A self-test of level {now.level.value} is running since {now.since:%H:%M} UTC: "
            f"wait until it ends, or stop it: sudo systemctl stop {RUN}"
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
        # No hook waits for these levels. If the unit is not there, systemd ignores its name.
        properties |= {"OnSuccess": once.SERVICE, "OnFailure": once.SERVICE}
    description = f"GPU self-test {run}, level {level.value}"
    try:
        transient.start(RUN, command, description=description, properties=properties)
    except process.CommandError as error:
        raise SelftestError(f"The self-test did not start: {error}") from error
    return run


def _write_proxies() -> None:
    """Write the model's proxies, which may contain passwords, to a file for root only."""
    proxies = process.proxies().items()
    lines = [f"{name}={escaping.environment_value(value)}\n" for name, value in proxies]
    files.ensure_directory(PROXIES.parent)
    files.ensure_file(PROXIES, "".join(lines), mode=0o600)


def follow(run: str, seconds: float, progress: Progress) -> Report | None:
    """Follow a self-test until it ends or the time is over.

    Args:
        run: the id that start has returned.
        seconds: the longest time.
        progress: called with each new line of its log.

    Returns:
        Its report; None if it still runs.

    Raises:
        SelftestError: it ended without a report.
    """
    told = 0

    def look() -> Report | None:
        nonlocal told
        # The order matters: a test that ends after the first look has then left its report.
        now, lines, report = running(), _log(), results.read(run)
        for line in lines[told:]:
            progress(line)
        told = len(lines)
        if report is None and (now is None or now.run != run):
            raise SelftestError(_why(lines))
        return report

    return waiting.until(look, seconds, _POLL)


def running() -> Running | None:
    """Return the self-test that the charm started and that runs now."""
    state, told = _shown()
    return None if state in ("inactive", "failed") else told


def broken_off() -> Running | None:
    """Return the last self-test that the charm started, if it was killed or crashed.

    It left no verdict. systemd knows it until the next one starts.
    """
    state, told = _shown()
    return told if state == "failed" and told and results.read(told.run) is None else None


def wait_for_others(seconds: float) -> str:
    """Wait for the end of self-tests that the charm did not start: at boot and by hand.

    Returns:
        The description of the one that still runs; empty if none does.
    """
    ended = waiting.until(lambda: not locks.holder(LOCK), seconds, _POLL)
    return "" if ended else locks.holder(LOCK)


def stop() -> bool:
    """Stop the self-test that the charm started. Return True if it ran."""
    stopped = services.ensure_stopped(RUN)
    state, _ = _shown()
    if state == "failed":
        services.forget_failure(RUN)
    return stopped


def _shown() -> tuple[str, Running | None]:
    """Return the state of the unit, and the self-test that runs or ran in it."""
    shown = services.show(RUN, "ActiveState", "Description")
    found = _DESCRIPTION.fullmatch(shown["Description"])
    told = found and Running(found[1], Level(found[2]), results.started(found[1]))
    return shown["ActiveState"], told


def _log() -> list[str]:
    """Return the complete lines of the log."""
    text = LOG.read_text(encoding="utf-8", errors="replace") if LOG.exists() else ""
    return text.rpartition("\n")[0].splitlines()


def _why(lines: list[str]) -> str:
    """Return why a self-test left no report."""
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
        + (f"; its last output: {end}" if end else "")
        + f"; full log: {LOG}"
    )
