# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The content of web's database, to a file and back, wherever web has it.

PostgreSQL's own programs do that, as the user that web runs as, who has the database's password
anyway: a hostile database may know a way to have them do something else.
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
# Of databases that had to make place in a database that is not on this machine.
_ASIDE: typing.Final = "concourse_"
_LONG: typing.Final = 6 * 3600.0  # seconds
_LOOK: typing.Final = 60.0
# As pg_restore --list begins.
_SAVED_FROM: typing.Final = re.compile(r"^; +Dumped from database version: ([0-9]+)", re.MULTILINE)
# pg_restore of 17 and newer writes it for every server (src/bin/pg_dump/pg_backup_archiver.c,
# _doSetFixedOutputState), and those before refuse it.
_TIMEOUT: typing.Final = b"SET transaction_timeout = 0;"
_HAS_TIMEOUT: typing.Final = 17
_HEAD: typing.Final = 4096  # bytes
# Where PostgreSQL quotes rows: pipelines' passwords may be among them.
_OF_ROWS: typing.Final = re.compile(r"\s*(?:CONTEXT|DETAIL|STATEMENT|QUERY|LINE [0-9]+):")
# So pg_restore begins a script from which psql takes no command of its own, such as `\!` for a
# program (since 13.22, 14.19, 15.14, 16.10 and 17.6: CVE-2025-8714, CVE-2025-8715).
_RESTRICTED: typing.Final = re.compile(rb"(?:--[^\n]*\n|\n)*\\restrict [0-9A-Za-z]+\n")
# A session that outlived the action would fill the database behind its back.
_ENDING_WITH_US: typing.Final = ("/usr/bin/setpriv", "--pdeathsig", "KILL", "--")
# Its functions went aside too, and web looks for them where its tables are: what is loaded has the
# extension made anew, or web does.
_DROP_EXTENSION: typing.Final = (
    "DO $$ BEGIN IF EXISTS (SELECT FROM pg_extension WHERE extname = 'pgcrypto' "
    "AND pg_has_role(extowner, 'MEMBER')) THEN DROP EXTENSION pgcrypto; END IF; END $$"
)

# A service file's words for Concourse's settings (PostgreSQL 15, 34.17 and 34.1.2).
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
    """The database can't be saved, or be filled again. The text says why, and the next step."""


def check_programs() -> None:
    """See whether PostgreSQL's programs are here.

    Raises:
        DatabaseError: if they are not.
    """
    if not all(pathlib.Path(program).exists() for program in (_PG_DUMP, _PG_RESTORE, _PSQL)):
        raise DatabaseError(
            "pg_dump, pg_restore or psql is missing here: juju exec --unit <this unit> 'sudo "
            "apt-get install --yes postgresql-client', of the database's version or a newer one"
        )


def save(destination: pathlib.Path) -> None:
    """Write all that is in the database of the web here into a file, while web runs.

    Raises:
        DatabaseError: if that fails.
    """
    files.ensure_file(destination, b"", mode=0o600)
    arguments = [
        "--format=custom", "--no-owner", "--no-privileges", "--no-password",
        f"--exclude-schema={_ASIDE}*",
    ]  # fmt: skip
    with _told("saved", destination.parent.parent), _access() as (before, environment, name):
        argv = [*before, _PG_DUMP, *arguments, f"--dbname={name}"]
        process.run_on_files(argv, timeout=_LONG, env=environment, stdout=destination)


def check(dump: pathlib.Path) -> None:
    """See whether the database of the web here can take a saved content.

    Raises:
        DatabaseError: if it can't, or is not there.
    """
    with _told("filled; nothing was changed"):
        listed = dump.with_name("listed")
        argv = [*users.becoming(service.USER), _PG_RESTORE, "--list"]
        process.run_on_files(argv, timeout=_LOOK, stdin=dump, stdout=listed)
        found, here = _SAVED_FROM.search(files.read_text(listed) or ""), _server()
        files.ensure_absent(listed)
    if found and int(found[1]) > here:
        raise DatabaseError(
            f"What was saved is of PostgreSQL {found[1]}, which the {here} here can't read: give "
            f"web a database of PostgreSQL {found[1]} or newer. Nothing was changed"
        )


def load(dump: pathlib.Path, folder: pathlib.Path, time: str) -> str:
    """Have a saved content as that of the database of the web here, which must be stopped.

    What was in it makes place and is kept. Killed before its end, it has changed nothing of that.

    Args:
        dump: of `save`.
        folder: for a file of this function's, as large as the database.
        time: such as `20261123_190501`, for the name of what makes place.

    Returns:
        What made place, and where it is.

    Raises:
        DatabaseError: if that fails, and nothing was changed.
    """
    with _told("filled; nothing was changed", folder.parent):
        if web.uses_local_database():
            return f"database {local_postgresql.load(dump, time)} on this machine"
        return f"schema {_load_elsewhere(dump, folder, time)} of the same database"


def _load_elsewhere(dump: pathlib.Path, folder: pathlib.Path, time: str) -> str:
    """All in one transaction: its role may make no other database."""
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
            "PostgreSQL's programs here would run what a saved database says as programs "
            "(CVE-2025-8714): bring postgresql-client to 13.22, 14.19, 15.14, 16.10, 17.6 or "
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
    """The major version of the PostgreSQL that has the database of the web here."""
    with _access() as (before, environment, name):
        argv = [
            *before, _PSQL, "--no-psqlrc", "--quiet", "--no-password", "--tuples-only",
            "--no-align", f"--dbname={name}", "--command=SHOW server_version_num",
        ]  # fmt: skip
        said = process.run(argv, timeout=_LOOK, env=environment).stdout.strip()
    if not re.fullmatch(r"[1-9][0-9]{4,6}", said):
        raise DatabaseError(
            f"The database says that its version is {said[:40]!r}, which is not PostgreSQL's: see "
            "whose server it is. Nothing was changed"
        )
    return int(said) // 10000


@contextlib.contextmanager
def _access() -> collections.abc.Generator[tuple[list[str], dict[str, str], str]]:
    """How PostgreSQL's programs get at the database: what is before them, variables, its name."""
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
        # libpq looks at home for a certificate, and that of root is closed to web's user.
        environment = {
            "HOME": str(_ACCESS), "PGSERVICEFILE": str(about), "PGPASSFILE": str(passwords)
        }  # fmt: skip
        yield users.becoming(service.USER), environment, "service=web"
    finally:
        files.ensure_absent(_ACCESS)


@contextlib.contextmanager
def _told(what: str, folder: pathlib.Path | None = None) -> collections.abc.Generator[None]:
    """Have what PostgreSQL refuses told with the next step.

    Args:
        what: can't be done.
        folder: where a file is written meanwhile.
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
            step = "install the postgresql-client of the version that saved it on this machine"
        elif "No space left" in said:
            # A server tells it as an error of its own.
            ours = folder and "ERROR:" not in said
            step = f"make room on the disk of {folder if ours else 'the database'}"
        why = _without_rows(said) or str(error)
        raise DatabaseError(f"The database can't be {what}: {why}: {step}") from error


def _without_rows(said: str) -> str:
    """The last that PostgreSQL says of a failure, as one line, without what is in the tables."""
    lines = [line.strip() for line in said.splitlines() if not _OF_ROWS.match(line)]
    return " / ".join(list(filter(None, lines))[-3:])
