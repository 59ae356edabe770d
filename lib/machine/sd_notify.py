# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a service tells systemd of itself (sd_notify(3)); nothing where nobody wants to know."""

import contextlib
import os
import socket


def ready() -> None:
    """It has begun its work."""
    _tell("READY=1")


def alive() -> None:
    """It is not stuck: to be said more often than watchdog_seconds()."""
    _tell("WATCHDOG=1")


def status(text: str) -> None:
    """What `systemctl status` shows of it: one line."""
    _tell(f"STATUS={' '.join(text.split())}")


def stopping() -> None:
    """It has begun to end."""
    _tell("STOPPING=1")


def watchdog_seconds() -> float | None:
    """After how long without `alive` systemd kills it; None where that is never."""
    wanted = os.environ.get("WATCHDOG_USEC", "")
    of = os.environ.get("WATCHDOG_PID", "")
    if not wanted.isdecimal() or (of and of != str(os.getpid())):
        return None
    return int(wanted) / 1e6


def _tell(text: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # `@` stands for the NUL that an abstract address begins with (unix(7)).
    place = "\0" + address[1:] if address.startswith("@") else address
    flags = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    # Systemd that does not take it now is no reason to wait, and the next one comes.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, flags) as one:
        one.sendto(text.encode(), place)
