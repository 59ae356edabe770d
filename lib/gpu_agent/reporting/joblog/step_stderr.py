# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Write a line into the log of a container's step: to the stderr of the step's process.

Programs in a container are not trusted. The step's process is the one that containerd's own file
names, in the container's control group. Its stderr is used if the parent of that process holds the
other end: containerd's shim, which created it and passes the output on (tested with pipes and with
terminals). A process can't choose its parent, and the shim is outside the container.
"""

import collections.abc
import enum
import os
import pathlib
import select
import threading
import typing

from gpu_agent.model.observations import Holding
from gpu_agent.reporting.joblog import process_stderr as terminals
from gpu_agent.reporting.joblog import runner_stderr
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_table import RUNNER
from machine.process import CommandError

_PROC: typing.Final = pathlib.Path("/proc")
_WRITERS: typing.Final = (
    16  # threads at a time: hanging ones must not use up the limits of the service
)


class Outcome(enum.Enum):
    """The result of writing a line."""

    SAID = "written"
    NOBODY = "the container has no step's process yet"
    FULL = "the stderr is full now"
    NEVER = "the step's stderr is redirected"


Say = collections.abc.Callable[[Holding, bytes], tuple[Outcome, bytes]]
"""The signature of `say`."""


class Pen:
    """Writes in threads, so that a job that blocks its stderr delays no other line.

    A write that hangs, for example on a network file system that is gone, blocks only the lines of
    its container, and ends with this program.
    """

    def __init__(self, say: "Say | None" = None) -> None:
        self._say = say or _say_now
        self._running: dict[str, threading.Thread] = {}
        self._came: dict[str, tuple[Outcome, bytes]] = {}

    def hand(self, holding: Holding, text: bytes) -> None:
        """Start to write; call only if `is_free` is true."""

        def work() -> None:
            self._came[holding.container] = self._say(holding, text)

        thread = threading.Thread(target=work, name="job-log", daemon=True)
        self._running[holding.container] = thread
        thread.start()

    def is_free(self, container: str) -> bool:
        """Whether no write to this container runs, and not too many others."""
        return container not in self._running and len(self._running) < _WRITERS

    def take(self) -> dict[str, tuple[Outcome, bytes]]:
        """The results of finished writes by container; each is returned once."""
        found: dict[str, tuple[Outcome, bytes]] = {}
        for container, thread in list(self._running.items()):
            if not thread.is_alive():
                del self._running[container]
                found[container] = self._came.pop(container, (Outcome.NOBODY, b""))
        return found

    def settle(self, seconds: float) -> None:
        """Wait for running writes, at most so many seconds for each."""
        for thread in list(self._running.values()):
            thread.join(seconds)


def say(holding: Holding, text: bytes, reader: str = "") -> tuple[Outcome, bytes]:
    """Write to the stderr of the step in a container or of a runner's job, without waiting.

    Args:
        holding: the container or the runner.
        text: a whole line with its end, at most PIPE_BUF bytes; or the rest of one.
        reader: the program of runners that reads what jobs write; see runner_stderr.say.

    Returns:
        The result, and the rest of the text if a terminal took only a part.
    """
    if holding.kind == RUNNER:
        return _say_to_runner(holding, text, reader)
    host = Host()
    outcome, left = Outcome.NOBODY, text
    try:
        for pid in host.steps(holding.container, holding.bundle):
            outcome, left = _say(host, holding, pid, text)
            if outcome in (Outcome.SAID, Outcome.FULL):
                break
    except (OSError, ValueError):  # the container is being deleted, or can't be inspected now
        return Outcome.NOBODY, text
    return outcome, left


def _say_to_runner(holding: Holding, text: bytes, reader: str) -> tuple[Outcome, bytes]:
    try:
        written = runner_stderr.say(holding.container, reader, text)
    except terminals.NotTheirsError:
        return Outcome.NEVER, text
    except (OSError, ValueError, CommandError):  # the runner ends
        return Outcome.NOBODY, text
    if written is None:
        return Outcome.NOBODY, text
    left = text[written:]
    return (Outcome.FULL if left else Outcome.SAID), left


def _say_now(holding: Holding, text: bytes) -> tuple[Outcome, bytes]:
    return say(holding, text)


def _say(host: Host, holding: Holding, pid: int, text: bytes) -> tuple[Outcome, bytes]:
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return Outcome.NOBODY, text
    try:
        # If it ended in between, its number may be reused; its pidfd shows that.
        def is_meant() -> bool:
            is_there = host.is_in(pid, holding.container, holding.bundle)
            return is_there and not select.select([process], [], [], 0)[0]

        parent = _parent(pid)
        if not is_meant() or not parent:
            return Outcome.NOBODY, text
        if host.is_in(parent, holding.container, holding.bundle):
            return Outcome.NEVER, text
        written = terminals.write(pid, parent, text, is_meant)
    except terminals.NotTheirsError:
        return Outcome.NEVER, text
    finally:
        os.close(process)
    left = text[written:]
    return (Outcome.FULL if left else Outcome.SAID), left


def _parent(pid: int) -> int:
    """The parent process; 0 if the process is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()  # the name in it may have any bytes
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(text.rpartition(b")")[2].split()[1])
