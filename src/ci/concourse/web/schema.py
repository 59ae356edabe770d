# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The form of the tables in web's database: which one it has, and which one a release knows.

(Concourse 8.3.0 atc/atccmd/command.go, Migration; atc/db/migration/migration.go.)
"""

import pathlib
import re
import typing

from ci.concourse import service
from ci.concourse.web import web
from machine import process

_RUNUSER: typing.Final = "/usr/sbin/runuser"
_LOOK: typing.Final = 60.0  # seconds
_CHANGE: typing.Final = 900.0


class SchemaError(Exception):
    """Concourse cannot report or change the version of its tables. The text says why."""


def current(release: pathlib.Path) -> int:
    """Return the schema version of the database.

    Raises:
        SchemaError: if it cannot be read, such as without a database.
    """
    return _number(release, "--current-db-version")


def known(release: pathlib.Path) -> int:
    """Return the newest schema version of a release, to which its web migrates a database.

    Raises:
        SchemaError: if it cannot be read, such as without a database.
    """
    return _number(release, "--supported-db-version")


def change(release: pathlib.Path, to: int) -> None:
    """Give the database an older form, as the newer release alone can. No web may run.

    Raises:
        SchemaError: if that fails; each step is a transaction of its own.
    """
    _migrate(release, f"--migrate-db-to-version={to}", _CHANGE)


def _number(release: pathlib.Path, what: str) -> int:
    said = _migrate(release, what, _LOOK)
    if not re.fullmatch(r"[0-9]{1,18}", said):
        raise SchemaError(f"{release.name}: concourse migrate {what} says {said[:80]!r}")
    return int(said)


def _migrate(release: pathlib.Path, what: str, timeout: float) -> str:
    argv = [
        _RUNUSER,
        "--user",
        service.USER,
        "--",
        str(release / "bin/concourse"),
        "migrate",
        what,
    ]
    try:
        return process.run(argv, timeout=timeout, env=web.database_settings()).stdout.strip()
    except process.CommandError as error:
        raise SchemaError(str(error)) from error
