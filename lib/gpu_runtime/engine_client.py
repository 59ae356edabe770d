# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check that podman still wants the container that waits for its GPUs.

If podman is killed, its monitor conmon stays and would create a container that podman does not
know. A pair of sockets connects the two; _OCI_SYNCPIPE names conmon's end.
"""

from __future__ import annotations

import os
import select

from gpu_runtime import proc
from gpu_runtime.refusal import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_runtime.queue_messages import Place

_PIDFD_GETFD = 438  # its number, the same on all architectures (pidfd_getfd(2), Linux 5.6)


def check(_place: Place) -> None:
    """Check that the caller of this runtime is not a monitor without its podman.

    Raises:
        Refused: podman is gone.
    """
    parent = os.getppid()
    for entry in proc.read(f"/proc/{parent}/environ").split("\0"):
        name, _, number = entry.partition("=")
        if name == "_OCI_SYNCPIPE" and number.isdecimal() and is_deserted(parent, int(number)):
            raise Refused("caller-gone", "the engine no longer waits for this container")


def is_deserted(pid: int, number: int) -> bool:
    """Whether the other end of a process's socket is closed; False if that is not known."""
    import ctypes  # noqa: PLC0415 - for those that wait alone

    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        ours = ctypes.CDLL(None).syscall(_PIDFD_GETFD, process, number, 0)
    finally:
        os.close(process)
    if ours < 0:
        return False
    watched = select.poll()
    watched.register(ours, 0)
    gone = any(event & select.POLLHUP for _, event in watched.poll(0))
    os.close(ours)
    return gone
