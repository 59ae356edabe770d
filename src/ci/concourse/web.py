# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Concourse's web on this machine: its user, keys, settings and service."""

import collections.abc
import hashlib
import pathlib
import secrets
import typing

from ci.concourse import keys, local_postgresql, release, service
from ci.concourse.upstream import TSA_PORT, WEB_REQUEST_TIMEOUT
from machine import files, services, templates, users, waiting
from plan.parts import WebPlan
from plan.state import Database, WebSecrets

SERVICE: typing.Final = "concourse-web.service"

ADMIN: typing.Final = "admin"

_ENVIRONMENT: typing.Final = service.CONFIG / "web.env"
_HOST_KEY: typing.Final = service.KEYS / "tsa_host_key"
_SIGNING_KEY: typing.Final = service.KEYS / "session_signing_key"
_AUTHORIZED: typing.Final = service.KEYS / "authorized_worker_keys"
_CA: typing.Final = service.KEYS / "postgresql_ca.pem"
# Which process has read which authorized keys.
_READ: typing.Final = pathlib.Path("/run/gpu-ci/web-authorized-keys")
# For workers that name no limit of their own: no limit. Without a number here, those that name
# one are not held to it either (concourse 95872ce1a atc/worker/placement.go:337-350).
_MAX_ACTIVE_TASKS: typing.Final = 1000
_START: typing.Final = 60.0  # seconds; about 3, the first time longer: it makes its tables


def public_key(shared: WebSecrets) -> str:
    """The public half of the TSA's host key, as a line of OpenSSH."""
    return keys.public_key_line(shared.tsa_host_key)


def apply(plan: WebPlan, progress: collections.abc.Callable[[str], None]) -> bool:
    """Have web run as planned; it is restarted only if something that it reads changed.

    New worker keys are reloaded without a restart.

    Args:
        plan: how it is to run.
        progress: told what takes long.

    Returns:
        Whether anything had to be changed.

    Raises:
        ci.concourse.local_postgresql.DatabaseError: if the database on this machine can't be used.
        machine.process.CommandError: if systemd can't start it.
    """
    changed = users.ensure_user(service.USER, pathlib.Path("/nonexistent"))
    if plan.database is None:
        changed |= local_postgresql.ensure(progress)
    changed |= _write_keys(plan)
    content = templates.render(
        SERVICE,
        command=f"{release.CURRENT}/bin/concourse web",
        environment=_ENVIRONMENT,
        low_port=plan.port < 1024,
    )
    changed |= services.ensure_unit(SERVICE, content)
    current = str(release.CURRENT.resolve())
    revision, wrote = service.ensure_settings(
        _ENVIRONMENT, "web.env", _settings(plan), content, current
    )
    changed |= wrote
    if service.runs_with(SERVICE, revision):
        return _reload_keys() or changed
    progress("Starting Concourse's web")
    services.ensure_running(SERVICE, restart=True)
    waiting.until(healthy, _START)
    _note_read_keys()
    return True


def authorize(worker_keys: collections.abc.Iterable[str]) -> bool:
    """Have web, where it is on this machine, let in the workers with these keys and no others.

    Returns:
        Whether it did not do so already.

    Raises:
        machine.process.CommandError: if systemd can't reload it.
    """
    if not _AUTHORIZED.exists():
        return False
    content = "".join(f"{key}\n" for key in worker_keys)
    changed = files.ensure_file(_AUTHORIZED, content, mode=0o600, owner=service.USER)
    return (_reload_keys() if services.main_pid(SERVICE) else False) or changed


def new_secrets() -> WebSecrets:
    """Keys and an admin password that nobody has seen."""
    return WebSecrets(
        # Without the dash that token_urlsafe may begin with: fly would take it for an option.
        admin_password=secrets.token_hex(24),
        tsa_host_key=keys.generate_private_key(),
        session_signing_key=keys.generate_private_key(),
    )


