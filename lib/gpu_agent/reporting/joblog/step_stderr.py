# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Writes a line into the log of the step that runs in a container: to its process's stderr.

What runs in a container is an attacker's. Its process is the one that containerd's own file names,
in the container's control group; its stderr counts where the parent of that process has its other
end: containerd's shim, which gave it that and passes on what comes (tested with pipes and with
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
from gpu_runtime.holder_usage import Host

_PROC: typing.Final = pathlib.Path("/proc")
_WRITERS: typing.Final = 16  # at a time: those that hang must not use up what the watch may have


class Outcome(enum.Enum):
    """What came of a line."""

    SAID = "said"
    NOBODY = "nobody is there yet to be told"
    FULL = "there is no room now"
    NEVER = "what the step has for stderr now is not to be written to"


Say = collections.abc.Callable[[Holding, bytes], tuple[Outcome, bytes]]
"""As `say`."""


class Pen:
    """Writes beside the watch: what a job puts in a line's way must hold up nobody else.

    A write that hangs all the same, such as on a file system of another machine's that is gone,
    keeps back that container's lines alone, and ends with this program.
    """

    def __init__(self, say: "Say | None" = None) -> None:
        self._say = say or _say_now
        self._running: dict[str, threading.Thread] = {}
        self._came: dict[str, tuple[Outcome, bytes]] = {}

    def hand(self, holding: Holding, text: bytes) -> None:
        """Begin to write; to be called where `is_free` says so."""

        def work() -> None:
            self._came[holding.container] = self._say(holding, text)

        thread = threading.Thread(target=work, name="job-log", daemon=True)
        self._running[holding.container] = thread
        thread.start()

    def is_free(self, container: str) -> bool:
        """Whether nothing of this container's is under way, nor too much of others'."""
        return container not in self._running and len(self._running) < _WRITERS

    def take(self) -> dict[str, tuple[Outcome, bytes]]:
        """What has come of what was handed over, by the container, each once."""
        found: dict[str, tuple[Outcome, bytes]] = {}
        for container, thread in list(self._running.items()):
            if not thread.is_alive():
                del self._running[container]
                found[container] = self._came.pop(container, (Outcome.NOBODY, b""))
        return found

    def settle(self, seconds: float) -> None:
        """Wait for what is under way, but no longer than this."""
        for thread in list(self._running.values()):
            thread.join(seconds)


def say(holding: Holding, text: bytes, host: Host | None = None) -> tuple[Outcome, bytes]:
    """Write to the stderr of the step in a container; never waits for one that does not read.

    Args:
        holding: the container.
        text: a whole line with its end, at most PIPE_BUF bytes; or what is left of one.
        host: for tests.

    Returns:
        What came of it; and what is left to be written first where a terminal took a part alone.
    """
    host = host or Host()
    outcome, left = Outcome.NOBODY, text
    try:
        for pid in host.steps(holding.container, holding.bundle):
            outcome, left = _say(host, holding, pid, text)
            if outcome in (Outcome.SAID, Outcome.FULL):
                break
    except (OSError, ValueError):  # it is being deleted, or can't be looked at: not now
        return Outcome.NOBODY, text
    return outcome, left


def _say_now(holding: Holding, text: bytes) -> tuple[Outcome, bytes]:
    return say(holding, text)


def _say(host: Host, holding: Holding, pid: int, text: bytes) -> tuple[Outcome, bytes]:
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return Outcome.NOBODY, text
    try:
        # Had it ended in between, its number could be another's by now: a descriptor of it tells.
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
    """The process that has started it, as the kernel knows it; 0 if it is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()  # with its name, which may be any bytes
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(text.rpartition(b")")[2].split()[1])
