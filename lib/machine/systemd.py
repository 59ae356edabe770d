# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Install, start, stop and query systemd services."""

import collections.abc
import contextlib
import os
import pathlib
import signal as signals
import typing

from machine import files, process
from machine import polling as waiting

RUNNING: typing.Final = ("active", "activating", "reloading")
"""What systemd calls a service that runs or is being started."""

_SYSTEMCTL: typing.Final = "/usr/bin/systemctl"
_UNITS: typing.Final = pathlib.Path("/etc/systemd/system")
_ENDED: typing.Final = ("inactive", "failed")
# SD_MESSAGE_UNIT_RESTART_SCHEDULED of systemd's sd-messages.h.
_RESTART_SCHEDULED: typing.Final = "5eb03494b6584870a536b337290809b3"
_Answer = typing.TypeVar("_Answer")

# Longer than any unit's own TimeoutStopSec.
_TIMEOUT: typing.Final = 180.0
# In seconds. While systemd re-executes itself, as during its upgrade, it does not answer for about
# a second. Its clients then fail with these messages, whether or not their call came through.
_PATIENCE: typing.Final = 20.0
_AWAY: typing.Final = (
    "Connection refused",
    "Connection reset by peer",
    "Message recipient disconnected from message bus without replying",
    "Transport endpoint is not connected",
)


def ensure_unit(name: str, content: str, *, boot: bool = True) -> bool:
    """Install a unit of our own. Return True if anything had to be changed.

    If a run is killed between the steps, the next run finishes them.

    Args:
        name: the unit's name.
        content: all of it.
        boot: whether it is enabled, so that each boot starts it.
    """
    changed = files.ensure_file(_UNITS / name, content)
    state = show(name, "NeedDaemonReload", "UnitFileState")
    if changed or state["NeedDaemonReload"] == "yes":
        _systemctl("daemon-reload")
        changed = True
    if boot and state["UnitFileState"] != "enabled":
        _systemctl("enable", name)
        changed = True
    return changed


def ensure_drop_in(name: str, drop_in: str, content: str) -> bool:
    """Install a drop-in for a unit of others. Return True if anything had to be changed.

    Args:
        name: the unit's name.
        drop_in: the file's name, ending in `.conf`.
        content: all of it.
    """
    path = _drop_in(name, drop_in)
    files.ensure_directory(path.parent)
    changed = files.ensure_file(path, content)
    # For a folder that is new to it, systemd does not report that it needs a reload.
    stale = show(name, "NeedDaemonReload")["NeedDaemonReload"] == "yes"
    if changed or stale or str(path) not in _drop_ins(name):
        _systemctl("daemon-reload")
        changed = True
    return changed


def remove_drop_in(name: str, drop_in: str) -> bool:
    """Remove such a drop-in. Return True if there was one."""
    path = _drop_in(name, drop_in)
    changed = files.ensure_absent(path)
    files.remove_if_empty(path.parent)
    if changed or str(path) in _drop_ins(name):
        _systemctl("daemon-reload")
        changed = True
    return changed


def ensure_enabled(name: str) -> bool:
    """Enable a unit of others at boot. Return True if it was not enabled."""
    if show(name, "UnitFileState")["UnitFileState"] != "disabled":
        return False
    _systemctl("enable", name)
    return True


def ensure_not_enabled(name: str) -> bool:
    """Disable a unit at boot, without stopping it. Return True if anything had to be done."""
    if show(name, "UnitFileState")["UnitFileState"] != "enabled":
        return False
    _systemctl("disable", name)
    return True


def ensure_running(name: str, *, restart: bool) -> bool:
    """Start a service, or restart it if `restart`. Return True if it was (re)started.

    Raises:
        machine.process.CommandError: systemd can't start it.
    """
    if not restart and is_running(name):
        return False
    # Otherwise a service that failed too often would not be started again.
    forget_failure(name)
    _systemctl("restart", name)
    return True


def reload(name: str) -> bool:
    """Let a running service reload its files. Return True if it runs.

    Raises:
        machine.process.CommandError: it can't.
    """
    if show(name, "ActiveState")["ActiveState"] != "active":
        return False
    _systemctl("reload", name)
    return True


def ensure_masked(name: str) -> bool:
    """Stop a service and mask it. Return True if anything had to be done."""
    if show(name, "LoadState")["LoadState"] == "masked":
        return False
    _systemctl("mask", "--now", name)
    return True


def unmask(name: str) -> None:
    """Unmask a service, without starting it."""
    _systemctl("unmask", name)


def ensure_stopped(name: str) -> bool:
    """Stop a service. Return True if it ran."""
    return _stop(name, show(name, "ActiveState"))


def ensure_disabled(name: str) -> bool:
    """Stop a service and disable it at boot. Return True if anything had to be done."""
    state = show(name, "ActiveState", "UnitFileState")
    changed = _stop(name, state)
    if state["UnitFileState"] == "enabled":
        _systemctl("disable", name)
        changed = True
    return changed


