# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Who is at the other end of a connection: told by the kernel, and by nothing that was sent."""

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
from gpu_agent.gpu_run.request import BadRequestError, Request
from gpu_runtime import cgroups as groups

# In seconds: for the request, which a client of ours sends at once.
_DEADLINE: typing.Final = 10.0
_CREDENTIALS: typing.Final = struct.Struct("3i")  # struct ucred (unix(7)): pid, uid, gid
_PROC: typing.Final = pathlib.Path("/proc")


class GoneError(Exception):
    """The caller has ended, or wants no more."""


class Caller:
    """The process that has connected, held so that no other can be taken for it.

    Attributes:
        pid: its number.
        uid: its user.
        user: that one's name, or else the number.

    Raises:
        GoneError: it has ended.
        OSError: it can't be told who it is.
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
        """Have its request.

        A secret goes to whoever has the connection now, and the kernel tells who sends it back: so
        the number that is held is that of the process that asks, and of no earlier one.

        Raises:
            GoneError: it has ended, or has sent nothing in time.
            request.BadRequestError: it is none, or of another process than the one that connected.
            OSError: it can't be heard.
        """
        if self._process < 0:
            raise BadRequestError("gpu-run can't be used from within a container")
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
        # What else may come beside it, such as descriptors, has no room there.
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise BadRequestError("it is too long, or has more than words in it")
        if [(pid, uid) for pid, uid, _ in sent_by] != [(self.pid, self.uid)]:
            raise BadRequestError("it comes from another process than the one that has connected")
        found = request.parse(data, nonce)
        self.check()
        return found

    def tell(self, event: dict[str, object]) -> None:
        """Tell it something; who does not read misses it.

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
        """See that it lives, and still wants what it has asked for.

        Raises:
            GoneError: it does not.
        """
        ready, _, _ = select.select([self._process, self._socket], [], [], 0)
        # One that has more to say breaks the rules: there is one request.
        if ready:
            raise GoneError

    def groups(self) -> set[str]:
        """The paths of its control groups.

        Raises:
            OSError: that can't be told.
        """
        return {*groups.of("", f"/proc/{self.pid}")[0].values()}

    def check_place(self) -> None:
        """See that it is in no container: what holds it there is not for us to take away.

        Raises:
            BadRequestError: it is.
            OSError: that can't be told.
        """
        for kind in ("pid", "user"):
            with contextlib.suppress(FileNotFoundError):
                own, its = (_PROC / who / f"ns/{kind}" for who in ("self", str(self.pid)))
                if own.readlink() != its.readlink():
                    raise BadRequestError("gpu-run can't be used from within a container")
