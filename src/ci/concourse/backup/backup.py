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
from ci.concourse.plan import messages
from ci.concourse.web import files as web_files
from ci.concourse.web import schema, web
from machine import files
from machine import systemd as services
from options.ssh import public_key_line
from relations import peers
from relations.model import WebSecrets

_FOLDER: typing.Final = pathlib.Path("/var/backups/gpu-ci")

_KIND: typing.Final = "gpu-ci-worker web backup/1"
_NAME: typing.Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}\.tar")
_DUMP: typing.Final = "database.dump"
_SECRETS: typing.Final = "secrets.json"
_WORKERS: typing.Final = "worker-keys"
# In which of Concourse's three forms it may be given.
_ENCRYPTION: typing.Final = "CONCOURSE_ENCRYPTION_KEY"

Log = collections.abc.Callable[[str], None]
Results = dict[str, str]


class BackupError(Exception):
    """The backup or the restore failed. The text says why, and the next step."""


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d_%H%M%S")


class Content(typing.Protocol):
    """The content of web's database; see `ci.concourse.backup.database`."""

    def check_programs(self) -> None:
        """Check that PostgreSQL's programs are installed."""
        ...

    def save(self, destination: pathlib.Path, /) -> None:
        """Save it to a file."""
        ...

    def check(self, dump: pathlib.Path, /) -> None:
        """Check that a file can be loaded."""
        ...

    def load(self, dump: pathlib.Path, folder: pathlib.Path, time: str, /) -> str:
        """Load a file. Return the name of what is kept of before."""
        ...


class Tables(typing.Protocol):
    """The version of the tables of web's database; see `ci.concourse.web.schema`."""

    def current(self, release: pathlib.Path, /) -> int:
        """Return the database's."""
        ...

    def known(self, release: pathlib.Path, /) -> int:
        """Return the newest that a release can use."""
        ...


def _release() -> release.Release | None:
    return release.installed() if web.is_set_up() else None


