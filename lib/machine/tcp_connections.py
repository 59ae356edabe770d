# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""List the TCP connections of this machine and of its processes, as the kernel reports them.

Standard library only: programs that run without packages use this too.
"""

import collections.abc
import contextlib
import dataclasses
import ipaddress
import math
import os
import pathlib
import re
import socket
import struct
import sys
import typing

_PROC: typing.Final = pathlib.Path("/proc")
_ESTABLISHED: typing.Final = "01"  # TCP_ESTABLISHED (Linux include/net/tcp_states.h)
_LISTEN: typing.Final = "0A"  # TCP_LISTEN
_LOCAL: typing.Final = ("127.0.0.1", "0.0.0.0", "::")  # noqa: S104 nothing is bound to it
# Linux include/uapi/linux: netlink.h, sock_diag.h, inet_diag.h. The request is for established
# connections of a family, each with its tcp_info.
_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _DUMP, _REQUEST = 4, 20, 0x301, 0x1
_ANY_STATE, _NO_COOKIE = 0xFFF, 0xFFFFFFFF
_PATIENCE: typing.Final = 2.0  # seconds; the kernel answers at once
_DONE: typing.Final = (2, 3)  # NLMSG_ERROR, NLMSG_DONE
_INFO: typing.Final = 2  # INET_DIAG_INFO
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
# struct inet_diag_msg, and where in it the user and the inode are.
_MESSAGE, _USER, _INODE = 72, 64, 68
# In struct tcp_info (tcp.h): milliseconds since the last data, and numbers of bytes.
_LAST_SENT, _LAST_RECEIVED, _RECEIVED = 44, 52, 128
_ANSWER: typing.Final = 1 << 16


@dataclasses.dataclass(frozen=True)
class Connection:
    """An established connection of a process of this machine.

    Attributes:
        inode: the kernel's number of the socket, unique until the machine reboots.
        address: the other end's address, IPv4 or IPv6.
        port: the other end's port.
        unanswered: how often the last data was sent again without an answer.
    """

    inode: int
    address: str
    port: int
    unanswered: int


def connections(pid: int) -> tuple[Connection, ...]:
    """Return the established TCP connections of a process; none if it has ended.

    Raises:
        OSError: they can't be read.
    """
    folder = _PROC / str(pid)
    try:
        own = _sockets(folder)
        tables = _tables(folder)
    except (FileNotFoundError, ProcessLookupError):
        return ()
    listed = [one for table in tables for one in established(table)]
    return tuple(one for one in listed if one.inode in own)


def other_end(connection: socket.socket) -> int:
    """Return the inode of the other end of a connection to 127.0.0.1, if a process has it.

    0 means that no process has accepted the connection yet, or that the process has ended.

    Raises:
        OSError: the connections can't be read.
    """
    return _at_other_end(connection)[1]


def is_open_in(service: str, inode: int) -> bool:
    """Return whether a process of a service of systemd's has a socket open.

    A process is identified by its control group, which no user can enter, not by its number.

    Args:
        service: the unit's full name; the unit is in system.slice.
        inode: of the socket.

    Raises:
        OSError: a process can't be examined.
    """
    # In a container the kernel may show groups from the host's root on.
    top = (
        _group(os.fsdecode((_PROC / "1/cgroup").read_bytes()))
        .removesuffix("/init.scope")
        .rstrip("/")
    )
    wanted, link = f"{top}/system.slice/{service}", f"socket:[{inode}]"
    processes = [path for path in _PROC.iterdir() if path.name.isdecimal()]
    return any(_has_open(path, wanted, link) for path in processes)


def _has_open(process: pathlib.Path, group: str, link: str) -> bool:
    """Return whether a process is in this group and has this open; False if it has ended."""
    with contextlib.ExitStack() as opened:

        def opened_at(name: str | pathlib.Path, flags: int, folder: int | None = None) -> int:
            found = os.open(name, flags | os.O_CLOEXEC, dir_fd=folder)
            opened.callback(os.close, found)
            return found

        try:
            # Everything that is read through this folder is of one process, even if its number
            # is reused.
            folder = opened_at(process, os.O_PATH | os.O_DIRECTORY)
            text = os.fsdecode(os.read(opened_at("cgroup", os.O_RDONLY, folder), 1 << 16))
            if _group(text) != group:
                return False
            descriptors = opened_at("fd", os.O_RDONLY | os.O_DIRECTORY, folder)
            for name in os.listdir(descriptors):  # noqa: PTH208
                with contextlib.suppress(FileNotFoundError):
                    if os.readlink(name, dir_fd=descriptors) == link:
                        return True
        except (FileNotFoundError, ProcessLookupError):
            return False
    return False


def _group(text: str) -> str:
    """Return a process's group in systemd's own hierarchy (cgroups(7), /proc/PID/cgroup)."""
    # The name of a user's group may contain all other line separators of str.splitlines.
    rows = [line.split(":", 2) for line in text.split("\n")]
    paths = {row[1]: row[2] for row in rows if len(row) == 3}
    return paths.get("name=systemd", paths.get("", ""))


def _tables(folder: pathlib.Path) -> list[str]:
    """Return the kernel's tables of the network that a process is in."""
    tables = [(folder / "net/tcp").read_text()]
    # A kernel without IPv6 has no second table.
    with contextlib.suppress(FileNotFoundError):
        tables.append((folder / "net/tcp6").read_text())
    return tables