def forget_failure(name: str) -> None:
    """Reset a service's failed state, which also removes a transient service."""
    # It fails for a unit that systemd does not know.
    with contextlib.suppress(process.CommandError):
        _systemctl("reset-failed", name)


def remove_unit(name: str) -> bool:
    """Stop a service of ours and remove its unit. Return True if anything was there."""
    changed = ensure_disabled(name)
    if files.ensure_absent(_UNITS / name):
        _systemctl("daemon-reload")
        forget_failure(name)
        changed = True
    return changed


def ensure_template(name: str, content: str) -> bool:
    """Install a template unit of ours, `NAME@.service`. Return True if it was changed.

    Running instances stay as they are; systemd reads the unit for each instance that it starts.
    """
    changed = files.ensure_file(_UNITS / name, content)
    if changed:
        _systemctl("daemon-reload")
    return changed


def remove_template(name: str) -> bool:
    """Stop all instances of a template unit and remove it. Return True if it was there."""
    if not (_UNITS / name).exists():
        return False
    _systemctl("stop", name.replace("@.", "@*."))
    files.ensure_absent(_UNITS / name)
    _systemctl("daemon-reload")
    return True


def units(pattern: str) -> list[str]:
    """Return the units that systemd knows now by a name with `*` in it."""
    listed = _systemctl("list-units", "--plain", "--no-legend", "--", pattern, told=False)
    return [line.split()[0] for line in listed.splitlines()]


def show(name: str, *properties: str) -> dict[str, str]:
    """Return a unit's properties; empty for those that systemd does not know."""
    shown = _systemctl("show", "--property", ",".join(properties), "--", name, told=False)
    found = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    return {key: found.get(key, "") for key in properties}


def is_running(name: str) -> bool:
    """Return whether a service runs or is being started."""
    return show(name, "ActiveState")["ActiveState"] in RUNNING


def main_pid(name: str) -> int:
    """Return the process id of a service's main process; 0 if it does not run."""
    return int(show(name, "MainPID")["MainPID"] or 0)


def restarts(name: str, seconds: int) -> int:
    """Return how often systemd restarted a service within so many seconds after it had ended.

    Restarts before the last deliberate start do not count.
    """
    since_start = int(show(name, "NRestarts")["NRestarts"] or 0)
    if not since_start:
        return 0
    since, what = f"--since=-{seconds}s", f"MESSAGE_ID={_RESTART_SCHEDULED}"
    argv = ["/usr/bin/journalctl", "--quiet", "--output=cat", since, f"UNIT={name}", what]
    lately = len(process.run(argv, timeout=_TIMEOUT, told=False).stdout.splitlines())
    return min(since_start, lately)


def started_with(name: str, variable: str, value: str) -> bool:
    """Return whether a service's main process was started with this in its environment.

    The process itself is examined: a hook that was killed after it wrote the files and before it
    restarted the service leaves no other trace.
    """
    pid = main_pid(name)
    if not pid:
        return False
    try:
        environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return f"{variable}={value}".encode() in environment.split(b"\0")


def signal(name: str, sig: str) -> bool:
    """Send a signal, such as `SIGHUP`, to a service's main process. Return False if none runs."""
    pid = main_pid(name)
    if not pid:
        return False
    try:
        os.kill(pid, signals.Signals[sig])
    except ProcessLookupError:
        return False
    return True


def patiently(call: collections.abc.Callable[[], _Answer]) -> _Answer:
    """Call a function that asks systemd; repeat it if systemd was away for a moment.

    Raises:
        machine.process.CommandError: it failed, or systemd stayed away.
    """
    return waiting.retry(call, _is_away, _PATIENCE)


def _is_away(error: BaseException) -> bool:
    return isinstance(error, process.CommandError) and any(
        words in error.stderr for words in _AWAY
    )


def _stop(name: str, state: dict[str, str]) -> bool:
    if state["ActiveState"] in _ENDED:
        return False
    try:
        _systemctl("stop", name)
    except process.CommandError:
        # A transient unit that is gone, for example if only the answer of a call was lost.
        if show(name, "ActiveState")["ActiveState"] not in _ENDED:
            raise
    return True


def _drop_in(name: str, drop_in: str) -> pathlib.Path:
    return _UNITS / f"{name}.d" / drop_in


def _drop_ins(name: str) -> list[str]:
    """Return the drop-ins of a unit that systemd uses."""
    return show(name, "DropInPaths")["DropInPaths"].split()


def _systemctl(*arguments: str, told: bool = True) -> str:
    argv = [_SYSTEMCTL, *arguments]
    return patiently(lambda: process.run(argv, timeout=_TIMEOUT, told=told).stdout)