def healthy() -> bool:
    """Whether web answers, within a second."""
    port = service.setting(_ENVIRONMENT, "CONCOURSE_BIND_PORT")
    return port is not None and service.answers(int(port), "/api/v1/info")


def url() -> str | None:
    """Where the web that this unit has been given tells people to find it; None without web."""
    return service.setting(_ENVIRONMENT, "CONCOURSE_EXTERNAL_URL")


def peer_address() -> str:
    """The address that other web units are told of this one; empty before its first start."""
    return service.setting(_ENVIRONMENT, "CONCOURSE_PEER_ADDRESS") or ""


def is_set_up() -> bool:
    """Whether a web was set up here, running or not."""
    return _ENVIRONMENT.exists()


def uses_local_database() -> bool:
    """Whether the web that was set up here keeps its data in PostgreSQL on this machine."""
    return service.setting(_ENVIRONMENT, "CONCOURSE_POSTGRES_SOCKET") is not None


def remove() -> bool:
    """Remove web, its keys and its user. Return True if any was there.

    A database of its own on this machine is kept, for a web that comes back: see
    `ci.concourse.local_postgresql`.
    """
    removed = services.remove_unit(SERVICE)
    for path in (_ENVIRONMENT, _HOST_KEY, _SIGNING_KEY, _AUTHORIZED, _CA, _READ):
        removed |= files.ensure_absent(path)
    removed |= files.remove_if_empty(_READ.parent)
    removed |= users.ensure_no_user(service.USER)
    if service.KEYS.is_dir():  # the worker's are still in it
        removed |= service.ensure_keys_folder()
    return service.remove_empty_folders() or removed


def _write_keys(plan: WebPlan) -> bool:
    service.ensure_keys_folder()
    authorized = "".join(f"{key}\n" for key in plan.worker_keys)
    contents = {
        _HOST_KEY: plan.secrets.tsa_host_key,
        _SIGNING_KEY: plan.secrets.session_signing_key,
        _AUTHORIZED: authorized,
    }
    ca = plan.database.ca if plan.database else ""
    changed = False if ca else files.ensure_absent(_CA)
    if ca:
        contents[_CA] = ca
    for path, content in contents.items():
        changed |= files.ensure_file(path, content, mode=0o600, owner=service.USER)
    return changed


def _settings(plan: WebPlan) -> dict[str, typing.Any]:
    return {
        "address": plan.address,
        "port": plan.port,
        "external_url": plan.external_url,
        "admin": ADMIN,
        "admin_password": plan.secrets.admin_password,
        "session_signing_key": str(_SIGNING_KEY),
        "tsa_host_key": str(_HOST_KEY),
        "authorized_keys": str(_AUTHORIZED),
        "tsa_port": TSA_PORT,
        "request_timeout": WEB_REQUEST_TIMEOUT,
        "queues_tasks": plan.queues_tasks,
        "max_active_tasks": _MAX_ACTIVE_TASKS,
        "database": plan.database,
        "sslmode": _sslmode(plan.database),
        "ca": str(_CA),
        "socket": str(local_postgresql.SOCKET_FOLDER),
    }


def _sslmode(database: Database | None) -> str:
    if database is None or not database.tls:
        return "disable"
    # Not verify-full: the address in the relation need not be a name in the certificate.
    return "verify-ca" if database.ca else "require"


def _reload_keys() -> bool:
    if files.read_text(_READ) == _read_keys():
        return False
    if healthy():
        services.signal(SERVICE, "SIGHUP")
    else:
        # A SIGHUP that comes before web listens for it would end it.
        services.ensure_running(SERVICE, restart=True)
        waiting.until(healthy, _START)
    _note_read_keys()
    return True


def _note_read_keys() -> None:
    files.ensure_directory(_READ.parent)
    files.ensure_file(_READ, _read_keys(), mode=0o600)


def _read_keys() -> str:
    """Which process there is, and which keys it is to know."""
    authorized = (files.read_text(_AUTHORIZED) or "").encode()
    return f"{services.main_pid(SERVICE)} {hashlib.sha256(authorized).hexdigest()}"
