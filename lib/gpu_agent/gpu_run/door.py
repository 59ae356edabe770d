# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The door of gpu-run: one process that accepts all connections, and limits how many are served.

systemd passes it the listening socket. It reads no data of callers. It counts connections by the
user that the kernel reports, before it starts a process. A user has at most eight places and,
after the first four, one more start each second. A connection that waits for its start costs one
descriptor, and nothing after its caller has ended.
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
from gpu_agent.gpu_run.caller import CONTAINED
from gpu_runtime.refusal import Refused
from machine import child_process as children
from machine import sd_notify as notify

_MOST: typing.Final = 8
_MOST_OF_ALL: typing.Final = 64
# Each served caller can make systemd create a scope.
_AT_ONCE: typing.Final = 4
# In seconds: between two further starts for one user; how long it stays without a connection; how
# often it notifies systemd's watchdog, which kills it after 60.
_EVERY: typing.Final = 1.0
_IDLE: typing.Final = 30.0
_ALIVE: typing.Final = 15.0
# Connections that are accepted in one round. After a full round it pauses, so a storm of them
# costs only a part of one processor. The other connections wait in the kernel's queue.
_ROUND: typing.Final = 64
_PAUSE: typing.Final = 0.005
_SCARCE: typing.Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LONG_PAUSE: typing.Final = 0.05
_FIRST: typing.Final = 3  # SD_LISTEN_FDS_START (sd_listen_fds(3))
_CREDENTIALS: typing.Final = struct.Struct("3i")  # struct ucred (unix(7)): pid, uid, gid
# systemd's variables for this process only.
_OURS: typing.Final = ("LISTEN_", "NOTIFY_SOCKET", "WATCHDOG_")
_NAME: typing.Final = "gpu-run-serves"
_PROC: typing.Final = pathlib.Path("/proc")


class _User:
    """The places of one user.

    Attributes:
        served: the number of processes that serve this user.
        waiting: this user's connections that are not served yet.
        until: when the budget of starts is full again, at one start every _EVERY seconds.
    """

    def __init__(self) -> None:
        self.served = 0
        self.waiting = collections.deque[socket.socket]()
        self.until = 0.0

    @property
    def places(self) -> int:
        """The number of places that this user takes."""
        return self.served + len(self.waiting)

    @property
    def next_start(self) -> float:
        """The time of the next permitted start for this user."""
        return self.until - (_AT_ONCE - 1) * _EVERY


class Door:
    """Accepts the connections.

    Args:
        listener: the listening socket.
        serve: serves one connection, in a separate process with the connection as stdin.
    """

    def __init__(self, listener: socket.socket, serve: collections.abc.Callable[[], None]) -> None:
        self._listener, self._serve = listener, serve
        self._own = (_PROC / "self/ns/user").stat()
        self._users = collections.defaultdict[int, _User](_User)
        self._selector = selectors.DefaultSelector()
        listener.settimeout(0)
        self._selector.register(listener, selectors.EVENT_READ, self._take_some)

    def serve(self) -> None:
        """Serve until there are no connections; systemd starts this again for the next one."""
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
            _refuse(
                connection,
                Refused(
                    "gpu-run-user-limit",
                    f"{_MOST} gpu-run commands of yours are waiting already. End some of them",
                ),
            )
        elif sum(user.places for user in self._users.values()) >= _MOST_OF_ALL:
            _refuse(
                connection,
                Refused(
                    "gpu-run-total-limit",
                    f"{_MOST_OF_ALL} gpu-run commands are waiting already. Try again later",
                ),
            )
        elif _is_over(connection):
            connection.close()
        else:
            self._admit(connection, pid, uid)

    def _admit(self, connection: socket.socket, pid: int, uid: int) -> None:
        """Queue a connection for its user, unless its caller is gone or is in a container."""
        try:
            here = self._check_namespace(pid)
        except Refused as refusal:
            _refuse(connection, refusal)
            return
        if not here:
            connection.close()
        else:
            user = self._users[uid]
            user.waiting.append(connection)
            self._selector.register(
                connection, selectors.EVENT_READ, lambda: self._leave(user, connection)
            )

    def _check_namespace(self, pid: int) -> bool:
        """Check that a process is in this user namespace; False if the process is gone.

        In another user namespace one user may have many user ids.

        Raises:
            Refused: the process is in another user namespace, or that cannot be read.
        """
        within = Refused("gpu-run-in-container", CONTAINED)
        if pid <= 0:
            raise within  # in a PID namespace that this one can't see
        try:
            its = (_PROC / str(pid) / "ns/user").stat()
        except (FileNotFoundError, ProcessLookupError):
            return False
        except OSError as error:
            raise Refused(
                "worker-fault",
                f"cannot tell whether gpu-run was started in a container (/proc/{pid}/ns/user: "
                f"{error.strerror}). Run the command again",
            ) from error
        if not os.path.samestat(its, self._own):
            raise within
        return True

    def _leave(self, user: _User, connection: socket.socket) -> None:
        """Close a connection whose caller has hung up, or has sent data too early."""
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
                    text = f"this worker cannot serve gpu-run now: {error.strerror}. Run it again"
                    self._selector.unregister(user.waiting.popleft())
                    _refuse(connection, Refused("worker-fault", text))
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
                sys.stderr.write(f"the process that served user {uid} ended with {status}\n")

        return reap


def _is_over(connection: socket.socket) -> bool:
    """Whether the caller has hung up, or has sent data too early."""
    try:
        connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _refuse(connection: socket.socket, refusal: Refused) -> None:
    # A caller that has hung up, or does not read, misses it.
    with connection, contextlib.suppress(OSError):
        packet = request.packed(request.refused(refusal))
        connection.send(packet, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)


def main() -> None:
    """Serve the socket that systemd passes.

    Raises:
        ValueError: systemd passes no socket, or a connection.
    """
    if os.environ.get("LISTEN_FDS") != "1":
        raise ValueError("systemd passes no socket")
    listener = socket.socket(fileno=_FIRST)
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ValueError("systemd passes a connection: its socket unit is of another version")
    notify.ready()
    Door(listener, root.main).serve()


if __name__ == "__main__":
    main()
