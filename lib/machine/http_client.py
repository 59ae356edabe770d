# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Open addresses through the Juju model's proxies, with a limit of the total time."""

import collections.abc
import dataclasses
import http.client
import typing
import urllib.error
import urllib.parse
import urllib.request

from machine import http_deadline as deadline
from machine import process

Open = collections.abc.Callable[[urllib.request.Request, float], http.client.HTTPResponse]
"""Sends a request; an answer may pause for so many seconds."""


class _Handler(urllib.request.HTTPHandler):
    """Opens HTTP and HTTPS addresses by connections with a time limit."""

    def __init__(self, connect: deadline.Connect) -> None:
        super().__init__()
        self._connect = connect

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Return the server's response."""
        return self._answer(http.client.HTTPConnection, req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Return the server's response; its certificate is checked."""
        return self._answer(http.client.HTTPSConnection, req)

    def _answer(
        self, kind: type[http.client.HTTPConnection], req: urllib.request.Request
    ) -> http.client.HTTPResponse:
        def connection(host: str, **more: typing.Any) -> http.client.HTTPConnection:
            return deadline.ending(kind(host, **more), self._connect)

        return self.do_open(connection, req)


def opener(
    url: str, connect: deadline.Connect, more: tuple[urllib.request.BaseHandler, ...] = ()
) -> Open:
    """Return what opens this address.

    Args:
        url: the address, which the model's no_proxy may name.
        connect: makes the connections.
        more: further handlers. Without any, no redirect is followed and every status is an answer.
    """
    found = process.proxies()
    host = urllib.parse.urlsplit(url).hostname or ""
    direct = [name.strip().lstrip(".") for name in found.pop("no_proxy", "").split(",")]
    if any(name in ("*", host) or (name and host.endswith(f".{name}")) for name in direct):
        found = {}
    schemes = {name.removesuffix("_proxy"): found[name] for name in found}
    director = urllib.request.OpenerDirector()
    # Not build_opener, which would follow redirects to ftp.
    for handler in (
        *(urllib.request.ProxyHandler(schemes), _Handler(connect)),
        *(*more, urllib.request.UnknownHandler()),
    ):
        director.add_handler(handler)
    return lambda request, seconds: director.open(request, timeout=seconds)


@dataclasses.dataclass(frozen=True)
class Response:
    """An answer to `exchange`.

    Attributes:
        status: the code, such as 200.
        headers: by their names in lower case.
        body: its content.
    """

    status: int
    headers: collections.abc.Mapping[str, str]
    body: bytes


class NoResponseError(Exception):
    """The answer is missing or incomplete. The text says why."""


class TooLargeError(NoResponseError):
    """The answer is larger than it may be."""


def exchange(
    method: str,
    url: str,
    headers: collections.abc.Mapping[str, str],
    data: bytes | None,
    *,
    seconds: float,
    largest: int,
) -> Response:
    """Send a request and return the answer, whatever its status. No redirect is followed.

    Args:
        method: such as `GET`.
        url: http or https.
        headers: of the request.
        data: the body; None: none.
        seconds: how long all of it may take.
        largest: the most bytes of the answer's body.

    Raises:
        NoResponseError: the answer is missing or incomplete; TooLargeError: it is too large.
    """
    request = urllib.request.Request(url, data, dict(headers), method=method)  # noqa: S310
    try:
        with (
            deadline.sockets(seconds) as connect,
            opener(url, connect)(request, seconds) as response,
        ):
            body = response.read(largest + 1)
            found = {name.lower(): value for name, value in response.headers.items()}
            status, missing = response.status, response.length
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise NoResponseError(str(reason) or type(reason).__name__) from error
    if len(body) > largest:
        raise TooLargeError(f"the answer is larger than {largest} bytes")
    if missing:
        raise NoResponseError(f"the connection broke, {missing} bytes of the answer are missing")
    return Response(status, found, body)
