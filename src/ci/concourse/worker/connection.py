# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whether web sees this worker: the connection to web's TSA, over which all its work comes."""

import ipaddress
import math
import pathlib
import time
import typing

from machine import files
from machine import polling as waiting
from machine import tcp_connections as sockets

# Which connection has been seen to last, so that it need not be watched again.
SEEN: typing.Final = pathlib.Path("/run/gpu-ci/worker-connection")

# Seconds that a connection lives which web has let in. One whose key is not known ends after some
# round trips.
_LASTING: typing.Final = 2.0
# A worker sends something every 5 seconds (8.3.0 tsa/client.go), but keeps its connection to a
# dead web for 5 minutes. After so many retransmissions, about 1.4 seconds, the peer is dead.
_GIVEN_UP: typing.Final = 3


def lasts(pid: int, tsa_hosts: tuple[str, ...], patience: float) -> bool:
    """Whether a worker's process has a lasting connection to a TSA, so that it is registered.

    Takes 2 seconds for a new connection, and no time for one that was seen before.

    Args:
        pid: the worker's main process.
        tsa_hosts: HOST:PORT of each TSA.
        patience: how long to wait where there is none, in seconds.

    Raises:
        OSError: the connections can't be looked at.
    """
    seen = (files.read_text(SEEN) or "").splitlines()
    since: dict[str, float] = {}

    def lasting() -> list[str]:
        now = time.monotonic()
        there = {f"{pid} {inode}" for inode in _open(pid, tsa_hosts)}
        for name in since.keys() - there:
            del since[name]
        for name in there:
            since.setdefault(name, -math.inf if name in seen else now)
        return [name for name, began in since.items() if now - began >= _LASTING]

    if not waiting.until(lambda: bool(lasting()), patience):
        return False
    files.ensure_directory(SEEN.parent)
    files.ensure_file(SEEN, "".join(f"{name}\n" for name in lasting()))
    return True


def forget() -> bool:
    """Remove what was noted of connections. Return True if there was anything."""
    removed = files.ensure_absent(SEEN)
    return files.remove_if_empty(SEEN.parent) or removed


def _open(pid: int, tsa_hosts: tuple[str, ...]) -> list[int]:
    """The sockets of a process by which it talks to a TSA that answers."""
    ends = [_end(host) for host in tsa_hosts]
    return [
        one.inode
        for one in sockets.connections(pid)
        if one.unanswered < _GIVEN_UP and {(one.address, one.port), ("", one.port)} & {*ends}
    ]


def _end(host: str) -> tuple[str, int]:
    """Address and port of HOST:PORT; the address is empty for a name, which can have any."""
    name, _, port = host.rpartition(":")
    try:
        return str(ipaddress.ip_address(name.strip("[]"))), int(port)
    except ValueError:
        return "", int(port)
