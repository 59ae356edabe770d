# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The TCP connections that a process has open, as the kernel lists them."""

import contextlib
import dataclasses
import ipaddress
import pathlib
import re
import sys
import typing

_PROC: typing.Final = pathlib.Path("/proc")
_ESTABLISHED: typing.Final = "01"  # TCP_ESTABLISHED (Linux include/net/tcp_states.h)


@dataclasses.dataclass(frozen=True)
class Connection:
    """An established connection of a process of this machine.

    Attributes:
        inode: the kernel's number of the socket, which no other has while this machine runs.
        address: of the other end, IPv4 or IPv6.
        port: of the other end.
        unanswered: how often what was sent last had to be sent again without an answer.
    """

    inode: int
    address: str
    port: int
    unanswered: int


def connections(pid: int) -> tuple[Connection, ...]:
    """The established TCP connections of a process; none if it has ended.

    Raises:
        OSError: that can't be looked at.
    """
    folder = _PROC / str(pid)
    try:
        own = _sockets(folder)
        # What the kernel was built or told to have no IPv6 for has no second table.
        tables = [(folder / "net/tcp").read_text()]
        with contextlib.suppress(FileNotFoundError):
            tables.append((folder / "net/tcp6").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return ()
    listed = [one for table in tables for one in established(table)]
    return tuple(one for one in listed if one.inode in own)


def established(table: str) -> list[Connection]:
    """The established connections in a table as proc(5) describes it (/proc/net/tcp, tcp6)."""
    found: list[Connection] = []
    for fields in (line.split() for line in table.splitlines()[1:]):
        if len(fields) > 9 and fields[3] == _ESTABLISHED:
            host, port = fields[2].split(":")
            again, inode = int(fields[6], 16), int(fields[9])
            found.append(Connection(inode, _address(host), int(port, 16), again))
    return found


def _address(digits: str) -> str:
    """An address of its 32-bit words, each as a number of this machine's byte order."""
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    address = ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _sockets(folder: pathlib.Path) -> set[int]:
    """The inodes of the sockets that a process has open; it may close some meanwhile."""
    found: set[int] = set()
    for link in (folder / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            match = re.fullmatch(r"socket:\[([0-9]+)\]", str(link.readlink()))
            if match:
                found.add(int(match.group(1)))
    return found
