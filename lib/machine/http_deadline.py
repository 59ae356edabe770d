# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Limit the total time of HTTP requests, however slowly the other side answers.

A socket's own time limit counts from byte to byte: a byte a second is never too slow for it.
"""

import collections.abc
import contextlib
import http.client
import socket
import threading
import time

# The signature of socket.create_connection, as http.client calls it.
Connect = collections.abc.Callable[[tuple[str, int], float, object], socket.socket]


@contextlib.contextmanager
def sockets(seconds: float) -> collections.abc.Generator[Connect]:
    """Provide a function that makes connections, all of which end after so many seconds.

    The limit includes a proxy's answer and the TLS handshake. Only the resolver has a limit of its
    own (resolv.conf(5)).

    Raises:
        TimeoutError: the time was over before the caller was done.
    """
    end, over, twins = time.monotonic() + seconds, threading.Event(), list[socket.socket]()

    def connect(address: tuple[str, int], timeout: float, _: object = None) -> socket.socket:
        failure = OSError(f"{address[0]} has no address")
        for family, kind, protocol, _, where in socket.getaddrinfo(
            *address, type=socket.SOCK_STREAM
        ):
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no connection within {seconds:.0f} s")
            one = socket.socket(family, kind, protocol)
            # TLS detaches the socket's descriptor.
            twins.append(one.dup())
            one.settimeout(min(timeout, left))
            try:
                one.connect(where)
            except OSError as error:
                one.close()
                failure = error
                continue
            if over.is_set():
                stop()
            return one
        raise failure

    def stop() -> None:
        over.set()
        for twin in tuple(twins):
            with contextlib.suppress(OSError):  # it is no longer connected
                twin.shutdown(socket.SHUT_RDWR)

    alarm = threading.Timer(max(0.0, seconds), stop)
    alarm.daemon = True
    alarm.start()
    try:
        yield connect
    finally:
        alarm.cancel()
        alarm.join()
        for twin in twins:
            twin.close()
    # The part that arrived may look like a complete answer.
    if over.is_set():
        raise TimeoutError(f"no complete answer within {seconds:.0f} s")


def ending(connection: http.client.HTTPConnection, connect: Connect) -> http.client.HTTPConnection:
    """Give a connection, which is not made yet, a time limit."""
    # http.client keeps socket.create_connection there, so that it can be replaced.
    connection._create_connection = connect  # noqa: SLF001 # pyright: ignore[reportAttributeAccessIssue]
    return connection


@contextlib.contextmanager
def within(
    connection: http.client.HTTPConnection, seconds: float
) -> collections.abc.Generator[None]:
    """Connect, and close the connection after so many seconds.

    Raises:
        TimeoutError: the time was over before the caller was done.
        OSError: the connection failed.
    """
    with sockets(seconds) as connect:
        ending(connection, connect).connect()
        yield
