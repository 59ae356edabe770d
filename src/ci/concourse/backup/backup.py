# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The actions `backup` and `restore`: a web's database and keys, to one file and back."""

import collections.abc
import contextlib
import dataclasses
import datetime
import errno
import json
import pathlib
import re
import typing

from ci.concourse import release
from ci.concourse.backup import archive, database
from ci.concourse.web import files as web_files
from ci.concourse.web import schema, web
from machine import files
from machine import systemd as services
from options.ssh import public_key_line
from plan import messages as problem_texts
from relations import peers
from relations.model import WebSecrets

FOLDER: typing.Final = pathlib.Path("/var/backups/gpu-ci")

_KIND: typing.Final = "gpu-ci-worker web backup/1"
_WORK: typing.Final = FOLDER / ".work"
_NAME: typing.Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}\.tar")
_DUMP: typing.Final = "database.dump"
_SECRETS: typing.Final = "secrets.json"
_WORKERS: typing.Final = "worker-keys"
# In which of Concourse's three forms it may be given.
_ENCRYPTION: typing.Final = "CONCOURSE_ENCRYPTION_KEY"

Log = collections.abc.Callable[[str], None]
Results = dict[str, str]


class BackupError(Exception):
    """There is no backup, or nothing was restored. The text says why, and the next step."""


def backup(unit: str, path: str, web_keys: peers.WebKeys, log: Log) -> Results:
    """Save what brings the web here back, while it runs.

    Args:
        unit: Juju's name of this unit.
        path: of the file; empty: one named after the unit and the time.
        web_keys: the web's.
        log: told what takes long.

    Raises:
        BackupError: if it can't be saved; no file is left.
    """
    now = _now()
    destination = _path(path or f"{FOLDER}/{unit.replace('/', '-')}-{now}.tar")
    secrets = _check_web(unit, web_keys)
    with _in_words():
        database.check_programs()
        _ensure_folders()
        if destination.exists():
            raise BackupError(f"{destination} is there already: nothing was written over it")
        log("Saving the database")
        database.save(_WORK / _DUMP)
        log(f"Writing {destination}")
        about, members = _content(unit, now, secrets)
        digest = archive.write(destination, _KIND, about, members)
    return {
        "path": str(destination),
        "sha256": digest,
        "size": f"{destination.stat().st_size >> 10} KiB",
        "concourse": about["concourse"],
        # A terminal, which juju ssh has by default, would turn each LF into CR LF.
        "next": f"juju ssh --pty=false {unit} sudo cat {destination} > {destination.name}",
    }


def restore(unit: str, path: str, name: str, web_keys: peers.WebKeys, log: Log) -> Results:
    """Have what was saved in place of what the web here has; web is stopped meanwhile.

    Args:
        unit: Juju's name of this unit.
        path: of a file that `backup` made.
        name: the application's, to say that it is meant.
        web_keys: the web's.
        log: told what takes long.

    Raises:
        BackupError: if it can't be; all is as it was.
    """
    source, application = _path(path), unit.partition("/")[0]
    if name != application:
        raise BackupError(
            f"name '{name}' is not this application: with name={application} all pipelines and "
            f"builds of the web here make place for those of {source}. Nothing was changed"
        )
    _check_web(unit, web_keys)
    with _in_words():
        database.check_programs()
        log(f"Checking {source}")
        about = archive.check(source, _KIND)
        secrets = _check_content(source, about)
        _check_unit(unit, web_keys)
        _ensure_folders()
        archive.extract(source, _DUMP, _WORK / _DUMP)
        database.check(_WORK / _DUMP)
        log("Stopping web and loading the database")
        services.ensure_stopped(web.SERVICE)
        before = database.load(_WORK / _DUMP, _WORK, _now())
        web_keys.put(secrets)
    return {
        "restored": f"{about['unit']} of {about['time']}, Concourse {about['concourse']}",
        "kept": before,
        "workers": _workers(source),
        "next": f"juju run {unit} get-admin-password, and juju status {application}",
    }


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d_%H%M%S")


def _path(text: str) -> pathlib.Path:
    """A file of the only folder that these actions write and read.

    Raises:
        BackupError: if it is another.
    """
    path = pathlib.PurePosixPath(text)
    if str(path.parent) != str(FOLDER) or not _NAME.fullmatch(path.name) or str(path) != text:
        raise BackupError(
            f"path '{text}' can't be used: use {FOLDER}/<name>.tar, of letters, digits, '.', '_' "
            "and '-'"
        )
    return pathlib.Path(text)


