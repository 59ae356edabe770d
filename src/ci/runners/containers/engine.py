# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The machine's container engine, by Docker's API, which podman speaks too.

Paths and fields: Docker Engine API 1.41 (Docker 20.10) and later. No path names a version: each
release serves its own then, and new ones refuse old versions (Docker 29: below 1.44).
"""

import http.client
import json
import pathlib
import socket
import time
import typing
import urllib.parse

LABEL: typing.Final = "gpu-ci.runner"
"""The label of what a job has made; its value is the name of the job's runner."""

SOCKETS: typing.Final = {
    "docker": pathlib.Path("/run/docker.sock"),
    "podman": pathlib.Path("/run/podman/podman.sock"),
}
"""Where each engine listens, by its name in the option container-engines."""

# In seconds: for one answer, and for a call of `clear`. To kill a container may take 10.
_ANSWER: typing.Final = 12.0
_CLEAR: typing.Final = 5.0


class _Connection(http.client.HTTPConnection):
    """A connection with a socket of this machine."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_ANSWER)
        self._path = path

    def connect(self) -> None:
        """Connect.

        Raises:
            OSError: no engine listens.
        """
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def check(engine: str) -> str:
    """Return the path of an engine's socket.

    Raises:
        OSError: the engine does not listen there.
    """
    path = str(SOCKETS[engine])
    connection = _Connection(path)
    try:
        connection.connect()
    except OSError as error:
        unit = SOCKETS[engine].with_suffix(".socket").name
        remedy = f"install it, or sudo systemctl enable --now {unit}"
        raise OSError(
            f"{engine} does not listen at {path} ({error.strerror}): {remedy}"
        ) from error
    finally:
        connection.close()
    return path


def clear(listens: str, name: str) -> None:
    """Remove all containers, networks and volumes that the job of a runner has made.

    Args:
        listens: the path of the engine's socket.
        name: the runner's name.

    Raises:
        OSError: the engine does not answer or refuses, or there is more than can be removed in
            this time: then the next call goes on.
    """
    end = time.monotonic() + _CLEAR
    chosen = urllib.parse.urlencode({"filters": json.dumps({"label": [f"{LABEL}={name}"]})})
    for found, kind, key, how in (
        (_listed(listens, f"/containers/json?all=1&{chosen}"), "containers", "Id", "force=1&v=1"),
        (_listed(listens, f"/networks?{chosen}"), "networks", "Id", ""),
        (_volumes(listens, chosen), "volumes", "Name", "force=1"),
    ):
        for one in found:
            if time.monotonic() > end:
                raise TimeoutError(f"not all {kind} of the job could be removed yet")
            which = urllib.parse.quote(str(one[key]), safe="")
            _ask(listens, "DELETE", f"/{kind}/{which}?{how}", known=(200, 204, 404))


def _listed(listens: str, path: str) -> list[dict[str, object]]:
    return typing.cast("list[dict[str, object]]", _ask(listens, "GET", path))


def _volumes(listens: str, chosen: str) -> list[dict[str, object]]:
    found = typing.cast("dict[str, object]", _ask(listens, "GET", f"/volumes?{chosen}"))
    return typing.cast("list[dict[str, object]]", found["Volumes"] or [])


def _ask(listens: str, method: str, path: str, known: tuple[int, ...] = (200,)) -> object:
    """Return what the engine answers; None if that is nothing.

    Raises:
        OSError: it does not answer, or answers another status than the known ones.
    """
    connection = _Connection(listens)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status not in known:
            said = text.decode(errors="replace").strip()[:200]
            raise OSError(f"{method} {path.partition('?')[0]}: {answer.status} {said}")
        return json.loads(text) if text else None
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"{listens} does not answer as a container engine: {error}") from error
    finally:
        connection.close()
