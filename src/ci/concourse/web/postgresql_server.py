# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The PostgreSQL server of the distribution's packages on this machine."""

import collections.abc
import pathlib
import typing

from machine import packages, process
from machine import polling as waiting
from machine import systemd as services
from machine.errors import PartError

_PACKAGE: typing.Final = "postgresql"
_SERVICE: typing.Final = "postgresql.service"
_PSQL: typing.Final = "/usr/bin/psql"
_CREATE_CLUSTER: typing.Final = "/usr/bin/pg_createcluster"
_DROP_CLUSTER: typing.Final = "/usr/bin/pg_dropcluster"
_CLUSTERS: typing.Final = pathlib.Path("/etc/postgresql")
_VERSIONS: typing.Final = pathlib.Path("/usr/lib/postgresql")
_START: typing.Final = 60.0  # seconds
_AS_ADMINISTRATOR: typing.Final = ("/usr/sbin/runuser", "--user", "postgres", "--")


class DatabaseError(PartError):
    """The database on this machine can't be used. The text says why, and the next step."""


class Server:
    """The server, asked as PostgreSQL's own administrator, who needs no password at the socket."""

    def is_installed(self) -> bool:
        """Whether its programs are here."""
        return pathlib.Path(_PSQL).exists()

    def ensure(self, note: collections.abc.Callable[[str], object]) -> bool:
        """Have it, with a cluster that answers.

        Args:
            note: told the version of a cluster before that is made, since there is none.

        Returns:
            Whether anything was missing.

        Raises:
            DatabaseError: it does not answer.
            machine.packages.PackageError: apt can't install it.
            machine.process.CommandError: systemd fails.
        """
        changed = packages.ensure_installed(_PACKAGE)
        created = _ensure_cluster(note)
        changed |= services.ensure_running(_SERVICE, restart=created)
        self._wait()
        return changed

    def run(self, statement: str) -> str:
        """Run SQL. Return what it prints.

        Raises:
            machine.process.CommandError: PostgreSQL refuses.
        """
        return process.run(
            [
                *_AS_ADMINISTRATOR, _PSQL,
                "--no-psqlrc", "--quiet", "--tuples-only", "--no-align",
                "--set=ON_ERROR_STOP=1", "--dbname=postgres", f"--command={statement}",
            ],
            timeout=60,
        ).stdout  # fmt: skip

    def start(self) -> None:
        """Have it run and answer.

        Raises:
            DatabaseError: it does not answer.
            machine.process.CommandError: systemd fails.
        """
        services.ensure_running(_SERVICE, restart=False)
        self._wait()

    def drop_cluster(self, version: str) -> None:
        """Remove the cluster of a version with all that it has, if there is one."""
        process.run([_DROP_CLUSTER, "--stop", version, "main"], timeout=120, check=False)

    def remove(self) -> bool:
        """Remove its package if the charm has installed it. Return True if it has."""
        return packages.remove_installed(_PACKAGE)

    def _wait(self) -> None:
        try:
            waiting.retry(
                lambda: self.run("SELECT 1"),
                lambda error: isinstance(error, process.CommandError),
                _START,
            )
        except process.CommandError as error:
            raise DatabaseError(
                f"PostgreSQL on this machine does not answer: {error}. See pg_lsclusters and "
                "journalctl -u postgresql@*"
            ) from error


def _ensure_cluster(note: collections.abc.Callable[[str], object]) -> bool:
    """Make a cluster where PostgreSQL has none, as installing the package does by default."""
    if any(_CLUSTERS.glob("*/*")):
        return False
    version = max((path.name for path in _VERSIONS.iterdir()), key=int)
    note(version)
    process.run([_CREATE_CLUSTER, version, "main"], timeout=120)
    return True
