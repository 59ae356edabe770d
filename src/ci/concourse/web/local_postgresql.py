# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A PostgreSQL on the web's own machine, from the distribution's packages: a default for labs.

Role and database are named as the system user that web runs as, whom PostgreSQL lets in at its
socket without a password. They outlive a web that stops being one, since the operator may want it
back: only the unit's removal, or the operator in so many words, takes them away. So does one whose
place was taken by a backup's, which has the time of that in its name.
"""

import collections.abc
import datetime
import pathlib
import typing

from machine import files, packages, process
from machine import polling as waiting
from machine import systemd as services
from machine.errors import PartError

SOCKET_FOLDER: typing.Final = pathlib.Path("/var/run/postgresql")

DATABASE: typing.Final = "concourse"

_PACKAGE: typing.Final = "postgresql"
_SERVICE: typing.Final = "postgresql.service"
_PSQL: typing.Final = "/usr/bin/psql"
_CREATE_CLUSTER: typing.Final = "/usr/bin/pg_createcluster"
_DROP_CLUSTER: typing.Final = "/usr/bin/pg_dropcluster"
_CLUSTERS: typing.Final = pathlib.Path("/etc/postgresql")
_VERSIONS: typing.Final = pathlib.Path("/usr/lib/postgresql")
_OURS: typing.Final = pathlib.Path("/var/lib/gpu-ci/local-postgresql")
# Whose database it is, where that unit is gone and another has this machine now.
_ANOTHERS: typing.Final = _OURS.with_name("local-postgresql-of")
# The day since which web keeps its data elsewhere; databases replaced by a backup, a line each.
_SINCE: typing.Final = _OURS.with_name("local-postgresql-unused-since")
_ASIDE: typing.Final = _OURS.with_name("local-postgresql-aside")
_PG_RESTORE: typing.Final = "/usr/bin/pg_restore"
_COMING: typing.Final = "concourse_coming"
_FOUND: typing.Final = (
    "SELECT 'role' FROM pg_roles WHERE rolname = 'concourse' UNION ALL "
    "SELECT datname FROM pg_database WHERE datname = 'concourse' "
    "OR datname LIKE 'concourse%' AND pg_get_userbyid(datdba) = 'concourse'"
)
_START: typing.Final = 60.0  # seconds
_LOAD: typing.Final = 6 * 3600.0
_AS_ADMINISTRATOR: typing.Final = ("/usr/sbin/runuser", "--user", "postgres", "--")
AS_OWNER: typing.Final = ("/usr/sbin/runuser", "--user", DATABASE, "--")
"""What is before a program that meets the database's content. Functions of a database run as who
looks at its tables, or fills them, and those of an administrator may start programs."""


class DatabaseError(PartError):
    """The database on this machine can't be used. The text says why, and the next step."""


def ensure(progress: collections.abc.Callable[[str], None]) -> bool:
    """Have PostgreSQL with Concourse's role and database. Return True if any was missing.

    Raises:
        DatabaseError: if a database of that name has another owner, or PostgreSQL does not start.
        machine.packages.PackageError: if apt can't install it.
        machine.process.CommandError: if systemd fails.
    """
    if whose := files.read_text(_ANOTHERS):
        raise DatabaseError(
            f"PostgreSQL on this machine keeps the database {DATABASE} of {whose}: back it up and "
            f"run the action remove-local-database confirm={DATABASE} on this unit, or juju "
            "integrate this application with a database"
        )
    if not pathlib.Path(_PSQL).exists():
        progress("Installing PostgreSQL")
    changed = packages.ensure_installed(_PACKAGE)
    created = _ensure_cluster()
    changed |= services.ensure_running(_SERVICE, restart=created)
    files.ensure_absent(_SINCE)
    _wait()
    found = _psql(_FOUND).split()
    have = [kind for kind, name in (("role", "role"), ("database", DATABASE)) if name in found]
    if have and not _OURS.exists():
        raise DatabaseError(
            f"PostgreSQL on this machine has a {have[0]} concourse that is not this charm's: "
            "rename it, or juju integrate this application with a database"
        )
    # Before the first of them exists, so that a hook that was killed knows its own.
    _note(files.read_text(_OURS) or "")
    if "role" not in have:
        _psql("CREATE ROLE concourse LOGIN")
    if "database" not in have:
        _psql("CREATE DATABASE concourse OWNER concourse")
    return _tidy(found) or changed or len(have) < 2


def kept() -> str:
    """Return the database on this machine that this charm created; empty if there is none."""
    if not _OURS.exists():
        return ""
    whose, since = files.read_text(_ANOTHERS), files.read_text(_SINCE)
    name = f"{DATABASE} of {whose}" if whose else DATABASE
    return f"{name}, unused since {since}" if since else name


