# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Questions by HTTP that end in time, however slowly the other side answers.

A socket's own limit counts from byte to byte: who says one a second is never too slow for it.
"""

import collections.abc
import contextlib
import http.client
import socket
import threading
import time

# As socket.create_connection, and http.client calls it so.
Connect = collections.abc.Callable[[tuple[str, int], float, object], socket.socket]


@contextlib.contextmanager
def sockets(seconds: float) -> collections.abc.Generator[Connect]:
    """Give what makes connections that all end after so many seconds at the latest.

    That holds from the first byte on: for a proxy's answer and for the beginning of TLS too. Only
    a resolver has its own limit (resolv.conf(5)).

    Raises:
        TimeoutError: that time was over before the caller was done.
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
            # TLS takes the socket's descriptor away.
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
            with contextlib.suppress(OSError):  # it is not connected any more
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
    # What came until then may look like a whole answer.
    if over.is_set():
        raise TimeoutError(f"no whole answer within {seconds:.0f} s")


def ending(connection: http.client.HTTPConnection, connect: Connect) -> http.client.HTTPConnection:
    """Have a connection, which is not made yet, end in time."""
    # http.client keeps socket.create_connection there, so that another may take its place.
    connection._create_connection = connect  # noqa: SLF001 # pyright: ignore[reportAttributeAccessIssue]
    return connection


@contextlib.contextmanager
def within(
    connection: http.client.HTTPConnection, seconds: float
) -> collections.abc.Generator[None]:
    """Connect, and have the connection end after so many seconds at the latest.

    Raises:
        TimeoutError: that time was over before the caller was done.
        OSError: nobody is there.
    """
    with sockets(seconds) as connect:
        ending(connection, connect).connect()
        yield