def _ensure_folders() -> None:
    if FOLDER.is_symlink() or FOLDER.parent.is_symlink():
        raise BackupError(f"{FOLDER} is a link, or in one: remove that")
    files.ensure_directory(FOLDER, mode=0o700)
    files.ensure_absent(_WORK)  # of an action that was killed
    files.ensure_directory(_WORK, mode=0o700)


@contextlib.contextmanager
def _in_words() -> collections.abc.Generator[None]:
    """Have what fails told as a BackupError, and no file of the work left."""
    try:
        yield
    except (archive.ArchiveError, database.DatabaseError, schema.SchemaError) as error:
        raise BackupError(str(error)) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BackupError(f"The disk of {FOLDER} is full: make room there") from error
        raise BackupError(f"{error.filename or FOLDER}: {error.strerror}") from error
    finally:
        files.ensure_absent(_WORK)


def _check_web(unit: str, web_keys: peers.WebKeys) -> WebSecrets:
    """The keys of the web here; a BackupError where there is none, or they are lost."""
    secrets, lost = web_keys.read()
    if lost:
        application = unit.partition("/")[0]
        raise BackupError(problem_texts.WEB_KEYS_LOST.format(application=application))
    if not web.is_set_up() or secrets is None or release.installed() is None:
        raise BackupError("This unit runs no web: ask one that juju status calls ready")
    return secrets


def _content(
    unit: str, now: str, secrets: WebSecrets
) -> tuple[archive.About, dict[str, pathlib.Path | bytes]]:
    """What is told of a backup, and what is in it."""
    here = release.installed()
    if here is None:
        raise BackupError("This unit runs no web: ask one that juju status calls ready")
    about = {
        "unit": unit,
        "time": now,
        "concourse": here.version,
        "schema": str(schema.current(here.path)),
    }
    kept = {"keys": dataclasses.asdict(secrets), "encryption": _encryption()}
    workers = files.read_text(web_files.AUTHORIZED) or ""
    return about, {
        _SECRETS: json.dumps(kept, indent=1).encode(),
        _WORKERS: workers.encode(),
        _DUMP: _WORK / _DUMP,
    }


def _encryption() -> dict[str, str]:
    """The key of what the database here holds encrypted, as Concourse's setting; or nothing."""
    settings = web.database_settings()
    return {name: key for name, key in settings.items() if name.startswith(_ENCRYPTION)}


def _check_content(source: pathlib.Path, about: archive.About) -> WebSecrets:
    """The keys in a backup that this unit can use; a BackupError if it can't."""
    here = release.installed()
    if here is None:
        raise BackupError("This unit runs no web: ask one that juju status calls ready")
    try:
        kept = json.loads(archive.content(source, _SECRETS))
        secrets, encryption = WebSecrets(**kept["keys"]), dict(kept["encryption"])
        needed = int(about["schema"]), about["unit"], about["time"], about["concourse"]
        # Nothing is begun that would end where one of these is missing, or is no key.
        for name in (_WORKERS, _DUMP):
            archive.content(source, name)
        for pem in (secrets.tsa_host_key, secrets.session_signing_key):
            public_key_line(pem)
    except (ValueError, KeyError, TypeError) as error:
        raise BackupError(f"{source} is not one of this charm's backups: {error!r}") from error
    if needed[0] > schema.known(here.path):
        raise BackupError(
            f"{source} is of Concourse {about['concourse']}, whose database {here.version} can't "
            f"read: upgrade this application to {about['concourse']} or later before"
        )
    if encryption and encryption != _encryption():
        raise BackupError(
            f"The database in {source} is encrypted with a key that web here does not have: give "
            f"it by the option encryption-key. On this unit, sudo tar -xOf {source} {_SECRETS} "
            "shows it"
        )
    return secrets


def _check_unit(unit: str, web_keys: peers.WebKeys) -> None:
    """A BackupError where another unit has a say in what is restored."""
    application, units = unit.partition("/")[0], web_keys.units()
    if units > 1:
        raise BackupError(
            f"{units} units of {application} use one database: juju remove-unit all but one, and "
            "add them again afterwards"
        )
    if not web_keys.is_leader():
        raise BackupError(f"The leader alone can do that: run the same on {application}/leader")


def _workers(source: pathlib.Path) -> str:
    """How many workers are let in now, and whether that were more then.

    Keys tell nothing: a worker that was taken from its web and given another makes a new one.
    """
    then = len(archive.content(source, _WORKERS).splitlines())
    now = len((files.read_text(web_files.AUTHORIZED) or "").splitlines())
    if now >= then:
        return f"{now}, which come back by themselves"
    return f"{now}, which come back by themselves; {then} were saved: juju integrate the others"