def aside() -> tuple[str, ...]:
    """Return the databases here that a restored backup has replaced."""
    return tuple((files.read_text(_ASIDE) or "").split())


def note_unused() -> bool:
    """Note since when web does not use its database on this machine. Return True if it did."""
    if not _OURS.exists() or _SINCE.exists():
        return False
    today = datetime.datetime.now(datetime.timezone.utc).date()
    return files.ensure_file(_SINCE, today.isoformat())


def load(dump: pathlib.Path, time: str) -> str:
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
    _psql(f"DROP DATABASE IF EXISTS {_COMING} WITH (FORCE)")
    _psql(f"CREATE DATABASE {_COMING} OWNER {DATABASE}")
    argv = [
        *AS_OWNER, _PG_RESTORE, "--exit-on-error", "--no-owner", "--no-privileges",
        f"--dbname={_COMING}",
    ]  # fmt: skip
    process.run_on_files(argv, timeout=_LOAD, stdin=dump)
    _psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'concourse'")
    # Before it has that name, so that it is known whenever it has it.
    _note_aside([*aside(), before])
    _psql(  # in one transaction
        f"ALTER DATABASE {DATABASE} RENAME TO {before}; "
        f"ALTER DATABASE {_COMING} RENAME TO {DATABASE}"
    )
    return before


def remove_aside(name: str) -> None:
    """Drop a database that a restored backup has replaced.

    Raises:
        machine.process.CommandError: if PostgreSQL refuses.
    """
    _psql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    _note_aside([other for other in aside() if other != name])


def set_aside(whose: str) -> None:
    """Have a database that is here already used by no web but that of the unit named."""
    if _OURS.exists() and not _ANOTHERS.exists():
        files.ensure_file(_ANOTHERS, whose)


def remove() -> bool:
    """Drop role and database if they are ours, and PostgreSQL too if it came for them.

    Returns:
        Whether anything of ours was there.
    """
    made = files.read_text(_OURS)
    if made:
        process.run([_DROP_CLUSTER, "--stop", made, "main"], timeout=120, check=False)
    elif made is not None and pathlib.Path(_PSQL).exists():
        services.ensure_running(_SERVICE, restart=False)
        _wait()
        for name in (DATABASE, _COMING, *aside()):
            _psql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        _psql("DROP ROLE IF EXISTS concourse")
    removed = packages.remove_installed(_PACKAGE)
    for note in (_ANOTHERS, _SINCE, _ASIDE):
        files.ensure_absent(note)
    return files.ensure_absent(_OURS) or removed


def _ensure_cluster() -> bool:
    """Make a cluster where PostgreSQL has none, as installing the package does by default."""
    if any(_CLUSTERS.glob("*/*")):
        return False
    version = max((path.name for path in _VERSIONS.iterdir()), key=int)
    _note(version)
    process.run([_CREATE_CLUSTER, version, "main"], timeout=120)
    return True


def _note(cluster: str) -> None:
    """Write down that the database is ours, and the version of the cluster if that is too."""
    files.ensure_directory(_OURS.parent)
    files.ensure_file(_OURS, cluster)


def _note_aside(names: collections.abc.Collection[str]) -> bool:
    """Note which databases a backup has replaced. Return whether the note has changed."""
    if not names:
        return files.ensure_absent(_ASIDE)
    return files.ensure_file(_ASIDE, "".join(f"{name}\n" for name in names))


def _tidy(found: collections.abc.Collection[str]) -> bool:
    """Take away what a restore that was killed has left. Return whether there was anything.

    Args:
        found: the databases that there are.
    """
    if _COMING in found:
        _psql(f"DROP DATABASE IF EXISTS {_COMING} WITH (FORCE)")
    changed = _note_aside([name for name in aside() if name in found])
    return changed or _COMING in found


def _wait() -> None:
    try:
        waiting.retry(
            lambda: _psql("SELECT 1"),
            lambda error: isinstance(error, process.CommandError),
            _START,
        )
    except process.CommandError as error:
        raise DatabaseError(
            f"PostgreSQL on this machine does not answer: {error}. See pg_lsclusters and "
            "journalctl -u postgresql@*"
        ) from error


def _psql(statement: str) -> str:
    """Run SQL as PostgreSQL's own administrator, who needs no password at the socket."""
    return process.run(
        [
            *_AS_ADMINISTRATOR, _PSQL,
            "--no-psqlrc", "--quiet", "--tuples-only", "--no-align",
            "--set=ON_ERROR_STOP=1", "--dbname=postgres", f"--command={statement}",
        ],
        timeout=60,
    ).stdout  # fmt: skip
