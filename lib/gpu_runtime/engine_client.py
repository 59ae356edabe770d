# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whether somebody still wants the container that waits for its GPUs.

A podman that is killed leaves its monitor, conmon, which would have the container made with nobody
who knows it. The two are tied by a pair of sockets, whose end at conmon _OCI_SYNCPIPE names.
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
    """Check that this runtime's caller is not a monitor that nobody listens to.

    Raises:
        Refused: it is.
    """
    parent = os.getppid()
    for entry in proc.read(f"/proc/{parent}/environ").split("\0"):
        name, _, number = entry.partition("=")
        if name == "_OCI_SYNCPIPE" and number.isdecimal() and is_deserted(parent, int(number)):
            raise Refused("nobody waits for this container any longer")


def is_deserted(pid: int, number: int) -> bool:
    """Whether the other end of that socket of a process is gone; not where it can't be told."""
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
