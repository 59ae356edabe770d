# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Where a command has its GPUs and no others: a scope of systemd's with rules on devices."""

import collections.abc
import errno
import os
import pathlib
import re
import select
import sys
import time
import typing

from gpu_agent.gpu_run.caller import Caller, GoneError
from gpu_runtime.policy import Device
from machine import child_process as children
from machine import systemd_scopes as scopes
from machine.child_process import Child

SLICE: typing.Final = "gpurun.slice"
"""All of them; of no user's slice, so that an operator can shut the devices to those."""
COMMANDS: typing.Final = "gpu-run-*.scope"
"""The units of all commands that run."""

# In seconds: systemd under load, and the start of a Python.
_PATIENCE: typing.Final = 30.0
# Whoever has one GPU needs these (NVIDIA's driver, nvidia-modprobe/modprobe-utils).
_COMMON: typing.Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_NEEDED: typing.Final = _COMMON[:2]
_GPU_NODES: typing.Final = re.compile(r"/dev/(?:nvidia[0-9]+|dri/renderD[0-9]+)")
_DEV: typing.Final = pathlib.Path("/dev")


class RoomError(Exception):
    """A command can't be put where it has its GPUs; the text says why."""


def group(unit: str) -> str:
    """The control group that systemd gives such a scope."""
    return f"/{SLICE}/{unit}"


def enter(
    unit: str,
    caller: Caller,
    devices: list[Device],
    description: str,
    check: collections.abc.Callable[[], None],
) -> bool:
    """Put a process into a scope with these devices.

    Args:
        unit: the scope's name.
        caller: whose process it is.
        devices: what it is to have.
        description: one line about it.
        check: is called when nobody else can move it any more, to see that it may be moved.

    Returns:
        Whether the others are kept from it, as was tried; a container may have no means to.

    Raises:
        GoneError: it has ended meanwhile.
        RoomError, OSError: that can't be done.
    """
    nodes = _nodes(devices)
    child = _start(unit, caller.pid, nodes, description)
    try:
        _take(child, unit, caller, check)
        return all(_is_shut(child, node) for node in _others(nodes))
    except children.EndedError as error:
        raise RoomError(
            f"systemd has made no {unit}: {error}; see journalctl -t gpu-ci-run"
        ) from error
    except ProcessLookupError as error:
        raise GoneError from error
    finally:
        child.kill()
        _wait_gone(child)


def _start(unit: str, pid: int, nodes: list[str], description: str) -> Child:
    """Make the scope, with a first process that keeps the caller's number its own."""
    # It ends by itself if this process does: then its stdin is over.
    argv = [
        sys.executable,
        "-B",
        "-m",
        "gpu_agent.gpu_run.scope_anchor",
        str(os.getpid()),
        str(pid),
    ]
    rules = ["DevicePolicy=closed", *(f"DeviceAllow={node} rw" for node in nodes)]
    return scopes.start(unit, argv, slice_name=SLICE, description=description, properties=rules)


def _take(
    child: Child, unit: str, caller: Caller, check: collections.abc.Callable[[], None]
) -> None:
    """Have the caller in the scope, of which the child is the first process."""
    said = _hear(child)
    caller.check()
    if said != "held":
        raise RoomError(
            "this process can't be moved, since another one traces it, such as strace: have "
            "gpu-run start that one"
        )
    # From here on nobody else can have its number, and no other request of its own moves it.
    check()
    scopes.move(caller.pid, child.pid, unit)
    caller.check()
    if group(unit) not in caller.groups():
        raise RoomError(f"this process is not in {unit} after it was moved")


def _nodes(devices: list[Device]) -> list[str]:
    """Paths of the device nodes that a command with these devices needs."""
    nodes = [node for device in devices for node in (*device.watched, *device.nodes)]
    of_nvidia = any(not device.nodes for device in devices)
    missing = [device.index for device in devices if not (device.watched or device.nodes)]
    needed = [*nodes, *(_NEEDED if of_nvidia else ())]
    gone = [node for node in needed if not pathlib.Path(node).exists()]
    if missing or gone:
        what = gone[0] if gone else f"the device node of GPU {missing[0]}"
        raise RoomError(
            f"{what} is not there; this worker looks for its GPUs again within minutes: run it "
            "again then"
        )
    nodes += [node for node in _COMMON if of_nvidia and pathlib.Path(node).exists()]
    return list(dict.fromkeys(os.path.realpath(node) for node in nodes))


def _others(nodes: list[str]) -> list[str]:
    """The nodes of GPUs that it is not to have."""
    there = [str(path) for path in (*_DEV.glob("nvidia*"), *_DEV.glob("dri/renderD*"))]
    return [path for path in there if _GPU_NODES.fullmatch(path) and path not in nodes]


def _is_shut(child: Child, node: str) -> bool:
    child.say(os.fsencode(node))
    return _hear(child) == str(errno.EPERM)


def _hear(child: Child) -> str:
    """The next line that the first process of the scope says.

    Raises:
        children.EndedError: it says none.
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
