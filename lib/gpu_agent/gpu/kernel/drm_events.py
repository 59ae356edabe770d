# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the kernel tells at once of AMD's and Intel's GPUs that their driver reset or gave up.

Only the kernel is heard: what processes send has their number. Recent drivers tell it all alike
(Linux Documentation/gpu/drm-uapi.rst, "Device Wedging", since 6.15), i915 its resets before that.
"""

import dataclasses
import re
import socket
import typing

_NETLINK_KOBJECT_UEVENT: typing.Final = 15  # Linux include/uapi/linux/netlink.h
_KERNELS_GROUP: typing.Final = 1
_MOST: typing.Final = 8192  # Linux include/linux/kobject.h, UEVENT_BUFFER_SIZE is 2048
_MOST_EVENTS: typing.Final = 200  # of one turn
_CARD: typing.Final = re.compile(
    r"/(?P<address>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/drm/card[0-9]+$"
)


@dataclasses.dataclass(frozen=True)
class Told:
    """One thing that a driver told of one GPU.

    Attributes:
        pci_address: such as `0000:03:00.0`.
        wedged: whether it has given the GPU up; else it has reset it and goes on.
        text: the kernel's own words.
    """

    pci_address: str
    wedged: bool
    text: str


class Listener:
    """Hears the kernel; never waits for it.

    Raises:
        OSError: it can't be heard here.
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
        """The descriptor that can be read when the kernel has told something."""
        return self._socket.fileno()

    def read(self) -> list[Told]:
        """What it has told since."""
        found: list[Told] = []
        for _ in range(_MOST_EVENTS):
            try:
                data, (sender, _) = self._socket.recvfrom(_MOST)
            except BlockingIOError:
                break
            except OSError:  # more came than there was room for: the poll has the rest
                continue
            if sender == 0 and (told := parse(data)):
                found.append(told)
        return found

    def close(self) -> None:
        """Hear no more."""
        self._socket.close()


def parse(data: bytes) -> Told | None:
    """What one uevent tells; None where it tells nothing of that kind."""
    if b"\0WEDGED=" not in data and b"\0RESET=1\0" not in data + b"\0":
        return None
    pairs = [part.partition("=") for part in data.decode(errors="replace").split("\0")]
    values = {name: value for name, equals, value in pairs if equals}
    card = _CARD.search(values.get("DEVPATH", ""))
    if not card or values.get("SUBSYSTEM") != "drm":
        return None
    if (how := values.get("WEDGED", "")) and how.isprintable():
        # `none`: the driver has helped itself. Else what it takes, such as `rebind,bus-reset`.
        return Told(card["address"], how != "none", f"WEDGED={how[:80]}")
    return Told(card["address"], wedged=False, text="RESET=1")
