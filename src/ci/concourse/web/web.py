# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Concourse's web on this machine: its user, keys, settings and service."""

import collections.abc
import hashlib
import pathlib
import secrets
import typing

from ci.concourse import release, service
from ci.concourse import rsa_keys as keys
from ci.concourse.plan.model import WebPlan
from ci.concourse.restart import lossless as restart
from ci.concourse.web import files as web_files
from ci.concourse.web import local_postgresql
from ci.concourse.web.files import AUTHORIZED
from ci.concourse.web.health import ENVIRONMENT, LOST, healthy, listens, unreachable_database
from ci.concourse.web.local_postgresql import LocalDatabase
from ci.concourse.worker import worker
from machine import files, templates, users
from machine import polling as waiting
from machine import systemd as services
from relations.model import WebSecrets

SERVICE: typing.Final = "concourse-web.service"

ADMIN: typing.Final = web_files.ADMIN

# Which process has read which authorized keys.
_READ: typing.Final = pathlib.Path("/run/gpu-ci/web-authorized-keys")
_START: typing.Final = 60.0  # seconds; about 3, the first time longer: it makes its tables


def public_key(shared: WebSecrets) -> str:
    """The public half of the TSA's host key, as a line of OpenSSH."""
    return keys.public_key_line(shared.tsa_host_key)


def next_public_key(shared: WebSecrets) -> str:
    """The same of the host key that comes next; empty where none does."""
    pem = shared.tsa_next_host_key
    return keys.public_key_line(pem) if pem else ""


def apply(
    plan: WebPlan, database: LocalDatabase, progress: collections.abc.Callable[[str], None]
) -> bool:
    """Have web run as planned; it is restarted only if something that it reads changed.

    New worker keys are reloaded without a restart.

    Args:
        plan: how it is to run.
        database: web's database on this machine, which it uses if the plan has no other one.
        progress: told what takes long.

    Returns:
        Whether anything had to be changed.

    Raises:
        ci.concourse.web.postgresql_server.DatabaseError: if the database on this machine can't be
            used.
        machine.process.CommandError: if systemd can't start it.
    """
    changed = users.ensure_user(service.USER, pathlib.Path("/nonexistent"))
    own = plan.database is None
    own_files = web_files.Files()
    changed |= database.ensure(progress) if own else database.note_unused()
    read_once, wrote = own_files.write(plan)
    changed |= wrote
    content = templates.render(
        service.TEMPLATES,
        SERVICE,
        command=f"{release.CURRENT}/bin/concourse web",
        environment=ENVIRONMENT,
        low_port=any(
            0 < port < 1024 for port in (plan.port, plan.open_port, plan.wanted.metrics_port)
        ),
    )
    changed |= services.ensure_unit(SERVICE, content)
    current = str(release.CURRENT.resolve())
    revision, wrote = service.ensure_settings(
        ENVIRONMENT, "web.env", own_files.settings(plan), content, current, *read_once
    )
    changed |= wrote
    if service.runs_with(SERVICE, revision):
        return _reload_keys() or changed
    progress("Starting Concourse's web")
    restart.beside(worker.SERVICE, worker.VOLUMES, _restart, progress)
    _note_read_keys()
    return True


def authorize(worker_keys: collections.abc.Iterable[str]) -> bool:
    """Have web, where it is on this machine, let in the workers with these keys and no others.

    Returns:
        Whether it did not do so already.

    Raises:
        OSError: the keys can't be written; those that are no others' were taken away all the same.
        machine.process.CommandError: if systemd can't reload it.
    """
    if not AUTHORIZED.exists():
        return False
    content = "".join(f"{key}\n" for key in worker_keys)
    try:
        changed = files.ensure_file(AUTHORIZED, content, mode=0o600, owner=service.USER)
    except OSError:
        # On a full disk no key can be added, but one that is revoked goes all the same.
        had = (files.read_text(AUTHORIZED) or "").splitlines(keepends=True)
        kept = [line for line in had if line in content.splitlines(keepends=True)]
        if kept != had:
            files.shorten(AUTHORIZED, "".join(kept))
            _reload_keys()
        raise
    return (_reload_keys() if services.main_pid(SERVICE) else False) or changed


