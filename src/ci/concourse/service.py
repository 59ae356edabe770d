# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the web's and the worker's service have in common."""

import hashlib
import http.client
import json
import pathlib
import re
import typing

from ci.concourse.upstream import HEALTH_PORT, WORKER_PORTS
from machine import exhaustion as scarcity
from machine import files, templates, users
from machine import http_deadline as deadline
from machine import systemd as services
from machine import systemd_escaping as escaping
from machine import tcp_connections as sockets

TEMPLATES: typing.Final = pathlib.Path(__file__).resolve().parents[3] / "templates"
CONFIG: typing.Final = pathlib.Path("/etc/concourse")
KEYS: typing.Final = CONFIG / "keys"
USER: typing.Final = "concourse"

# More starts than this within ten minutes are a failure: the first may be the charm's own.
_MANY: typing.Final = 3
_RECENTLY: typing.Final = 600

_REVISION: typing.Final = "GPUCI_REVISION"
_LONGEST: typing.Final = 1 << 20  # bytes of an answer; web's of a hundred workers has 20,000


def ensure_keys_folder(folder: pathlib.Path = KEYS) -> bool:
    """Have the folder of the keys. The web's user, where there is one, must get at its own."""
    owner = USER if users.exists(USER) else None
    return files.ensure_directory(folder, mode=0o700, owner=owner)


def remove_empty_folders() -> bool:
    """Remove the folders of settings and keys if nothing is left in them."""
    removed = files.remove_if_empty(KEYS)
    return files.remove_if_empty(CONFIG) or removed


def revision(*parts: str) -> str:
    """A short name for everything that a service reads when it starts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part.encode())
    return digest.hexdigest()[:16]


def ensure_settings(
    path: pathlib.Path, template: str, values: dict[str, typing.Any], *others: str
) -> tuple[str, bool]:
    """Write the settings of a service, with the revision of all that it reads.

    This comes after everything else is written: who starts with this revision has met it all.

    Args:
        path: the environment file, which only root may read.
        template: its template, which takes `revision`, `quoted` and `values`.
        values: what the template shows.
        others: what the service reads besides.

    Returns:
        The revision, and whether the file had to be changed.
    """

    def render(revision: str) -> str:
        return templates.render(
            TEMPLATES, template, quoted=escaping.environment_value, revision=revision, **values
        )

    wanted = revision(render(""), *others)
    return wanted, files.ensure_file(path, render(wanted), mode=0o600)


def setting(path: pathlib.Path, name: str) -> str | None:
    """What the settings of a service say of a variable; None without it or without settings."""
    found = re.search(f"^{name}=(.*)$", files.read_text(path) or "", re.MULTILINE)
    return escaping.plain_value(found.group(1)) if found else None


def settings(path: pathlib.Path, *beginnings: str) -> dict[str, str]:
    """Those settings of a service whose names begin so; nothing without settings."""
    found = re.findall("^([A-Z0-9_]+)=(.*)$", files.read_text(path) or "", re.MULTILINE)
    return {
        name: escaping.plain_value(text) for name, text in found if name.startswith(beginnings)
    }


def answers(port: int, path: str) -> bool:
    """Whether a service on this machine's loopback answers 200 to a GET, within a second.

    Raises:
        OSError: the machine is out of something, so that it can't be asked.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        with deadline.within(connection, 1):
            connection.request("GET", path)
            return connection.getresponse().status == http.client.OK
    except http.client.HTTPException:
        return False
    except OSError as error:
        if scarcity.is_told_by(error):
            raise
        return False
    finally:
        connection.close()


def asked(port: int, path: str, patience: float) -> object:
    """What a service on this machine's loopback answers to a GET in JSON, whatever its status.

    Args:
        port: where it listens.
        path: the path of the request.
        patience: how many seconds it may take.

    Returns:
        None where it does not answer so.

    Raises:
        OSError: the machine is out of something, so that it can't be asked.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience)
    try:
        with deadline.within(connection, patience):
            connection.request("GET", path)
            return json.loads(connection.getresponse().read(_LONGEST))
    except (http.client.HTTPException, ValueError):
        return None
    except OSError as error:
        if scarcity.is_told_by(error):
            raise
        return None
    finally:
        connection.close()


def failing() -> tuple[tuple[str, int], ...]:
    """Which of `web` and `worker` keeps ending by itself, and how often it was started lately."""
    found: list[tuple[str, int]] = []
    for name in ("web", "worker"):
        starts = services.restarts(f"concourse-{name}.service", _RECENTLY)
        if starts >= _MANY:
            found.append((name, starts))
    return tuple(found)


def taken() -> tuple[tuple[str, int], ...]:
    """Return which of `web` and `worker` lacks a port since another program has it, and the port.

    Raises:
        OSError: that can't be looked at.
    """
    names = ("CONCOURSE_BIND_PORT", "CONCOURSE_PROMETHEUS_BIND_PORT")
    ports = (setting(CONFIG / "web.env", name) or "" for name in names)
    wanted = [("web", int(port)) for port in ports if port.isdecimal()]
    if (CONFIG / "worker.env").exists():
        wanted += [("worker", port) for port in (*WORKER_PORTS, HEALTH_PORT)]
    return tuple(
        (name, port)
        for name, port in wanted
        if sockets.is_taken(port, f"concourse-{name}.service")
    )


def runs_with(service: str, wanted: str) -> bool:
    """Whether a service's process was started with this revision in its environment."""
    return services.started_with(service, _REVISION, wanted)
