# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What Concourse's web reads when it starts: its settings, and the files that they name."""

import ipaddress
import pathlib
import typing

from ci.concourse import service
from ci.concourse.options import encryption, web_values
from ci.concourse.options import web as web_options
from ci.concourse.options import web_variables as variables
from ci.concourse.plan.model import WebPlan
from ci.concourse.upstream import TSA_PORT, WEB_REQUEST_TIMEOUT
from ci.concourse.web import local_postgresql
from ci.concourse.web import tls as web_tls
from ci.concourse.web.health import CERTIFICATE, ENVIRONMENT
from machine import files
from relations.model import Database

ADMIN: typing.Final = web_options.ADMIN
AUTHORIZED: typing.Final = service.KEYS / "authorized_worker_keys"

_TLS_KEY: typing.Final = service.KEYS / "tls_key.pem"
_HOST_KEY: typing.Final = service.KEYS / "tsa_host_key"
_SIGNING_KEY: typing.Final = service.KEYS / "session_signing_key"
_CA: typing.Final = service.KEYS / "postgresql_ca.pem"
# Files of settings of web-settings-secret begin so.
_GIVEN: typing.Final = "web-"
_FORMS: typing.Final = ("", "_HEX", "_BASE64")
# For workers that name no limit of their own: no limit. Without a number here, those that name
# one are not held to it either (concourse 95872ce1a atc/worker/placement.go:337-350).
_MAX_ACTIVE_TASKS: typing.Final = 1000


def write(plan: WebPlan) -> tuple[tuple[str, ...], bool]:
    """Have the files that web's settings name.

    Returns:
        What web reads of them at its start and never again, and whether any had to be changed.
    """
    service.ensure_keys_folder()
    contents = {
        _HOST_KEY: plan.secrets.tsa_host_key,
        _SIGNING_KEY: plan.secrets.session_signing_key,
        _CA: plan.database.ca if plan.database else "",
        CERTIFICATE: plan.tls.chain if plan.tls else "",
        _TLS_KEY: plan.tls.key if plan.tls else "",
    }
    changed = _ensure(AUTHORIZED, "".join(f"{key}\n" for key in plan.worker_keys))
    for name, value in plan.wanted.settings.variables:
        if name in variables.FILES:
            contents[_given(name)] = value
    if not plan.tls:
        web_tls.remove()
    for path in set(_all_given()) - set(contents):
        changed |= files.ensure_absent(path)
    for path, content in contents.items():
        changed |= _ensure(path, content) if content else files.ensure_absent(path)
    return tuple(contents.values()), changed


def remove() -> bool:
    """Remove them. Return True if any was there."""
    removed = web_tls.remove()
    for path in (_HOST_KEY, _SIGNING_KEY, AUTHORIZED, _CA, CERTIFICATE, _TLS_KEY, *_all_given()):
        removed |= files.ensure_absent(path)
    return removed


def settings(plan: WebPlan) -> dict[str, typing.Any]:
    """What templates/web.env shows."""
    database = plan.database
    users = ((ADMIN, plan.secrets.admin_password), *plan.wanted.users)
    return {
        "address": plan.address,
        "port": plan.port,
        "external_url": plan.external_url,
        "users": ",".join(f"{name}:{password}" for name, password in users),
        "main_team": ",".join((ADMIN, *plan.wanted.settings.main_team)),
        "tls_port": plan.wanted.tls_port if plan.tls else 0,
        "tls_certificate": str(CERTIFICATE),
        "tls_key": str(_TLS_KEY),
        "metrics_port": plan.wanted.metrics_port,
        "variables": [*_encryption(plan), *_variables(plan)],
        "session_signing_key": str(_SIGNING_KEY),
        "tsa_host_key": str(_HOST_KEY),
        "authorized_keys": str(AUTHORIZED),
        "tsa_port": TSA_PORT,
        "request_timeout": WEB_REQUEST_TIMEOUT,
        "queues_tasks": plan.queues_tasks,
        "max_active_tasks": _MAX_ACTIVE_TASKS,
        "database": database,
        "hosts": ",".join((database.host, *database.others)) if database else "",
        "sslmode": _sslmode(database),
        "ca": str(_CA),
        "socket": str(local_postgresql.SOCKET_FOLDER),
    }


def _given(name: str) -> pathlib.Path:
    """The file of a setting that Concourse takes a path for."""
    return service.KEYS / f"{_GIVEN}{name}"


def _all_given() -> list[pathlib.Path]:
    return [path for path in files.entries(service.KEYS) if path.name.startswith(_GIVEN)]


def _variables(plan: WebPlan) -> list[tuple[str, str]]:
    return [
        (variables.environment(name), str(_given(name)) if name in variables.FILES else value)
        for name, value in plan.wanted.settings.variables
    ]


def _encryption(plan: WebPlan) -> list[tuple[str, str]]:
    """The keys of what the database holds encrypted, as variables."""
    had = encryption.Keys(_had("ENCRYPTION_KEY"), _had("OLD_ENCRYPTION_KEY"))
    keys = encryption.keys(plan.wanted.encryption, had)
    pairs = (("ENCRYPTION_KEY", keys.new), ("OLD_ENCRYPTION_KEY", keys.old))
    return [
        (f"CONCOURSE_{name}{web_values.key_form(key) or ''}", key) for name, key in pairs if key
    ]


def _had(name: str) -> str:
    """What the settings of now say of a key, in whichever form."""
    forms = (service.setting(ENVIRONMENT, f"CONCOURSE_{name}{form}") for form in _FORMS)
    return next(filter(None, forms), "")


def _ensure(path: pathlib.Path, content: str) -> bool:
    return files.ensure_file(path, content, mode=0o600, owner=service.USER)


def _sslmode(database: Database | None) -> str:
    if database is None or not database.tls:
        return "disable"
    if not database.ca:
        return "require"
    # Certificates have their server's name in them, but not every one has its address.
    by_name = not any(_is_address(host) for host in (database.host, *database.others))
    return "verify-full" if by_name else "verify-ca"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
