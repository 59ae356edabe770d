# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The caller at the other end of a connection, identified by the kernel and not by its data."""

import contextlib
import os
import pathlib
import pwd
import secrets
import select
import socket
import struct
import typing

from gpu_agent.gpu_run import request
from gpu_agent.gpu_run.request import Request
from gpu_runtime import cgroups as groups
from gpu_runtime.refusal import Refused

# In seconds: for the request, which gpu-run sends at once.
_DEADLINE: typing.Final = 10.0
_CREDENTIALS: typing.Final = struct.Struct("3i")  # struct ucred (unix(7)): pid, uid, gid
_PROC: typing.Final = pathlib.Path("/proc")
CONTAINED: typing.Final = (
    "gpu-run does not work in a container on this machine. Run it outside the container"
)


class GoneError(Exception):
    """The caller has ended, or has closed the connection."""


class Caller:
    """The process that has connected, held so that no other process is mistaken for it.

    Attributes:
        pid: its process id.
        uid: its user id.
        user: the user's name, or the id if it has none.

    Raises:
        GoneError: it has ended.
        OSError: the kernel does not identify it.
    """

    def __init__(self, connection: socket.socket) -> None:
        size = _CREDENTIALS.size
        told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        self._socket = connection
        self.pid, self.uid, _ = _CREDENTIALS.unpack(told)
        try:
            self._process = os.pidfd_open(self.pid) if self.pid > 0 else -1
        except ProcessLookupError as error:
            raise GoneError from error
        try:
            self.user = pwd.getpwuid(self.uid).pw_name
        except KeyError:
            self.user = str(self.uid)

    def ask(self) -> Request:
        """Receive its request.

        A nonce is sent over the connection, and the kernel identifies the process that sends it
        back. So the process id that is held belongs to the process that sends the request.

        Raises:
            GoneError: it has ended, or has sent nothing in time.
            Refused: the request is invalid, or comes from another process.
            OSError: the connection failed.
        """
        if self._process < 0:
            raise Refused("gpu-run-in-container", CONTAINED)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.settimeout(_DEADLINE)
        nonce = secrets.token_hex(16)
        try:
            self._socket.send(request.packed({"event": "hello", "nonce": nonce}))
            space = socket.CMSG_SPACE(_CREDENTIALS.size)
            data, ancillary, flags, _ = self._socket.recvmsg(request.MOST, space)
        except (TimeoutError, ConnectionError) as error:
            raise GoneError from error
        if not data:
            raise GoneError
        sent_by = [
            _CREDENTIALS.unpack(content)
            for level, kind, content in ancillary
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
        ]
        # Other ancillary data, such as descriptors, does not fit into the space.
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise Refused("request-invalid", "the request is too long, or contains more than text")
        if [(pid, uid) for pid, uid, _ in sent_by] != [(self.pid, self.uid)]:
            raise Refused(
                "request-invalid",
                "the request comes from another process than the one that connected",
            )
        found = request.parse(data, nonce)
        self.check()
        return found

    def tell(self, event: dict[str, object]) -> None:
        """Send an event; a caller that does not read misses it.

        Raises:
            GoneError: it has ended.
        """
        self._socket.settimeout(0)
        try:
            self._socket.send(request.packed(event), socket.MSG_NOSIGNAL)
        except BlockingIOError:
            pass
        except OSError as error:
            raise GoneError from error

    def check(self) -> None:
        """Check that the caller lives, and has not closed the connection.

        Raises:
            GoneError: it has ended or closed the connection.
        """
        ready, _, _ = select.select([self._process, self._socket], [], [], 0)
        # More data is a violation of the protocol: there is one request.
        if ready:
            raise GoneError

    def groups(self) -> set[str]:
        """Return the paths of its control groups.

        Raises:
            OSError: /proc cannot be read.
        """
        return {*groups.of("", f"/proc/{self.pid}")[0].values()}

    def check_place(self) -> None:
        """Check that it is not in a container, whose confinement gpu-run must not remove.

        Raises:
            Refused: it is in a container.
            OSError: /proc cannot be read.
        """
        for kind in ("pid", "user"):
            with contextlib.suppress(FileNotFoundError):
                own, its = (_PROC / who / f"ns/{kind}" for who in ("self", str(self.pid)))
                if own.readlink() != its.readlink():
                    raise Refused("gpu-run-in-container", CONTAINED)
