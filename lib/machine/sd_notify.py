# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Notify systemd of a service's state (sd_notify(3)); do nothing without systemd."""

import contextlib
import os
import socket


def ready() -> None:
    """Report that the service has started."""
    _tell("READY=1")


def alive() -> None:
    """Report that it is not stuck; to be called more often than watchdog_seconds()."""
    _tell("WATCHDOG=1")


def status(text: str) -> None:
    """Set the line that `systemctl status` shows."""
    _tell(f"STATUS={' '.join(text.split())}")


def stopping() -> None:
    """Report that it is stopping."""
    _tell("STOPPING=1")


def watchdog_seconds() -> float | None:
    """Return after how long without `alive` systemd kills it; None if never."""
    wanted = os.environ.get("WATCHDOG_USEC", "")
    of = os.environ.get("WATCHDOG_PID", "")
    if not wanted.isdecimal() or (of and of != str(os.getpid())):
        return None
    return int(wanted) / 1e6


def _tell(text: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # `@` stands for the NUL at the beginning of an abstract address (unix(7)).
    place = "\0" + address[1:] if address.startswith("@") else address
    flags = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    # If systemd does not take it now, don't wait: the next report follows.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, flags) as one:
        one.sendto(text.encode(), place)
