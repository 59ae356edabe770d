# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The systemd scope of a command, with device rules for its GPUs only."""

import collections.abc
import errno
import os
import select
import sys
import time
import typing

from gpu_agent import device_rules
from gpu_agent.gpu_run.caller import Caller, GoneError
from gpu_runtime.policy import Device
from gpu_runtime.refusal import Refused
from machine import child_process as children
from machine import systemd_scopes as scopes
from machine.child_process import Child

SLICE: typing.Final = "gpurun.slice"
"""The slice of all scopes, outside user slices, for which operators can block the devices."""
COMMANDS: typing.Final = "gpu-run-*.scope"
"""The units of all running commands."""

# In seconds: systemd under load, and the start of a Python.
_PATIENCE: typing.Final = 30.0


def group(unit: str) -> str:
    """Return the control group of such a scope."""
    return f"/{SLICE}/{unit}"


def enter(
    unit: str,
    caller: Caller,
    devices: list[Device],
    description: str,
    check: collections.abc.Callable[[], None],
) -> bool:
    """Move a process into a scope with these devices.

    Args:
        unit: the scope's name.
        caller: the process.
        devices: its devices.
        description: one line about it.
        check: is called once no other request can move the process, to check that it may be moved.

    Returns:
        Whether the other devices are blocked, by a test; a container may be unable to block them.

    Raises:
        GoneError: the process has ended.
        Refused, OSError: it cannot be moved.
    """
    nodes = device_rules.nodes(devices)
    child = _start(unit, caller.pid, nodes, description)
    try:
        _take(child, unit, caller, check)
        return all(_is_shut(child, node) for node in device_rules.others(nodes))
    except children.EndedError as error:
        raise Refused(
            "scope-failed", f"systemd did not create {unit}: {error}. See journalctl -t gpu-ci-run"
        ) from error
    except ProcessLookupError as error:
        raise GoneError from error
    finally:
        child.kill()
        _wait_gone(child)


def _start(unit: str, pid: int, nodes: list[str], description: str) -> Child:
    """Start the scope, with a first process that prevents reuse of the caller's process id."""
    # It ends if this process ends, because its stdin is closed then.
    argv = [
        sys.executable,
        "-B",
        "-m",
        "gpu_agent.gpu_run.scope_anchor",
        str(os.getpid()),
        str(pid),
    ]
    rules = device_rules.properties(nodes)
    return scopes.start(unit, argv, slice_name=SLICE, description=description, properties=rules)


def _take(
    child: Child, unit: str, caller: Caller, check: collections.abc.Callable[[], None]
) -> None:
    """Move the caller into the scope, whose first process is the child."""
    said = _hear(child)
    caller.check()
    if said != "held":
        raise Refused(
            "gpu-run-traced",
            "another process, such as strace, traces gpu-run. Start that process with gpu-run "
            "instead",
        )
    # From here on its process id is not reused, and no other request of it can move it.
    check()
    scopes.move(caller.pid, child.pid, unit)
    caller.check()
    if group(unit) not in caller.groups():
        raise Refused(
            "scope-failed",
            f"this process is not in {unit} after it was moved. See journalctl -t gpu-ci-run",
        )


def _is_shut(child: Child, node: str) -> bool:
    child.say(os.fsencode(node))
    return _hear(child) == str(errno.EPERM)


def _hear(child: Child) -> str:
    """Return the next line of the scope's first process.

    Raises:
        children.EndedError: it has ended, or did not answer in time.
    """
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        select.select([child], [], [], 1)
        for line in child.lines():
            return line.decode()
    raise children.EndedError("it did not answer in time")


def _wait_gone(child: Child) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not child.is_gone() and time.monotonic() < deadline:
        time.sleep(0.005)
