# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Save the content of web's database to a file, and load it again; the database may be remote.

PostgreSQL's own programs do the work. They run as web's user, which has the database's password
anyway, because a hostile database may take control of them.
"""

import collections.abc
import contextlib
import pathlib
import re
import typing

from ci.concourse import service
from ci.concourse.web import local_postgresql, web
from machine import files, process, users

_PG_DUMP: typing.Final = "/usr/bin/pg_dump"
_PG_RESTORE: typing.Final = "/usr/bin/pg_restore"
_PSQL: typing.Final = "/usr/bin/psql"
_ACCESS: typing.Final = pathlib.Path("/run/gpu-ci/database-access")
# The prefix of schemas that a restore kept aside, in a database on another machine.
_ASIDE: typing.Final = "concourse_"
_LONG: typing.Final = 6 * 3600.0  # seconds
_LOOK: typing.Final = 60.0
# The head of pg_restore --list.
_SAVED_FROM: typing.Final = re.compile(r"^; +Dumped from database version: ([0-9]+)", re.MULTILINE)
# pg_restore 17 and newer writes it for every server (src/bin/pg_dump/pg_backup_archiver.c,
# _doSetFixedOutputState), and servers before 17 refuse it.
_TIMEOUT: typing.Final = b"SET transaction_timeout = 0;"
_HAS_TIMEOUT: typing.Final = 17
_HEAD: typing.Final = 4096  # bytes
# Lines in which PostgreSQL quotes rows, which may hold passwords of pipelines.
_OF_ROWS: typing.Final = re.compile(r"\s*(?:CONTEXT|DETAIL|STATEMENT|QUERY|LINE [0-9]+):")
# The head of a script in which psql runs none of its own commands, such as `\!` for a program
# (pg_restore 13.22, 14.19, 15.14, 16.10, 17.6 and newer: CVE-2025-8714, CVE-2025-8715).
_RESTRICTED: typing.Final = re.compile(rb"(?:--[^\n]*\n|\n)*\\restrict [0-9A-Za-z]+\n")
# Otherwise a session could go on writing to the database after the action was killed.
_ENDING_WITH_US: typing.Final = ("/usr/bin/setpriv", "--pdeathsig", "KILL", "--")
# The extension's functions move aside with the schema, and web needs them beside its tables. The
# loaded data, or else web, creates the extension again.
_DROP_EXTENSION: typing.Final = (
    "DO $$ BEGIN IF EXISTS (SELECT FROM pg_extension WHERE extname = 'pgcrypto' "
    "AND pg_has_role(extowner, 'MEMBER')) THEN DROP EXTENSION pgcrypto; END IF; END $$"
)

# Concourse's settings under their names in a service file (PostgreSQL 15, 34.17 and 34.1.2).
_WORDS: typing.Final = {
    "CONCOURSE_POSTGRES_HOST": "host",
    "CONCOURSE_POSTGRES_PORT": "port",
    "CONCOURSE_POSTGRES_DATABASE": "dbname",
    "CONCOURSE_POSTGRES_USER": "user",
    "CONCOURSE_POSTGRES_SSLMODE": "sslmode",
    "CONCOURSE_POSTGRES_CA_CERT": "sslrootcert",
    "PGTARGETSESSIONATTRS": "target_session_attrs",
}


class DatabaseError(Exception):
    """The database cannot be saved or loaded. The text says why, and the next step."""


def check_programs() -> None:
    """Check that PostgreSQL's programs are installed.

    Raises:
        DatabaseError: one is missing.
    """
    if not all(pathlib.Path(program).exists() for program in (_PG_DUMP, _PG_RESTORE, _PSQL)):
        raise DatabaseError(
            "pg_dump, pg_restore or psql is missing: juju exec --unit <this unit> 'sudo apt-get "
            "install --yes postgresql-client', of the database's version or newer"
        )


def save(destination: pathlib.Path) -> None:
    """Save the database of this unit's web to a file, while web runs.

    Raises:
        DatabaseError: the database cannot be saved.
    """
    files.ensure_file(destination, b"", mode=0o600)
    arguments = [
        "--format=custom", "--no-owner", "--no-privileges", "--no-password",
        f"--exclude-schema={_ASIDE}*",
    ]  # fmt: skip
    with _reported("saved", destination.parent.parent), _access() as (before, environment, name):
        argv = [*before, _PG_DUMP, *arguments, f"--dbname={name}"]
        process.run_on_files(argv, timeout=_LONG, env=environment, stdout=destination)


def check(dump: pathlib.Path) -> None:
    """Check that the database of this unit's web can load a dump.

    Raises:
        DatabaseError: the database cannot load it, or is not reachable.
    """
    with _reported("loaded; nothing was changed"):
        listed = dump.with_name("listed")
        argv = [*users.becoming(service.USER), _PG_RESTORE, "--list"]
        process.run_on_files(argv, timeout=_LOOK, stdin=dump, stdout=listed)
        found, here = _SAVED_FROM.search(files.read_text(listed) or ""), _server()
        files.ensure_absent(listed)
    if found and int(found[1]) > here:
        raise DatabaseError(
            f"The backup is from PostgreSQL {found[1]}, and web's database is PostgreSQL {here}: "
            f"give web a database of PostgreSQL {found[1]} or newer. Nothing was changed"
        )


def load(dump: pathlib.Path, folder: pathlib.Path, time: str) -> str:
    """Load a dump into the database of this unit's web, which must be stopped.

    The present content is kept aside. If this is killed before the end, nothing has changed.

    Args:
        dump: a file that `save` wrote.
        folder: for a temporary file as large as the database.
        time: such as `20261123_190501`, for the name of the content that is kept aside.

    Returns:
        The name and the place of the content that is kept aside.

    Raises:
        DatabaseError: the dump cannot be loaded, and nothing was changed.
    """
    with _reported("loaded; nothing was changed", folder.parent):
        if web.uses_local_database():
            return f"database {local_postgresql.HERE.load(dump, time)} on this machine"
        return f"schema {_load_elsewhere(dump, folder, time)} of the same database"


def _load_elsewhere(dump: pathlib.Path, folder: pathlib.Path, time: str) -> str:
    """Load it in one transaction, since web's role may not create another database."""
    script, before = folder / "restore.sql", f"{_ASIDE}{time}"
    files.ensure_file(script, b"", mode=0o600)
    argv = [
        *users.becoming(service.USER),
        _PG_RESTORE,
        "--no-owner",
        "--no-privileges",
        "--file=-",
    ]
    process.run_on_files(argv, timeout=_LONG, stdin=dump, stdout=script)
    with script.open("rb") as file:
        head = file.read(_HEAD)
    if not _RESTRICTED.match(head):
        raise DatabaseError(
            "PostgreSQL's programs on this machine could run commands from the backup "
            "(CVE-2025-8714): upgrade postgresql-client to 13.22, 14.19, 15.14, 16.10, 17.6 or "
            "newer with juju exec --unit <this unit> 'sudo apt-get update && sudo apt-get upgrade "
            "--yes'. Nothing was changed"
        )
    if _server() < _HAS_TIMEOUT:
        files.blank_line(script, _TIMEOUT, _HEAD)
    with _access() as (before_it, environment, name):
        argv = [
            *before_it, *_ENDING_WITH_US,
            _PSQL, "--no-psqlrc", "--quiet", "--no-password", "--set=ON_ERROR_STOP=1",
            "--single-transaction", f"--dbname={name}",
            f"--command=ALTER SCHEMA public RENAME TO {before}",
            "--command=CREATE SCHEMA public",
            f"--command={_DROP_EXTENSION}",
            "--file=-",
        ]  # fmt: skip
        process.run_on_files(argv, timeout=_LONG, env=environment, stdin=script)
    files.ensure_absent(script)
    return before