def authorized() -> frozenset[str]:
    """The keys of workers that web lets in, a line each; none while it may not have read them."""
    if services.main_pid(SERVICE) and files.read_text(_READ) != _read_keys():
        return frozenset()
    return frozenset((files.read_text(AUTHORIZED) or "").splitlines())


def new_secrets(
    new_key: collections.abc.Callable[[], str] = keys.generate_private_key,
) -> WebSecrets:
    """Return new keys and a new admin password.

    Args:
        new_key: makes a private key, in PEM.
    """
    return WebSecrets(
        # Without the dash that token_urlsafe may begin with: fly would take it for an option.
        admin_password=secrets.token_hex(24),
        tsa_host_key=new_key(),
        session_signing_key=new_key(),
    )


def url(environment: pathlib.Path = ENVIRONMENT) -> str | None:
    """Return the external URL of the web with these settings; None without web."""
    return service.setting(environment, "CONCOURSE_EXTERNAL_URL")


def metrics_port(environment: pathlib.Path = ENVIRONMENT) -> int | None:
    """Where on 127.0.0.1 the web with these settings serves metrics; None: nowhere."""
    port = service.setting(environment, "CONCOURSE_PROMETHEUS_BIND_PORT")
    return int(port) if port else None


def peer_address() -> str:
    """Return this unit's address for other web units; empty before the first start."""
    return service.setting(ENVIRONMENT, "CONCOURSE_PEER_ADDRESS") or ""


def is_set_up() -> bool:
    """Whether a web was set up here, running or not."""
    return ENVIRONMENT.exists()


def database_settings() -> dict[str, str]:
    """How the web that was set up here finds and reads its database, by Concourse's names."""
    names = "CONCOURSE_POSTGRES_", "CONCOURSE_ENCRYPTION_KEY", "PGTARGETSESSIONATTRS"
    return service.settings(ENVIRONMENT, *names)


def uses_local_database() -> bool:
    """Whether the web that was set up here keeps its data in PostgreSQL on this machine."""
    return service.setting(ENVIRONMENT, "CONCOURSE_POSTGRES_SOCKET") is not None


def remove() -> bool:
    """Remove web, its keys and its user. Return True if any was there.

    A database of its own on this machine is kept, for a web that comes back: see
    `ci.concourse.web.local_postgresql`.
    """
    removed = services.remove_unit(SERVICE)
    removed |= local_postgresql.HERE.note_unused()
    removed |= web_files.Files().remove()
    for path in (ENVIRONMENT, _READ, LOST):
        removed |= files.ensure_absent(path)
    removed |= files.remove_if_empty(_READ.parent)
    removed |= users.ensure_no_user(service.USER)
    if service.KEYS.is_dir():  # the worker's are still in it
        removed |= service.ensure_keys_folder()
    return service.remove_empty_folders() or removed


def _reload_keys() -> bool:
    if files.read_text(_READ) == _read_keys():
        return False
    if listens():
        services.signal(SERVICE, "SIGHUP")
    else:
        # A SIGHUP that comes too early would end it; it waits for one before it takes connections
        # (95872ce1a cmd/concourse/web.go, tsa/tsacmd/command.go).
        _restart()
    _note_read_keys()
    return True


def _restart(_worker_pid: int = 0) -> None:
    services.ensure_running(SERVICE, restart=True)
    _wait()


def _wait() -> None:
    """Wait until web answers. Without its database it does not, and tries again by itself."""
    waiting.until(lambda: healthy() or unreachable_database(), _START)


def _note_read_keys() -> None:
    files.ensure_directory(_READ.parent)
    files.ensure_file(_READ, _read_keys(), mode=0o600)


def _read_keys() -> str:
    """Which process there is, and which keys it is to know."""
    authorized = (files.read_text(AUTHORIZED) or "").encode()
    return f"{services.main_pid(SERVICE)} {hashlib.sha256(authorized).hexdigest()}"
