# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Uevents of the kernel on AMD's and Intel's GPUs that their driver reset or declared wedged.

Messages of processes carry their process id and are ignored. Recent drivers use the same events
(Linux Documentation/gpu/drm-uapi.rst, "Device Wedging", since 6.15); i915 reported resets before.
"""

import dataclasses
import re
import socket
import typing

_NETLINK_KOBJECT_UEVENT: typing.Final = 15  # Linux include/uapi/linux/netlink.h
_KERNELS_GROUP: typing.Final = 1
_MOST: typing.Final = 8192  # Linux include/linux/kobject.h, UEVENT_BUFFER_SIZE is 2048
_MOST_EVENTS: typing.Final = 200  # that one call returns
_CARD: typing.Final = re.compile(
    r"/(?P<address>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/drm/card[0-9]+$"
)


@dataclasses.dataclass(frozen=True)
class Told:
    """One event of a driver on one GPU.

    Attributes:
        pci_address: such as `0000:03:00.0`.
        wedged: whether the GPU is wedged; otherwise the driver reset it and continues.
        text: the kernel's own text.
    """

    pci_address: str
    wedged: bool
    text: str


class Listener:
    """Receives uevents without blocking.

    Raises:
        OSError: uevents can't be received here.
    """

    def __init__(self) -> None:
        kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_NETLINK, kind, _NETLINK_KOBJECT_UEVENT)
        try:
            self._socket.bind((0, _KERNELS_GROUP))
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """A descriptor that is readable when an event came."""
        return self._socket.fileno()

    def read(self) -> list[Told]:
        """The events since the last call."""
        found: list[Told] = []
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


def parse(data: bytes) -> Told | None:
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
        return Told(card["address"], how != "none", f"WEDGED={how[:80]}")
    return Told(card["address"], wedged=False, text="RESET=1")
