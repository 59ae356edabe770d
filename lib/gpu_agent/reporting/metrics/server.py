# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Serve the metrics over HTTP on this machine only, where a collector scrapes them.

The server has its own thread, which reads the last stored values and blocks on nothing else. Every
user of the machine may connect, except jobs of runners: metrics name others' jobs. System
accounts, which collectors run as, have 32 connections of at most 5 s each; all other users
together have 32. If all are taken, a new connection closes one of the user who has the most, so no
user can lock out another. Only `GET /metrics` is answered. http.server would need 4 MiB, and a
thread for each slow client.
"""

import collections
import collections.abc
import contextlib
import dataclasses
import logging
import os
import pathlib
import selectors
import socket
import threading
import time
import typing
import weakref

from gpu_agent.reporting.metrics import definitions as exporter
from gpu_runtime.lease_table import RUNNER_USERS
from machine import files
from machine import tcp_connections as sockets

HOST: typing.Final = "127.0.0.1"
PATH: typing.Final = "/metrics"

_MOST: typing.Final = 32  # connections of system accounts, and as many of people
# Users from here on are people (SYS_UID_MAX of login.defs(5) is 999).
_PEOPLE: typing.Final = 1000
_QUEUE: typing.Final = 4096  # connections that the kernel queues until they are accepted
_AT_ONCE: typing.Final = 512  # connections accepted in a row
_PATIENCE: typing.Final = 5.0  # for one connection, in seconds
_LONGEST: typing.Final = 8192  # of a request, in bytes
_REST: typing.Final = 0.005  # pause after each pass over the connections, in seconds
_SAME: typing.Final = 1.0  # how long a page is reused, in seconds
_AGAIN: typing.Final = 10.0  # pause before a taken port is tried again, in seconds
# Where systemd keeps the names of users that exist only while their unit runs (systemd 232 and
# later, src/core/dynamic-user.c): a file for each, called as its number.
_USERS: typing.Final = pathlib.Path("/run/systemd/dynamic-uid")
_STATUS: typing.Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
}

_log = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class _Connection:
    """A client's connection.

    Attributes:
        socket: the socket to the client.
        until: when the connection is closed at the latest, on the monotonic clock.
        user: the client's user id.
        request: the bytes received.
        answer: the bytes left to send; None: the request is not complete.
    """

    socket: socket.socket
    until: float
    user: int
    request: bytes = b""
    answer: bytes | None = None


class Server:
    """Serves the metrics until it is closed."""

    def __init__(
        self,
        port: int,
        text: collections.abc.Callable[[], str],
        *,
        again: float = _AGAIN,
        patience: float = _PATIENCE,
        same: float = _SAME,
        users: pathlib.Path = _USERS,
    ) -> None:
        """Start to serve. If the port is taken, log that once and try again.

        Args:
            port: port on HOST; 0: any free one.
            text: returns the current metrics; called in the server's thread.
            again: seconds before a taken port is tried again.
            patience: the longest time of a connection in seconds.
            same: how long a page is reused, in seconds.
            users: the folder with the names of systemd's users.
        """
        self._wanted, self._text, self._again = port, text, again
        self._patience, self._same, self._users = patience, same, users
        self._cached, self._made = b"", -same
        self._selector = selectors.DefaultSelector()
        self._connections: dict[_Connection, None] = {}  # the oldest first
        self._listener: socket.socket | None = None
        self._is_said = False
        self._next_try = 0.0
        self._waker, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._ends = False
        # A child process that hangs in the driver must not keep the port.
        mine = weakref.WeakMethod(self._leave)
        os.register_at_fork(after_in_child=lambda: (leave := mine()) and leave())
        self._listen()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on; 0 while it is taken."""
        listener = self._listener
        return listener.getsockname()[1] if listener else 0

    def close(self) -> None:
        """Close the port and all connections."""
        self._ends = True
        self._waker.send(b"x")
        self._thread.join(_PATIENCE)
        self._waker.close()
        self._woken.close()

    def _run(self) -> None:
        try:
            while not self._ends:
                self._listen()
                self._look()
                time.sleep(_REST)
        finally:
            self._leave()
            self._selector.close()

    def _leave(self) -> None:
        for connection in self._connections:
            connection.socket.close()
        if self._listener:
            self._listener.close()

    def _listen(self) -> None:
        if self._listener or time.monotonic() < self._next_try:
            return
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((HOST, self._wanted))
            listener.listen(_QUEUE)
        except OSError as error:
            listener.close()
            self._next_try = time.monotonic() + self._again
            if not self._is_said:
                self._is_said = True
                _log.warning(
                    "cannot serve metrics on port %d of %s: %s; trying again every %d s (the "
                    "option gpu-metrics-port sets the port)",
                    *(self._wanted, HOST, error.strerror, self._again),
                )
            return
        if self._is_said:
            _log.info("metrics are served on port %d of %s now", self._wanted, HOST)
        listener.settimeout(0)
        self._selector.register(listener, selectors.EVENT_READ)
        self._listener = listener

    def _look(self) -> None:
        """Wait until a connection is ready, and serve all that are."""
        now = time.monotonic()
        ends = [one.until for one in self._connections]
        if not self._listener:
            ends.append(self._next_try)
        wait = max(0.0, min(ends) - now) if ends else None
        for key, _ in self._selector.select(wait):
            if self._listener and key.fileobj is self._listener:
                for _ in range(_AT_ONCE):
                    if not self._accept(self._listener):
                        break
            elif isinstance(key.data, _Connection) and key.data in self._connections:
                self._serve(key.data)
        for late in [one for one in self._connections if one.until <= time.monotonic()]:
            self._drop(late)

    def _accept(self, listener: socket.socket) -> bool:
        """Accept one connection. Return False if none waits."""
        try:
            other, _ = listener.accept()
        except (
            OSError
        ):  # the client left, or no descriptor is left: _REST keeps this from spinning
            return False
        other.settimeout(0)
        try:
            user = sockets.user_of(other)
        except OSError:  # the kernel does not say: such clients count as one user
            user = _PEOPLE
        if user is None or self._is_job(user):
            other.close()
            return True
        self._make_room(user)
        connection = _Connection(other, time.monotonic() + self._patience, user)
        self._connections[connection] = None
        self._selector.register(other, selectors.EVENT_READ, connection)
        return True

    def _is_job(self, user: int) -> bool:
        """Whether a user is that of a runner's job, or one whose name cannot be read."""
        try:
            name = files.read_text(self._users / str(user)) or ""
        except OSError:
            return True
        return name.startswith(RUNNER_USERS)

    def _make_room(self, user: int) -> None:
        """Close the oldest connection of the user with the most, if this user's needs room."""
        crowd = [one for one in self._connections if (one.user < _PEOPLE) is (user < _PEOPLE)]
        if len(crowd) < _MOST:
            return
        counts = collections.Counter([user, *(one.user for one in crowd)])
        most = max(count for one, count in counts.items() if one != user or count > 1)
        self._drop(next(one for one in crowd if counts[one.user] == most))

    def _drop(self, connection: _Connection) -> None:
        del self._connections[connection]
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _serve(self, connection: _Connection) -> None:
        try:
            if connection.answer is None:
                self._receive(connection)
            if connection.answer is not None:
                connection.answer = connection.answer[connection.socket.send(connection.answer) :]
                if not connection.answer:
                    with contextlib.suppress(OSError):
                        connection.socket.shutdown(socket.SHUT_WR)
                    self._drop(connection)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # the client left
            self._drop(connection)

    def _receive(self, connection: _Connection) -> None:
        """Read more of the request; set the answer once the request is complete.

        Raises:
            OSError: the client has closed the connection.
        """
        came = connection.socket.recv(_LONGEST)
        if not came:
            raise ConnectionResetError
        connection.request += came
        if b"\r\n\r\n" in connection.request or b"\n\n" in connection.request:
            connection.answer = self._answer(connection.request)
        elif len(connection.request) >= _LONGEST:
            connection.answer = _response(431, b"")
        if connection.answer is not None:
            self._selector.modify(connection.socket, selectors.EVENT_WRITE, connection)

    def _answer(self, request: bytes) -> bytes:
        words = request.split(b"\n", 1)[0].split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(400, b"")
        if words[0] != b"GET":
            return _response(405, b"")
        if words[1].split(b"?")[0] != PATH.encode():
            return _response(404, f"metrics are at {PATH}\n".encode())
        now = time.monotonic()
        if now - self._made >= self._same:
            self._cached, self._made = self._text().encode(), now
        return _response(200, self._cached, exporter.CONTENT_TYPE)


def serve(port: int, text: collections.abc.Callable[[], str]) -> Server | None:
    """Serve the metrics on this port of this machine; return None for port 0."""
    return Server(port, text) if port else None


def _response(status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> bytes:
    head = (
        f"HTTP/1.1 {status} {_STATUS[status]}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
        f"{'Allow: GET' if status == 405 else 'Cache-Control: no-store'}\r\n\r\n"
    )
    return head.encode() + body
