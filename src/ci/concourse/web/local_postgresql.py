# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A PostgreSQL on the web's own machine, from the distribution's packages: a default for labs.

Role and database are named as the system user that web runs as, whom PostgreSQL lets in at its
socket without a password. They outlive a web that stops being one, since the operator may want it
back: only the unit's removal, or the operator in so many words, takes them away. So does one whose
place was taken by a backup's, which has the time of that in its name.
"""

import collections.abc
import dataclasses
import datetime
import pathlib
import typing

from ci.concourse.web.postgresql_server import DatabaseError, Server
from gpu_agent import paths
from machine import files, process

SOCKET_FOLDER: typing.Final = pathlib.Path("/var/run/postgresql")

DATABASE: typing.Final = "concourse"

_PG_RESTORE: typing.Final = "/usr/bin/pg_restore"
_COMING: typing.Final = "concourse_coming"
_FOUND: typing.Final = (
    "SELECT 'role' FROM pg_roles WHERE rolname = 'concourse' UNION ALL "
    "SELECT datname FROM pg_database WHERE datname = 'concourse' "
    "OR datname LIKE 'concourse%' AND pg_get_userbyid(datdba) = 'concourse'"
)
_LOAD: typing.Final = 6 * 3600.0  # seconds
AS_OWNER: typing.Final = ("/usr/sbin/runuser", "--user", DATABASE, "--")
"""What is before a program that meets the database's content. Functions of a database run as who
looks at its tables, or fills them, and those of an administrator may start programs."""


@dataclasses.dataclass(frozen=True)
class LocalDatabase:
    """Web's database on this machine, and what the charm notes of it.

    Attributes:
        folder: where the notes are.
        server: PostgreSQL on this machine.
    """

    folder: pathlib.Path = paths.STATE
    server: Server = Server()

    @property
    def _ours(self) -> pathlib.Path:
        """There is a database of this charm's: the version of the cluster if that is ours too."""
        return self.folder / "local-postgresql"

    @property
    def _anothers(self) -> pathlib.Path:
        """Whose database it is, where that unit is gone and another has this machine now."""
        return self.folder / "local-postgresql-of"

    @property
    def _since(self) -> pathlib.Path:
        """The day since which web keeps its data elsewhere."""
        return self.folder / "local-postgresql-unused-since"

    @property
    def _aside(self) -> pathlib.Path:
        """The databases that a backup has replaced, a line each."""
        return self.folder / "local-postgresql-aside"

    def ensure(self, progress: collections.abc.Callable[[str], None]) -> bool:
        """Have PostgreSQL with Concourse's role and database. Return True if any was missing.

        Raises:
            DatabaseError: if a database of that name has another owner, or PostgreSQL does not
                answer.
            machine.packages.PackageError: if apt can't install it.
            machine.process.CommandError: if systemd fails.
        """
        if whose := files.read_text(self._anothers):
            raise DatabaseError(
                f"PostgreSQL on this machine keeps the database {DATABASE} of {whose}: back it up "
                f"and run the action remove-local-database confirm={DATABASE} on this unit, or "
                "juju integrate this application with a database"
            )
        if not self.server.is_installed():
            progress("Installing PostgreSQL")
        # Before the wait for PostgreSQL: a hook that is killed there leaves a database in use.
        files.ensure_absent(self._since)
        changed = self.server.ensure(self._note)
        found = self.server.run(_FOUND).split()
        have = [kind for kind, name in (("role", "role"), ("database", DATABASE)) if name in found]
        if have and not self._ours.exists():
            raise DatabaseError(
                f"PostgreSQL on this machine has a {have[0]} concourse that is not this charm's: "
                "rename it, or juju integrate this application with a database"
            )
        # Before the first of them exists, so that a hook that was killed knows its own.
        self._note(files.read_text(self._ours) or "")
        if "role" not in have:
            self.server.run("CREATE ROLE concourse LOGIN")
        if "database" not in have:
            self.server.run("CREATE DATABASE concourse OWNER concourse")
        return self._tidy(found) or changed or len(have) < 2

    def kept(self) -> str:
        """Return the database on this machine that this charm created; empty if there is none."""
        if not self._ours.exists():
            return ""
        whose, since = files.read_text(self._anothers), files.read_text(self._since)
        name = f"{DATABASE} of {whose}" if whose else DATABASE
        return f"{name}, unused since {since}" if since else name

    def aside(self) -> tuple[str, ...]:
        """Return the databases here that a restored backup has replaced."""
        return tuple((files.read_text(self._aside) or "").split())

    def note_unused(self) -> bool:
        """Note since when web does not use its database on this machine. Return True if it did."""
        if not self._ours.exists() or self._since.exists():
            return False
        today = datetime.datetime.now(datetime.timezone.utc).date()
        return files.ensure_file(self._since, today.isoformat())

    def load(self, dump: pathlib.Path, time: str) -> str:
        """Have a dump's content as the database that web uses, which must have been stopped.

        Killed before its end, it has changed nothing that web sees.

        Args:
            dump: of pg_dump's custom format.
            time: such as `20261123_190501`, for the name of the database that is here now.

        Returns:
            The name that the database here before has now.

        Raises:
            machine.process.CommandError: if PostgreSQL refuses.
        """
        before = f"{DATABASE}_{time}"
        self.server.run(f"DROP DATABASE IF EXISTS {_COMING} WITH (FORCE)")
        self.server.run(f"CREATE DATABASE {_COMING} OWNER {DATABASE}")
        argv = [
            *AS_OWNER, _PG_RESTORE, "--exit-on-error", "--no-owner", "--no-privileges",
            f"--dbname={_COMING}",
        ]  # fmt: skip
        process.run_on_files(argv, timeout=_LOAD, stdin=dump)
        self.server.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'concourse'"
        )
        # Before it has that name, so that it is known whenever it has it.
        self._note_aside([*self.aside(), before])
        self.server.run(  # in one transaction
            f"ALTER DATABASE {DATABASE} RENAME TO {before}; "
            f"ALTER DATABASE {_COMING} RENAME TO {DATABASE}"
        )
        return before

    def remove_aside(self, name: str) -> None:
        """Drop a database that a restored backup has replaced.

        Raises:
            machine.process.CommandError: if PostgreSQL refuses.
        """
        self.server.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        self._note_aside([other for other in self.aside() if other != name])

    def set_aside(self, whose: str) -> None:
        """Have a database that is here already used by no web but that of the unit named."""
        if self._ours.exists() and not self._anothers.exists():
            files.ensure_file(self._anothers, whose)

    def remove(self) -> bool:
        """Drop role and database if they are ours, and PostgreSQL too if it came for them.

        Returns:
            Whether anything of ours was there.
        """
        made = files.read_text(self._ours)
        if made:
            self.server.drop_cluster(made)
        elif made is not None and self.server.is_installed():
            self.server.start()
            for name in (DATABASE, _COMING, *self.aside()):
                self.server.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            self.server.run("DROP ROLE IF EXISTS concourse")
        removed = self.server.remove()
        for note in (self._anothers, self._since, self._aside):
            files.ensure_absent(note)
        return files.ensure_absent(self._ours) or removed

    def _note(self, cluster: str) -> None:
        """Write down that the database is ours, and the version of the cluster if that is too."""
        files.ensure_directory(self._ours.parent)
        files.ensure_file(self._ours, cluster)

    def _note_aside(self, names: collections.abc.Collection[str]) -> bool:
        """Note which databases a backup has replaced. Return whether the note has changed."""
        if not names:
            return files.ensure_absent(self._aside)
        return files.ensure_file(self._aside, "".join(f"{name}\n" for name in names))

    def _tidy(self, found: collections.abc.Collection[str]) -> bool:
        """Take away what a restore that was killed has left. Return whether there was anything.

        Args:
            found: the databases that there are.
        """
        if _COMING in found:
            self.server.run(f"DROP DATABASE IF EXISTS {_COMING} WITH (FORCE)")
        changed = self._note_aside([name for name in self.aside() if name in found])
        return changed or _COMING in found


HERE: typing.Final = LocalDatabase()
"""The one of this machine."""
