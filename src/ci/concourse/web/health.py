# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Checks whether this unit's web answers and reaches its database."""

import collections.abc
import os
import pathlib
import socket
import time
import typing

from ci.concourse import service
from ci.concourse.web import database_tls
from machine import exhaustion as scarcity
from machine import files
from machine import http_deadline as deadline
from machine import systemd as services
from options import certificates

ENVIRONMENT: typing.Final = service.CONFIG / "web.env"
CERTIFICATE: typing.Final = service.KEYS / "tls_certificate.pem"
# There since a hook has seen that web has no database.
LOST: typing.Final = pathlib.Path("/run/gpu-ci/web-lost-database")

_SILENT: typing.Final = "no answer"
_PATIENCE: typing.Final = 2.0  # seconds; a database that a CI can work with answers in 0.1
_FOR_ALL: typing.Final = 10.0  # seconds; a relation may name any number of hosts


def healthy(environment: pathlib.Path = ENVIRONMENT) -> bool:
    """Whether the web with these settings answers, within a second."""
    port = _port(environment)
    return port is not None and service.answers(port, "/api/v1/info")


def listens() -> bool:
    """Whether web has come as far in its start as to take connections, however busy it is by now.

    Raises:
        OSError: the machine is out of something, so that it can't be asked.
    """
    port = _port(ENVIRONMENT)
    return port is not None and _refusal(None, ("127.0.0.1", port)) in ("", _SILENT)


def certificate_end(certificate: pathlib.Path = CERTIFICATE) -> tuple[str, bool]:
    """The last day of web's certificate if that is near, and whether it is over; else empty.

    Near is what is left of its time when it should long have been renewed: a tenth of it, and at
    most 14 days.
    """
    try:
        begin, end, day = certificates.lifetime(files.read_text(certificate) or "")
    except (
        ValueError
    ):  # no certificate, or a damaged one, which is replaced with web's other files
        return "", False
    left = end - time.time()
    near = left < min(14 * 86400.0, (end - begin) / 10)
    return (day, left < 0) if near else ("", False)


def lost_database(
    environment: pathlib.Path = ENVIRONMENT,
    note: pathlib.Path = LOST,
    forget: collections.abc.Callable[[str], object] = services.forget_failure,
) -> str:
    """Return the address of a database that web cannot reach, and why; empty if none is known.

    Web ends when it starts without its database. When the database is back and web answers, those
    ends are forgotten, so that status does not report that web keeps failing.

    Args:
        environment: web's settings.
        note: is there while the database is lost.
        forget: has systemd forget that a service has failed.

    Raises:
        OSError: the machine is short of a resource.
    """
    found = unreachable_database(environment) or _unusable_database(environment)
    if found:
        files.ensure_directory(note.parent)
        files.ensure_file(note, "")
    elif note.exists() and healthy(environment):
        forget("concourse-web.service")
        files.ensure_absent(note)
    return found


def unreachable_database(environment: pathlib.Path = ENVIRONMENT) -> str:
    """Return the database that web cannot connect to: it does not listen, or is not trusted."""
    folder = service.setting(environment, "CONCOURSE_POSTGRES_SOCKET")
    if folder is not None:
        path = pathlib.Path(folder, ".s.PGSQL.5432")
        why = _refusal(socket.AF_UNIX, str(path))
        return f"at {folder} ({why})" if why else ""
    hosts = service.setting(environment, "CONCOURSE_POSTGRES_HOST")
    port = service.setting(environment, "CONCOURSE_POSTGRES_PORT") or ""
    told, end = list[str](), time.monotonic() + _FOR_ALL
    for host in (hosts or "").split(",") if port.isdigit() else ():
        if time.monotonic() > end:
            told.append("others, not tried")
            break
        why = _refusal(None, (host, int(port))) or _distrust(environment, host, int(port))
        if not why:
            return ""
        told.append(f"{f'[{host}]' if ':' in host else host}:{port} ({why})")
    return " and ".join(told)


def _distrust(environment: pathlib.Path, host: str, port: int) -> str:
    """Return why a web that does not answer refuses a database that does; else empty."""
    if healthy(environment):
        return ""
    mode = service.setting(environment, "CONCOURSE_POSTGRES_SSLMODE")
    ca = service.setting(environment, "CONCOURSE_POSTGRES_CA_CERT")
    return database_tls.refusal(host, port, mode or "disable", ca or "", _PATIENCE)


def _unusable_database(environment: pathlib.Path) -> str:
    """Return the fault of the database that web reports itself, as 8.3 and later do."""
    port = _port(environment)
    told = service.asked(port, "/api/v1/health", _PATIENCE + 1) if port is not None else None
    fields = _object(_object(told).get("database"))
    if fields.get("status") != "unhealthy":
        return ""
    host = service.setting(environment, "CONCOURSE_POSTGRES_HOST")
    where = host or service.setting(environment, "CONCOURSE_POSTGRES_SOCKET") or ""
    return f"{where} (web says: {str(fields.get('error', ''))[:60]})"


def _object(told: object) -> dict[str, object]:
    """An object of JSON; empty where it is none."""
    return typing.cast(dict[str, object], told) if isinstance(told, dict) else {}


def _port(environment: pathlib.Path) -> int | None:
    port = service.setting(environment, "CONCOURSE_BIND_PORT")
    return int(port) if port is not None else None


def _refusal(family: int | None, address: typing.Any) -> str:
    """Return why no connection to an address is possible; empty if it is."""
    try:
        if family is None:
            with deadline.sockets(_PATIENCE) as connect:
                connect(address, _PATIENCE, None).close()
        else:
            with socket.socket(family) as one:
                one.settimeout(_PATIENCE)
                one.connect(address)
    except OSError as error:
        if scarcity.is_told_by(error):
            raise
        number = error.errno
        return _SILENT if isinstance(error, TimeoutError) else _words(number)
    return ""


def _words(number: int | None) -> str:
    # A resolver's errors have numbers of their own, below 0.
    return os.strerror(number).lower() if number and number > 0 else "its name is not known"
