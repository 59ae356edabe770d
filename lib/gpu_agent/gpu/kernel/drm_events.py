# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Uevents of the kernel on GPUs that their DRM driver reset or declared wedged.

Messages of processes carry their process id and are ignored. Recent drivers use the same events
(Linux Documentation/gpu/drm-uapi.rst, "Device Wedging", since 6.15); i915 reported resets before.
"""

import collections.abc
import re
import socket
import typing

from gpu_agent.gpu.kernel.listener import Heard, NoSourceError
from gpu_agent.model.observations import Source
from machine import exhaustion

_NETLINK_KOBJECT_UEVENT: typing.Final = 15  # Linux include/uapi/linux/netlink.h
_KERNELS_GROUP: typing.Final = 1
_MOST: typing.Final = 8192  # Linux include/linux/kobject.h, UEVENT_BUFFER_SIZE is 2048
_MOST_EVENTS: typing.Final = 200  # that one call returns
_RESET: typing.Final = "driver-reset"  # the driver reset the GPU and continues
_CARD: typing.Final = re.compile(
    r"/(?P<address>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/drm/card[0-9]+$"
)


def _opened() -> socket.socket:
    kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    opened = socket.socket(socket.AF_NETLINK, kind, _NETLINK_KOBJECT_UEVENT)
    try:
        opened.bind((0, _KERNELS_GROUP))
    except OSError:
        opened.close()
        raise
    return opened


class DrmListener:
    """Receives uevents without blocking.

    Attributes:
        can_be_waited_for: always True.

    Args:
        opened: opens the socket.

    Raises:
        NoSourceError: uevents can't be received here.
        OSError: the machine lacks resources.
    """

    can_be_waited_for = True

    def __init__(self, opened: collections.abc.Callable[[], socket.socket] = _opened) -> None:
        try:
            self._socket = opened()
        except OSError as error:
            if exhaustion.is_told_by(error):
                raise
            why = f"cannot read the kernel's uevents: {error.strerror}"
            raise NoSourceError(why) from error

    def fileno(self) -> int:
        """A descriptor that is readable when an event came."""
        return self._socket.fileno()

    def read(self) -> list[Heard]:
        """The events since the last call."""
        found: list[Heard] = []
        for _ in range(_MOST_EVENTS):
            try:
                data, (sender, _) = self._socket.recvfrom(_MOST)
            except BlockingIOError:
                break
            except OSError:  # the kernel dropped events: the next poll sees the state
                continue
            if sender == 0 and (told := parse(data)):
                found.append(told)
        return found

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def parse(data: bytes) -> Heard | None:
    """Parse one uevent; return None for other kinds of events."""
    if b"\0WEDGED=" not in data and b"\0RESET=1\0" not in data + b"\0":
        return None
    pairs = [part.partition("=") for part in data.decode(errors="replace").split("\0")]
    values = {name: value for name, equals, value in pairs if equals}
    card = _CARD.search(values.get("DEVPATH", ""))
    if not card or values.get("SUBSYSTEM") != "drm":
        return None
    if (how := values.get("WEDGED", "")) and how.isprintable():
        # `none`: the driver recovered by itself. Else the needed steps, such as
        # `rebind,bus-reset`.
        fault = _RESET if how == "none" else "wedged"
        return Heard(card["address"], Source.COUNTER, fault, text=f"WEDGED={how[:80]}")
    return Heard(card["address"], Source.COUNTER, _RESET, text="RESET=1")