def listener(port: int) -> int:
    """Return the inode of the socket that listens on a port of 127.0.0.1; 0 if none does.

    Raises:
        OSError: the sockets can't be read.
    """
    for table in _tables(_PROC / "self"):
        for fields in (line.split() for line in table.splitlines()[1:]):
            if len(fields) > 9 and fields[3] == _LISTEN:
                host, own = fields[1].split(":")
                if int(own, 16) == port and _address(host) in _LOCAL:
                    return int(fields[9])
    return 0


def is_taken(port: int, service: str) -> bool:
    """Return whether a program other than this service listens on a port of 127.0.0.1.

    Raises:
        OSError: the sockets can't be read.
    """
    inode = listener(port)
    # The service may have ended between the two reads, and its socket with it.
    return bool(inode) and not is_open_in(service, inode) and listener(port) == inode


def user_of(connection: socket.socket) -> int | None:
    """Return the user at the other end of a connection to 127.0.0.1; None if it is closed.

    Raises:
        OSError: the kernel does not say.
    """
    user, inode = _at_other_end(connection)
    # A socket without a file has no inode, and its user means nothing.
    return user if inode else None


def _at_other_end(connection: socket.socket) -> tuple[int, int]:
    """Return the user and the inode of the other end; the inode is 0 if no process has it.

    The kernel looks up one connection, however many there are.
    """
    (own, own_port), (address, port) = connection.getsockname(), connection.getpeername()
    ends = socket.inet_aton(address).ljust(16, b"\0") + socket.inet_aton(own).ljust(16, b"\0")
    body = (
        struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, _ANY_STATE)
        + struct.pack(">HH", port, own_port)
        + ends
        + struct.pack("=III", 0, _NO_COOKIE, _NO_COOKIE)
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asked:
        asked.settimeout(_PATIENCE)
        header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0)
        asked.send(header + body)
        for kind, message in _messages(asked.recv(_ANSWER), _HEADER.size):
            if kind not in _DONE:
                return _number(message, _USER, 4), _number(message, _INODE, 4)
    return 0, 0


def silence(inodes: collections.abc.Collection[int]) -> float:
    """Return for how many seconds no data was sent or received on any of these connections.

    Infinite if there is no connection.

    Raises:
        OSError: the kernel does not say.
    """
    ages = [math.inf]
    for inode, info in _told():
        if inode in inodes:
            ages += [_number(info, at, 4) / 1000 for at in (_LAST_SENT, _LAST_RECEIVED)]
    return min(ages)


def expecting(inodes: collections.abc.Collection[int]) -> int:
    """Return on how many of these connections nothing has been received so far.

    Raises:
        OSError: the kernel does not say.
    """
    return sum(inode in inodes and not _number(info, _RECEIVED, 8) for inode, info in _told())


def _told() -> collections.abc.Iterator[tuple[int, bytes]]:
    """Return the inode of each established connection, and its tcp_info."""
    for family in (socket.AF_INET, socket.AF_INET6):
        yield from _told_of(family)


def _told_of(family: int) -> collections.abc.Iterator[tuple[int, bytes]]:
    established = 1 << int(_ESTABLISHED, 16)
    body = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), established)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asked:
        header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0)
        asked.send(header + body)
        while True:
            for kind, message in _messages(asked.recv(_ANSWER), _HEADER.size):
                if kind in _DONE:
                    return
                for name, info in _attributes(message[_MESSAGE:]):
                    if name == _INFO:
                        yield _number(message, _INODE, 4), info


def _number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], sys.byteorder)


def _messages(data: bytes, head: int) -> collections.abc.Iterator[tuple[int, bytes]]:
    while len(data) >= head:
        length, kind, *_ = _HEADER.unpack_from(data)
        yield kind, data[head:length]
        data = data[max(_aligned(length), head) :]


def _attributes(data: bytes) -> collections.abc.Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, name = _ATTRIBUTE.unpack_from(data)
        yield name, data[_ATTRIBUTE.size : length]
        data = data[max(_aligned(length), _ATTRIBUTE.size) :]


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def established(table: str) -> list[Connection]:
    """Return the established connections in a table of proc(5) (/proc/net/tcp, tcp6)."""
    found: list[Connection] = []
    for fields in (line.split() for line in table.splitlines()[1:]):
        if len(fields) > 9 and fields[3] == _ESTABLISHED:
            host, port = fields[2].split(":")
            again, inode = int(fields[6], 16), int(fields[9])
            found.append(Connection(inode, _address(host), int(port, 16), again))
    return found


def _address(digits: str) -> str:
    """Return an address from its 32-bit words, each a number in this machine's byte order."""
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    address = ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _sockets(folder: pathlib.Path) -> set[int]:
    """Return the inodes of a process's open sockets; it may close some meanwhile."""
    found: set[int] = set()
    for link in (folder / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            match = re.fullmatch(r"socket:\[([0-9]+)\]", str(link.readlink()))
            if match:
                found.add(int(match.group(1)))
    return found
