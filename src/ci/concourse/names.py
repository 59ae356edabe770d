# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whose steps containers are, asked of the web on this machine: a program of its own.

`python3 -m ci.concourse.names <container>...` writes what it found to stdout (handles.as_json). It
reads the admin's password where web itself has it, and keeps it and the token to itself: neither
is in an argument, a log or a file of ours. Whoever runs it is root, and gives it a time limit.
"""

import base64
import collections.abc
import http.client
import pathlib
import re
import sys
import time
import typing
import urllib.parse

from ci.concourse import escaping, handles
from receipts.form import Names

SECONDS: typing.Final = 15.0
"""How long it may take, all in all."""

MOST: typing.Final = 32
"""Containers that it looks for at once."""

_ADDRESS: typing.Final = "127.0.0.1"
_PATIENCE: typing.Final = 5.0  # for one answer
_LARGEST: typing.Final = 1 << 20  # of an answer, in bytes
_MOST_REQUESTS: typing.Final = 500


class WebError(Exception):
    """Web can't be asked, or gives no answer; the text says why, without any secret."""


class Web:
    """Web's API on this machine, asked as its admin."""

    def __init__(self, port: int, user: str, password: str) -> None:
        self._port, self._left = port, _MOST_REQUESTS
        self._end = time.monotonic() + SECONDS
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

    def names(self, containers: collections.abc.Sequence[str]) -> dict[str, Names]:
        """Whose steps these containers are; those that web does not know are left out.

        Raises:
            WebError: web gives no answer.
            ci.concourse.handles.AnswerError: what it answers is no answer.
        """
        listed = self._get(handles.TEAMS_PATH)
        teams = [] if listed is None else list(handles.teams(listed))
        found: dict[str, Names] = {}
        for container in containers:
            for team in teams:
                answer = self._get(_path(team, container))
                names = None if answer is None else handles.names(answer, team, container)
                if names:
                    found[container] = names
                    # The next is likely to be of the same team.
                    teams.insert(0, teams.pop(teams.index(team)))
                    break
        return found

    def _get(self, path: str) -> bytes | None:
        return self._ask("GET", path, self._headers, None)

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
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            if response.status in (http.client.NOT_FOUND, http.client.FORBIDDEN):
                return None
            if response.status != http.client.OK:
                raise WebError(f"web answers {response.status}")
            return self._read(response)
        except (OSError, http.client.HTTPException) as error:
            raise WebError(f"web does not answer: {type(error).__name__}") from error
        finally:
            connection.close()

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
            raise WebError(f"web takes longer than {SECONDS:g} s")
        return min(left, _PATIENCE)


def main(
    arguments: collections.abc.Sequence[str], settings: pathlib.Path = handles.SETTINGS
) -> int:
    """The program; its exit status is 1 where nothing could be found out."""
    try:
        web = Web(*_access(settings))
        containers = [name for name in arguments if handles.is_handle(name)]
        sys.stdout.write(handles.as_json(web.names(containers[:MOST])) + "\n")
    except (WebError, handles.AnswerError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _access(settings: pathlib.Path) -> tuple[int, str, str]:
    """Web's port, its admin and the password."""
    try:
        text = settings.read_text()
    except OSError as error:
        raise WebError(f"{settings} can't be read: {error.strerror}") from error
    user, colon, password = _setting(text, "CONCOURSE_ADD_LOCAL_USER").partition(":")
    port = _setting(text, "CONCOURSE_BIND_PORT")
    if not colon or not port.isdecimal():
        raise WebError(f"{settings} names no admin or no port")
    return int(port), user, password


def _setting(text: str, name: str) -> str:
    found = re.search(f"^{name}=(.*)$", text, re.MULTILINE)
    return escaping.plain_value(found.group(1)) if found else ""


def _path(team: str, container: str) -> str:
    team, container = (urllib.parse.quote(word, safe="") for word in (team, container))
    return f"{handles.TEAMS_PATH}/{team}/containers/{container}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
