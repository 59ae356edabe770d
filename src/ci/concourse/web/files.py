# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What Concourse's web reads when it starts: its settings, and the files that they name."""

import dataclasses
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

# Files of settings of web-settings-secret begin so.
_GIVEN: typing.Final = "web-"
_FORMS: typing.Final = ("", "_HEX", "_BASE64")
# For workers that name no limit of their own: no limit. Without a number here, those that name
# one are not held to it either (concourse 95872ce1a atc/worker/placement.go:337-350).
_MAX_ACTIVE_TASKS: typing.Final = 1000


@dataclasses.dataclass(frozen=True)
class Files:
    """The settings of web, and the files that they name.

    Attributes:
        keys: the folder of keys.
        environment: the settings.
        owner: the user that web runs as; None: the one that writes them.
    """

    keys: pathlib.Path = service.KEYS
    environment: pathlib.Path = ENVIRONMENT
    owner: str | None = service.USER

    @property
    def authorized(self) -> pathlib.Path:
        """The keys of workers that web lets in, a line each."""
        return self.keys / AUTHORIZED.name

    @property
    def _certificate(self) -> pathlib.Path:
        return self.keys / CERTIFICATE.name

    @property
    def _tls_key(self) -> pathlib.Path:
        return self.keys / "tls_key.pem"

    @property
    def _host_key(self) -> pathlib.Path:
        return self.keys / "tsa_host_key"

    @property
    def _signing_key(self) -> pathlib.Path:
        return self.keys / "session_signing_key"

    @property
    def _ca(self) -> pathlib.Path:
        return self.keys / "postgresql_ca.pem"

    def write(self, plan: WebPlan) -> tuple[tuple[str, ...], bool]:
        """Have the files that web's settings name.

        Returns:
            What web reads of them at its start and never again, and whether any had to be changed.
        """
        service.ensure_keys_folder(self.keys)
        contents = {
            self._host_key: plan.secrets.tsa_host_key,
            self._signing_key: plan.secrets.session_signing_key,
            self._ca: plan.database.ca if plan.database else "",
            self._certificate: plan.tls.chain if plan.tls else "",
            self._tls_key: plan.tls.key if plan.tls else "",
        }
        changed = self._ensure(self.authorized, "".join(f"{key}\n" for key in plan.worker_keys))
        for name, value in plan.wanted.settings.variables:
            if name in variables.FILES:
                contents[self._given(name)] = value
        if not plan.tls:
            web_tls.Signing(self.keys).remove()
        for path in set(self._all_given()) - set(contents):
            changed |= files.ensure_absent(path)
        for path, content in contents.items():
            changed |= self._ensure(path, content) if content else files.ensure_absent(path)
        return tuple(contents.values()), changed

    def remove(self) -> bool:
        """Remove them. Return True if any was there."""
        removed = web_tls.Signing(self.keys).remove()
        for path in (
            self._host_key,
            self._signing_key,
            self.authorized,
            self._ca,
            self._certificate,
            self._tls_key,
            *self._all_given(),
        ):
            removed |= files.ensure_absent(path)
        return removed

    def settings(self, plan: WebPlan) -> dict[str, typing.Any]:
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
            "tls_certificate": str(self._certificate),
            "tls_key": str(self._tls_key),
            "metrics_port": plan.wanted.metrics_port,
            "variables": [*self._encryption(plan), *self._variables(plan)],
            "session_signing_key": str(self._signing_key),
            "tsa_host_key": str(self._host_key),
            "authorized_keys": str(self.authorized),
            "tsa_port": TSA_PORT,
            "request_timeout": WEB_REQUEST_TIMEOUT,
            "queues_tasks": plan.queues_tasks,
            "max_active_tasks": _MAX_ACTIVE_TASKS,
            "database": database,
            "hosts": ",".join((database.host, *database.others)) if database else "",
            "sslmode": _sslmode(database),
            "ca": str(self._ca),
            "socket": str(local_postgresql.SOCKET_FOLDER),
        }

    def _given(self, name: str) -> pathlib.Path:
        """The file of a setting that Concourse takes a path for."""
        return self.keys / f"{_GIVEN}{name}"

    def _all_given(self) -> list[pathlib.Path]:
        return [path for path in files.entries(self.keys) if path.name.startswith(_GIVEN)]

    def _variables(self, plan: WebPlan) -> list[tuple[str, str]]:
        return [
            (
                variables.environment(name),
                str(self._given(name)) if name in variables.FILES else value,
            )
            for name, value in plan.wanted.settings.variables
        ]

    def _encryption(self, plan: WebPlan) -> list[tuple[str, str]]:
        """The keys of what the database holds encrypted, as variables."""
        had = encryption.Keys(self._had("ENCRYPTION_KEY"), self._had("OLD_ENCRYPTION_KEY"))
        keys = encryption.keys(plan.wanted.encryption, had)
        pairs = (("ENCRYPTION_KEY", keys.new), ("OLD_ENCRYPTION_KEY", keys.old))
        return [
            (f"CONCOURSE_{name}{web_values.key_form(key) or ''}", key)
            for name, key in pairs
            if key
        ]

    def _had(self, name: str) -> str:
        """What the settings of now say of a key, in whichever form."""
        forms = (service.setting(self.environment, f"CONCOURSE_{name}{form}") for form in _FORMS)
        return next(filter(None, forms), "")

    def _ensure(self, path: pathlib.Path, content: str) -> bool:
        return files.ensure_file(path, content, mode=0o600, owner=self.owner)


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
