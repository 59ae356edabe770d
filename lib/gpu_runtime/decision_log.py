# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The log for operators: one JSON line for each decision on a task, in /var/log/gpu-ci/oci.log."""

from __future__ import annotations

import fcntl
import os
import time

from gpu_runtime.fast_json import dumps

_BOOT = "/proc/sys/kernel/random/boot_id"
_FULL = 4 << 20  # bytes; then the file becomes <name>.1, in place of the one before


class Decision:
    """What was decided on one call, as far as it is known.

    Attributes:
        container: the container's id.
        kind: `task`, `privileged task`, `exec <id>`, or what an action did; empty: nothing was
            decided.
        asked: how many devices were asked for; None: all.
        granted: the ids of those that were given.
        waited_ms: how long the devices were waited for.
        decided_ms: how long the last look at the leases took, with the wait for their lock.
        reason: why it was refused, or done; empty for a plain yes.
    """

    __slots__ = ("asked", "container", "decided_ms", "granted", "kind", "reason", "waited_ms")

    def __init__(self, container: str) -> None:
        self.container = container
        self.kind = ""
        self.asked: int | None = 0
        self.granted: list[str] = []
        self.waited_ms = 0
        self.decided_ms = 0.0
        self.reason = ""

    def write(self, path: str) -> None:
        """Append it to the log at `path`; never raises, a log that can't be written is no reason.

        Nothing is written where nothing was decided.
        """
        if not self.kind:
            return
        moment = time.time()
        line = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(moment))}"
            f".{int(moment % 1 * 1000):03}Z",
            # A clock may be set: which of two things came first is told by these.
            "boot": _boot(),
            "since_boot": time.clock_gettime(time.CLOCK_BOOTTIME),
            "container": self.container,
            "kind": self.kind,
            "asked": "all" if self.asked is None else self.asked,
            "granted": self.granted,
            "waited_ms": self.waited_ms,
            "decided_ms": self.decided_ms,
            "reason": self.reason,
        }
        try:
            _append(path, f"{dumps(line)}\n".encode())
        except OSError:
            pass


def intruders(path: str, containers: list[str], devices: list[str]) -> None:
    """Log that containers were ended since they had one of these devices open without a lease."""
    for container in containers:
        decision = Decision(container)
        decision.kind = "intruder ended"
        decision.reason = f"it had a device of {', '.join(devices)} open without a lease"
        decision.write(path)


def _boot() -> str:
    """The kernel's name for this boot; empty if it tells none."""
    try:
        with open(_BOOT, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _append(path: str, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o640)
    try:
        os.write(descriptor, line)
        if os.fstat(descriptor).st_size > _FULL:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Unless another call has done so meanwhile.
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                os.rename(path, f"{path}.1")
    finally:
        os.close(descriptor)
