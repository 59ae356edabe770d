# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The API of the web on this machine, asked as its admin.

The password is read where web itself has it; it and the token are in no argument, log or file of
ours. While web is away any user of the machine can listen on its port: nothing is sent before the
connection was seen to be accepted by a process of web's service. Programs that run without
packages use this too: standard library only.
"""

import base64
import collections.abc
import http.client
import pathlib
import re
import socket
import time
import typing
import urllib.parse

from ci.concourse.api import build_info as handles
from machine import http_deadline as deadline
from machine import systemd_escaping as escaping
from machine import tcp_connections as sockets

_ADDRESS: typing.Final = "127.0.0.1"
_PATIENCE: typing.Final = 5.0  # for one answer
_LARGEST: typing.Final = 1 << 22  # of an answer, in bytes; a worker takes some 3 KiB of a list
_MOST_REQUESTS: typing.Final = 500
_SERVICE: typing.Final = "concourse-web.service"
_LOOK: typing.Final = 0.002  # seconds between two looks at whether a connection was accepted


class WebError(Exception):
    """Web can't be asked, or gives no answer; the text says why, without any secret."""


def is_webs(inode: int) -> bool:
    """Return whether web's service has this socket.

    Raises:
        OSError: that can't be looked at.
    """
    return sockets.is_open_in(_SERVICE, inode)


class Api:
    """Web's API on this machine, asked as its admin."""

    def __init__(
        self,
        settings: pathlib.Path,
        seconds: float,
        proof: collections.abc.Callable[[int], bool] = is_webs,
        patience: float = _PATIENCE,
    ) -> None:
        """Log in.

        Args:
            settings: those of web, with its port, its admin and the password.
            seconds: how long all questions together may take.
            proof: given the inode of a socket, whether it is web's.
            patience: how many seconds one answer may take.

        Raises:
            WebError: web can't be asked, or gives no token.
            gpu_agent.reporting.joblog.build_names.AnswerError: web answers something else.
        """
        self._port, user, password = _access(settings)
        self._left, self._seconds, self._proof = _MOST_REQUESTS, seconds, proof
        self._longest = patience
        self._end = time.monotonic() + seconds
        form = {
            "grant_type": "password", "username": user, "password": password,
            "scope": handles.SCOPE,
        }  # fmt: skip
        client = base64.b64encode(":".join(handles.CLIENT).encode()).decode()
        headers = {
            "Authorization": f"Basic {client}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        body = urllib.parse.urlencode(form)
        answer = self._ask("POST", handles.LOGIN_PATH, headers, body)
        if answer is None:
            raise WebError("web gives no token for its admin's password")
        self._headers = {"Authorization": f"Bearer {handles.token(answer)}"}

    def get(self, path: str) -> bytes | None:
        """What web has there; None where it has no such thing.

        Raises:
            WebError: it gives no answer.
        """
        return self._ask("GET", path, self._headers, None)

    def put(self, path: str) -> bool:
        """Give web a command that has no content. Return False where web has no such thing.

        Raises:
            WebError: web refuses it, or gives no answer.
        """
        return self._ask("PUT", path, self._headers, None) is not None

    def _ask(
        self,
        method: str,
        path: str,
        headers: collections.abc.Mapping[str, str],
        body: str | None,
    ) -> bytes | None:
        """The answer; None where web has no such thing."""
        self._left -= 1
        if self._left < 0:
            raise WebError("it takes too many questions")
        connection = http.client.HTTPConnection(_ADDRESS, self._port, timeout=self._patience())
        try:
            with deadline.within(connection, self._end - time.monotonic()):
                self._prove(connection.sock)
                connection.request(method, path, body, dict(headers))
                with connection.getresponse() as response:
                    if response.status in (http.client.NOT_FOUND, http.client.FORBIDDEN):
                        return None
                    if response.status != http.client.OK:
                        raise WebError(f"web answers {response.status}")
                    return self._read(response)
        except (OSError, http.client.HTTPException) as error:
            raise WebError(f"web does not answer: {type(error).__name__}") from error
        finally:
            connection.close()

    def _prove(self, connection: socket.socket) -> None:
        """Wait until web has accepted a connection; raise if another program has.

        Raises:
            WebError: the connection is another program's, no process takes it for as long as an
                answer may take, or the time of all questions is over.
            OSError: that can't be looked at.
        """
        end = time.monotonic() + self._longest
        while not (inode := sockets.other_end(connection)):
            # After many questions their time is over within this one, which is not to blame.
            self._patience()
            if time.monotonic() >= end:
                raise WebError("no process takes a connection to web's port")
            time.sleep(_LOOK)
        if not self._proof(inode):
            raise WebError(f"port {self._port} of {_ADDRESS} is another program's, not web's")

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        found = b""
        while more := response.read1(1 << 16):
            self._patience()
            found += more
            if len(found) > _LARGEST:
                raise WebError(f"an answer of web is larger than {_LARGEST} bytes")
        return found

    def _patience(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise WebError(f"web takes longer than {self._seconds:g} s")
        return min(left, self._longest)


def _access(settings: pathlib.Path) -> tuple[int, str, str]:
    """Web's port, its admin and the password."""
    try:
        text = settings.read_text()
    except OSError as error:
        raise WebError(f"{settings} can't be read: {error.strerror}") from error
    # The admin is the first of the users, and neither it nor its password has a comma.
    admin = _setting(text, "CONCOURSE_ADD_LOCAL_USER").partition(",")[0]
    user, colon, password = admin.partition(":")
    port = _setting(text, "CONCOURSE_BIND_PORT")
    if not colon or not port.isdecimal():
        raise WebError(f"{settings} names no admin or no port")
    return int(port), user, password


def _setting(text: str, name: str) -> str:
    found = re.search(f"^{name}=(.*)$", text, re.MULTILINE)
    return escaping.plain_value(found.group(1)) if found else ""
