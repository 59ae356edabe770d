# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A question by HTTP that ends in time, however slowly the other side answers.

A socket's own limit counts from byte to byte: who says one a second is never too slow for it.
"""

import collections.abc
import contextlib
import http.client
import socket
import threading


@contextlib.contextmanager
def within(
    connection: http.client.HTTPConnection, seconds: float
) -> collections.abc.Generator[None]:
    """Connect, and have the connection end after so many seconds at the latest.

    Raises:
        TimeoutError: that time was over before the caller was done.
        OSError: nobody is there.
    """
    connection.connect()
    over = threading.Event()

    def end(open_one: socket.socket) -> None:
        over.set()
        with contextlib.suppress(OSError):  # it is closed already
            open_one.shutdown(socket.SHUT_RDWR)

    alarm = threading.Timer(seconds, end, [connection.sock])
    alarm.daemon = True
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()
    # What came until then may look like a whole answer.
    if over.is_set():
        raise TimeoutError(f"no whole answer within {seconds:.0f} s")
