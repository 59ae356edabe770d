# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The decision log for operators, /var/log/gpu-ci/oci.log: one JSON line for each decision."""

from __future__ import annotations

import fcntl
import os
import time

from gpu_runtime.fast_json import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_runtime.refusal import Refused

_BOOT = "/proc/sys/kernel/random/boot_id"
_FULL = 4 << 20  # bytes; then the file becomes <name>.1, in place of the one before


class Decision:
    """The decision on one call, as far as known.

    Attributes:
        container: the container's id.
        kind: `task`, `privileged task`, `exec <id>`, `gpu-run`, or the name of an action; empty:
            nothing was decided.
        who: the container's or command's name from its engine; empty for a CI system's container.
        asked: the number of devices requested; None: all.
        named: the ids of the devices that were requested by name; empty: any would do.
        granted: the ids of the devices that were granted.
        waited_ms: how long the request waited for its devices.
        decided_ms: how long the last decision took, including the wait for the lock.
        code: the code of the refusal (refusal_codes.CODES); empty if the call was not refused.
        reason: the text of the refusal, or why an action was run; empty for a plain grant.
    """

    __slots__ = (
        *("asked", "code", "container", "decided_ms", "granted", "kind", "named", "reason"),
        *("waited_ms", "who"),
    )

    def __init__(self, container: str) -> None:
        self.container = container
        self.kind = ""
        self.who = ""
        self.asked: int | None = 0
        self.named: list[str] = []
        self.granted: list[str] = []
        self.waited_ms = 0
        self.decided_ms = 0.0
        self.code = ""
        self.reason = ""

    def refuse(self, refusal: Refused) -> None:
        """Record a refusal: nothing is granted."""
        self.code, self.reason = refusal.code, str(refusal)
        self.granted = []

    def write(self, path: str) -> None:
        """Append the decision to the log at `path`; never raises, even if that fails.

        Without a decision nothing is written.
        """
        if not self.kind:
            return
        moment = time.time()
        line = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(moment))}"
            f".{int(moment % 1 * 1000):03}Z",
            # The clock may be set. These give the order of events.
            "boot": _boot(),
            "since_boot": time.clock_gettime(time.CLOCK_BOOTTIME),
            "container": self.container,
            "kind": self.kind,
            "who": self.who,
            "asked": "all" if self.asked is None else self.asked,
            "named": self.named,
            "granted": self.granted,
            "waited_ms": self.waited_ms,
            "decided_ms": self.decided_ms,
            "code": self.code,
            "reason": self.reason,
        }
        try:
            _append(path, f"{dumps(line)}\n".encode())
        except OSError:
            pass


def intruders(path: str, containers: list[str], devices: list[str]) -> None:
    """Log that containers were killed for having one of these devices open without a lease."""
    for container in containers:
        decision = Decision(container)
        decision.kind = "intruder ended"
        decision.reason = f"it had a device of {', '.join(devices)} open without a lease"
        decision.write(path)


def _boot() -> str:
    """Return the kernel's id of this boot; empty if there is none."""
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