def _server() -> int:
    """Return the major version of the PostgreSQL server of this unit's web."""
    with _access() as (before, environment, name):
        argv = [
            *before, _PSQL, "--no-psqlrc", "--quiet", "--no-password", "--tuples-only",
            "--no-align", f"--dbname={name}", "--command=SHOW server_version_num",
        ]  # fmt: skip
        said = process.run(argv, timeout=_LOOK, env=environment).stdout.strip()
    if not re.fullmatch(r"[1-9][0-9]{4,6}", said):
        raise DatabaseError(
            f"The database reports the version {said[:40]!r}, which is not a PostgreSQL version: "
            "check which server it is. Nothing was changed"
        )
    return int(said) // 10000


@contextlib.contextmanager
def _access() -> collections.abc.Generator[tuple[list[str], dict[str, str], str]]:
    """Give the PostgreSQL programs access: command prefix, variables, and the database's name."""
    if web.uses_local_database():
        yield [*local_postgresql.AS_OWNER], {}, local_postgresql.DATABASE
        return
    found = web.database_settings()
    lines = [f"{word}={found[name]}" for name, word in _WORDS.items() if name in found]
    password = found.get("CONCOURSE_POSTGRES_PASSWORD", "")
    escaped = password.replace("\\", "\\\\").replace(":", "\\:")
    about, passwords = _ACCESS / "service", _ACCESS / "passwords"
    files.ensure_directory(_ACCESS, mode=0o700, owner=service.USER)
    try:
        for path, text in (
            (about, "\n".join(["[web]", *lines, ""])),
            (passwords, f"*:*:*:*:{escaped}\n"),
        ):
            files.ensure_file(path, text, mode=0o600, owner=service.USER)
        # libpq looks for a certificate in HOME, and web's user cannot read root's.
        environment = {
            "HOME": str(_ACCESS), "PGSERVICEFILE": str(about), "PGPASSFILE": str(passwords)
        }  # fmt: skip
        yield users.becoming(service.USER), environment, "service=web"
    finally:
        files.ensure_absent(_ACCESS)


@contextlib.contextmanager
def _reported(what: str, folder: pathlib.Path | None = None) -> collections.abc.Generator[None]:
    """Report errors of PostgreSQL as a DatabaseError with the next step.

    Args:
        what: the participle of what failed, such as `saved`.
        folder: the folder of the file that is written meanwhile.
    """
    try:
        yield
    except process.CommandError as error:
        said, step = error.stderr, "see the database's log"
        if "server version mismatch" in said:
            step = "install the postgresql-client of the server's version on this machine"
        elif "must be owner of schema" in said or "permission denied" in said:
            step = (
                "let web's role own it, as the database's administrator: ALTER SCHEMA public "
                "OWNER TO <role>; GRANT CREATE ON DATABASE <database> TO <role>"
            )
        elif "unsupported version" in said:
            step = "install the postgresql-client of the backup's version on this machine"
        elif "No space left" in said:
            # The server reports its own full disk with ERROR.
            ours = folder and "ERROR:" not in said
            step = f"free space on the disk of {folder if ours else 'the database'}"
        why = _without_rows(said) or str(error)
        raise DatabaseError(f"The database cannot be {what}: {why}: {step}") from error


def _without_rows(said: str) -> str:
    """Return PostgreSQL's last messages about a failure as one line, without table content."""
    lines = [line.strip() for line in said.splitlines() if not _OF_ROWS.match(line)]
    return " / ".join(list(filter(None, lines))[-3:])