@dataclasses.dataclass(frozen=True)
class Backups:
    """The backups of this machine's web.

    Attributes:
        folder: where they are.
        installed: returns the Concourse of the web here; None without a web.
        content: the content of web's database.
        tables: the version of its tables.
        stop: stops a service.
        authorized: the file of the keys of workers that web lets in, a line each.
    """

    folder: pathlib.Path = _FOLDER
    installed: collections.abc.Callable[[], release.Release | None] = _release
    content: Content = database
    tables: Tables = schema
    stop: collections.abc.Callable[[str], object] = services.ensure_stopped
    authorized: pathlib.Path = web_files.AUTHORIZED

    @property
    def _work(self) -> pathlib.Path:
        return self.folder / ".work"

    def backup(self, unit: str, path: str, web_keys: peers.WebKeys, log: Log) -> Results:
        """Back up the web of this unit, while it runs.

        Args:
            unit: Juju's name of this unit.
            path: the new file; empty: a file named after the unit and the time.
            web_keys: the keys of web.
            log: shows the operator each step that takes long.

        Raises:
            BackupError: the backup failed, and no file is left.
        """
        now = _now()
        destination = self._path(path or f"{self.folder}/{unit.replace('/', '-')}-{now}.tar")
        secrets = self._check_web(unit, web_keys)
        with self._as_backup_error():
            self.content.check_programs()
            self._ensure_folders()
            if destination.exists():
                raise BackupError(
                    f"{destination} exists already and was not changed: choose another path"
                )
            log("Saving the database")
            self.content.save(self._work / _DUMP)
            log(f"Writing {destination}")
            about, members = self._content(unit, now, secrets)
            digest = archive.write(destination, _KIND, about, members)
        return {
            "path": str(destination),
            "sha256": digest,
            "size": f"{destination.stat().st_size >> 10} KiB",
            "concourse": about["concourse"],
            # The terminal that juju ssh opens by default would turn each LF into CR LF.
            "next": f"juju ssh --pty=false {unit} sudo cat {destination} > {destination.name}",
        }

    def restore(
        self, unit: str, path: str, confirm: str, web_keys: peers.WebKeys, log: Log
    ) -> Results:
        """Restore a backup on the web of this unit; web is stopped meanwhile.

        Args:
            unit: Juju's name of this unit.
            path: a file that `backup` wrote.
            confirm: the application's name, as the operator's confirmation.
            web_keys: the keys of web.
            log: shows the operator each step that takes long.

        Raises:
            BackupError: the restore failed, and nothing was changed.
        """
        source, application = self._path(path), unit.partition("/")[0]
        if confirm != application:
            raise BackupError(
                f"confirm '{confirm}' is not the name of this application. confirm={application} "
                f"replaces all pipelines and builds of this web by those of {source}. Nothing was "
                "changed"
            )
        self._check_web(unit, web_keys)
        with self._as_backup_error():
            self.content.check_programs()
            log(f"Checking {source}")
            about = archive.check(source, _KIND)
            secrets = self._check_content(source, about)
            _check_unit(unit, web_keys)
            self._ensure_folders()
            archive.extract(source, _DUMP, self._work / _DUMP)
            self.content.check(self._work / _DUMP)
            log("Stopping web and loading the database")
            self.stop(web.SERVICE)
            before = self.content.load(self._work / _DUMP, self._work, _now())
            web_keys.put(secrets)
        return {
            "state": (
                f"restored {about['unit']} of {about['time']}, Concourse {about['concourse']}"
            ),
            "was": f"kept as {before}",
            "workers": _workers(source, self.authorized),
            "next": f"juju run {unit} get-admin-password, and juju status {application}",
        }

    def _path(self, text: str) -> pathlib.Path:
        """Return the path of a file in the only folder that these actions use.

        Raises:
            BackupError: the path is elsewhere.
        """
        path = pathlib.PurePosixPath(text)
        is_here = str(path.parent) == str(self.folder) and _NAME.fullmatch(path.name)
        if not is_here or str(path) != text:
            raise BackupError(
                f"path '{text}' is not allowed: use {self.folder}/<name>.tar with letters, "
                "digits, '.', '_' and '-'"
            )
        return pathlib.Path(text)

    def _ensure_folders(self) -> None:
        if self.folder.is_symlink() or self.folder.parent.is_symlink():
            raise BackupError(f"{self.folder} or its parent is a symbolic link: remove the link")
        files.ensure_directory(self.folder, mode=0o700)
        files.ensure_absent(self._work)  # left by an action that was killed
        files.ensure_directory(self._work, mode=0o700)

    @contextlib.contextmanager
    def _as_backup_error(self) -> collections.abc.Generator[None]:
        """Report errors as a BackupError, and remove the work files."""
        try:
            yield
        except (archive.ArchiveError, database.DatabaseError, schema.SchemaError) as error:
            raise BackupError(str(error)) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise BackupError(f"The disk of {self.folder} is full: free some space") from error
            raise BackupError(f"{error.filename or self.folder}: {error.strerror}") from error
        finally:
            files.ensure_absent(self._work)

    def _check_web(self, unit: str, web_keys: peers.WebKeys) -> WebSecrets:
        """Return the keys of web.

        Raises:
            BackupError: web does not run here, or they are lost.
        """
        secrets, lost = web_keys.read()
        if lost:
            application = unit.partition("/")[0]
            raise BackupError(messages.text("web-keys-lost", application=application))
        if secrets is None or self.installed() is None:
            raise BackupError("This unit runs no web: use a unit that juju status shows as ready")
        return secrets

    def _content(
        self, unit: str, now: str, secrets: WebSecrets
    ) -> tuple[archive.About, dict[str, pathlib.Path | bytes]]:
        """Return a backup's description and its members."""
        here = self.installed()
        if here is None:
            raise BackupError("This unit runs no web: use a unit that juju status shows as ready")
        about = {
            "unit": unit,
            "time": now,
            "concourse": here.version,
            "schema": str(self.tables.current(here.path)),
        }
        kept = {"keys": dataclasses.asdict(secrets), "encryption": _encryption()}
        workers = files.read_text(self.authorized) or ""
        return about, {
            _SECRETS: json.dumps(kept, indent=1).encode(),
            _WORKERS: workers.encode(),
            _DUMP: self._work / _DUMP,
        }

    def _check_content(self, source: pathlib.Path, about: archive.About) -> WebSecrets:
        """Return the keys in a backup; raise a BackupError if this unit cannot use the backup."""
        here = self.installed()
        if here is None:
            raise BackupError("This unit runs no web: use a unit that juju status shows as ready")
        try:
            kept = json.loads(archive.content(source, _SECRETS))
            secrets, encryption = WebSecrets(**kept["keys"]), dict(kept["encryption"])
            needed = int(about["schema"]), about["unit"], about["time"], about["concourse"]
            # Fail now, before anything changes, if a member is missing or a key is not a key.
            for name in (_WORKERS, _DUMP):
                archive.content(source, name)
            for pem in (secrets.tsa_host_key, secrets.session_signing_key):
                public_key_line(pem)
        except (ValueError, KeyError, TypeError) as error:
            raise BackupError(f"{source} is not one of this charm's backups: {error!r}") from error
        if needed[0] > self.tables.known(here.path):
            raise BackupError(
                f"{source} is from Concourse {needed[3]}; Concourse {here.version} cannot read "
                f"its database: first upgrade this application to {needed[3]} or later"
            )
        if encryption and encryption != _encryption():
            raise BackupError(
                f"The database in {source} is encrypted with another key than this web has: set "
                f"the option database-encryption-key. On this unit, sudo tar -xOf {source} "
                f"{_SECRETS} shows the key"
            )
        return secrets


def _encryption() -> dict[str, str]:
    """Return Concourse's setting with the database's encryption key; empty if not encrypted."""
    settings = web.database_settings()
    return {name: key for name, key in settings.items() if name.startswith(_ENCRYPTION)}


def _check_unit(unit: str, web_keys: peers.WebKeys) -> None:
    """Raise a BackupError if another unit shares the database, or is the leader."""
    application, units = unit.partition("/")[0], web_keys.units()
    if units > 1:
        raise BackupError(
            f"{units} units of {application} share one database: remove all but one with juju "
            "remove-unit, and add them again after the restore"
        )
    if not web_keys.is_leader():
        raise BackupError(f"Only the leader can do that: run the action on {application}/leader")


def _workers(source: pathlib.Path, authorized: pathlib.Path) -> str:
    """Return how many workers web accepts now, and how many it accepted at the backup.

    The keys are not compared: a worker that left its web and joined another has a new key.
    """
    then = len(archive.content(source, _WORKERS).splitlines())
    now = len((files.read_text(authorized) or "").splitlines())
    if now >= then:
        return f"{now}, which reconnect by themselves"
    return (
        f"{now}, which reconnect by themselves; the backup has {then}: juju integrate the others"
    )
