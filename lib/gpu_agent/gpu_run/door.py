# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The door of gpu-run: one process that takes all connections, and has few of them served.

systemd hands it the listening socket and is asked for nothing more. It reads nothing of what
callers send. It counts connections by the user that the kernel names, before it starts anything: a
user has eight places at most, and after the first four, one more start each second. A connection
that waits for its start costs one descriptor, and nothing once its caller has gone.
"""

import collections
import collections.abc
import contextlib
import errno
import os
import pathlib
import selectors
import socket
import struct
import sys
import time
import typing

from gpu_agent.gpu_run import __main__ as root
from gpu_agent.gpu_run import request
from machine import child_process as children
from machine import sd_notify as notify

_MOST: typing.Final = 8
_MOST_OF_ALL: typing.Final = 64
# Who is served may have a scope made by systemd.
_AT_ONCE: typing.Final = 4
# In seconds: between two further starts for one user; how long it stays without a connection; how
# often it tells systemd that it lives, which kills it after 60.
_EVERY: typing.Final = 1.0
_IDLE: typing.Final = 30.0
_ALIVE: typing.Final = 15.0
# Connections that are taken at once. Where that many came it pauses, so that a storm of them costs
# it a part of one processor; the others wait in the kernel, in one line.
_ROUND: typing.Final = 64
_PAUSE: typing.Final = 0.005
_SCARCE: typing.Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LONG_PAUSE: typing.Final = 0.05
_FIRST: typing.Final = 3  # SD_LISTEN_FDS_START (sd_listen_fds(3))
_CREDENTIALS: typing.Final = struct.Struct("3i")  # struct ucred (unix(7)): pid, uid, gid
# What systemd tells this process alone.
_OURS: typing.Final = ("LISTEN_", "NOTIFY_SOCKET", "WATCHDOG_")
_NAME: typing.Final = "gpu-run-serves"
_PROC: typing.Final = pathlib.Path("/proc")


class _User:
    """What one user has of the door.

    Attributes:
        served: how many processes serve this user.
        waiting: this user's connections that are to be served.
        until: when the starts so far have been paid off, at one every _EVERY seconds.
    """

    def __init__(self) -> None:
        self.served = 0
        self.waiting = collections.deque[socket.socket]()
        self.until = 0.0

    @property
    def places(self) -> int:
        """How many this user takes."""
        return self.served + len(self.waiting)

    @property
    def next_start(self) -> float:
        """From when on one more process may be started for this user."""
        return self.until - (_AT_ONCE - 1) * _EVERY


class Door:
    """What takes the connections.

    Args:
        listener: where they come.
        serve: what serves one, in a process of its own, which has it as stdin.
    """

    def __init__(self, listener: socket.socket, serve: collections.abc.Callable[[], None]) -> None:
        self._listener, self._serve = listener, serve
        self._own = (_PROC / "self/ns/user").stat()
        self._users = collections.defaultdict[int, _User](_User)
        self._selector = selectors.DefaultSelector()
        listener.settimeout(0)
        self._selector.register(listener, selectors.EVENT_READ, self._take_some)

    def serve(self) -> None:
        """Serve until there is nobody to serve; systemd starts this again for the next."""
        last = alive = time.monotonic()
        while (now := time.monotonic()) - last < _IDLE:
            if now - alive >= _ALIVE:
                notify.alive()
                alive = now
            for key, _ in self._selector.select(self._pause(now)):
                key.data()
            self._start_due()
            if any(user.places for user in self._users.values()):
                last = time.monotonic()

    def _pause(self, now: float) -> float:
        due = [user.next_start for user in self._users.values() if user.waiting]
        return max(0.0, min([_ALIVE, *(moment - now for moment in due)]))

    def _take_some(self) -> None:
        for _ in range(_ROUND):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _SCARCE:
                    raise
                time.sleep(_LONG_PAUSE)
                return
            self._take(connection)
        time.sleep(_PAUSE)

    def _take(self, connection: socket.socket) -> None:
        told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(told)
        if uid in self._users and self._users[uid].places >= _MOST:
            _refuse(connection, f"you wait {_MOST} times already: end some of those")
        elif sum(user.places for user in self._users.values()) >= _MOST_OF_ALL:
            _refuse(connection, f"{_MOST_OF_ALL} wait already: try again later")
        elif _is_over(connection) or (obstacle := self._obstacle(pid)) is None:
            connection.close()
        elif obstacle:
            _refuse(connection, obstacle)
        else:
            user = self._users[uid]
            user.waiting.append(connection)
            self._selector.register(
                connection, selectors.EVENT_READ, lambda: self._leave(user, connection)
            )

    def _obstacle(self, pid: int) -> str | None:
        """Why a process is not served: only one of this user namespace is; None if it is gone.

        In another one a user may have the numbers of many.
        """
        within = "gpu-run can't be used from within a container"
        if pid <= 0:
            return within  # in a PID namespace that this one can't see
        try:
            its = (_PROC / str(pid) / "ns/user").stat()
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError as error:
            return (
                "this worker can't tell whether gpu-run was started within a container "
                f"(/proc/{pid}/ns/user: {error.strerror}): run it again"
            )
        return "" if os.path.samestat(its, self._own) else within

    def _leave(self, user: _User, connection: socket.socket) -> None:
        """Let go of one that has hung up, or spoken before it was asked."""
        self._selector.unregister(connection)
        user.waiting.remove(connection)
        connection.close()

    def _start_due(self) -> None:
        now = time.monotonic()
        for uid, user in self._users.items():
            while user.waiting and now >= user.next_start:
                connection = user.waiting[0]
                if _is_over(connection):
                    self._leave(user, connection)
                    continue
                user.until = max(user.until, now) + _EVERY
                try:
                    server = children.Server(_NAME, self._serve, connection.fileno(), _OURS)
                except OSError as error:
                    text = f"this worker gives no GPU now: {error.strerror}; run it again"
                    self._selector.unregister(user.waiting.popleft())
                    _refuse(connection, text)
                    continue
                self._leave(user, connection)
                user.served += 1
                self._selector.register(
                    server, selectors.EVENT_READ, self._ended(uid, user, server)
                )

    def _ended(
        self, uid: int, user: _User, server: children.Server
    ) -> collections.abc.Callable[[], None]:
        def reap() -> None:
            self._selector.unregister(server)
            user.served -= 1
            if status := server.reap():
                sys.stderr.write(f"what served user {uid} has ended with {status}\n")

        return reap


def _is_over(connection: socket.socket) -> bool:
    """Whether its caller has hung up, or has spoken before it was asked."""
    try:
        connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _refuse(connection: socket.socket, text: str) -> None:
    # Who has hung up, or reads nothing, misses it.
    with connection, contextlib.suppress(OSError):
        packet = request.packed({"event": "refused", "text": text})
        connection.send(packet, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)


def main() -> None:
    """Serve the socket that systemd hands over.

    Raises:
        ValueError: it hands over none, or a connection.
    """
    if os.environ.get("LISTEN_FDS") != "1":
        raise ValueError("systemd hands over no socket")
    listener = socket.socket(fileno=_FIRST)
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ValueError("systemd hands over a connection: its socket is of another version")
    notify.ready()
    Door(listener, root.main).serve()


if __name__ == "__main__":
    main()
