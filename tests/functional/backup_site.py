# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A unit whose web has its database on a PostgreSQL of the test's own, saved and filled again."""

import contextlib
import pathlib

import pytest

from ci.concourse import release, service
from ci.concourse.backup import backup as action
from ci.concourse.backup import database
from ci.concourse.web import web
from machine import files
from relations.model import WebSecrets
from tests import once
from tests.functional import postgresql

SECRETS = WebSecrets("password", once.rsa_key(1), once.rsa_key(2), once.rsa_key(3))
TABLES = """
CREATE EXTENSION IF NOT EXISTS pgcrypto;
CREATE TYPE state AS ENUM ('paused', 'running');
CREATE TABLE pipelines (id serial PRIMARY KEY, name text UNIQUE, state state, config text);
CREATE TABLE events (id bigint) ;
CREATE TABLE events_1 () INHERITS (events);
INSERT INTO pipelines (name, state, config)
  SELECT 'p' || n, 'running', repeat('x', 1000) FROM generate_series(1, 50) n;
"""


class WebKeys:
    """Those of one unit, as Juju has them."""

    def __init__(self):
        self.secrets, self.lost, self.number, self.leads = SECRETS, False, 1, True

    def read(self):
        return self.secrets, self.lost

    def put(self, kept):
        self.secrets = kept
        return True

    def units(self):
        return self.number

    def is_leader(self):
        return self.leads


class Tables:
    """The version of the tables, and the newest that the release of this unit can use."""

    def __init__(self, unit):
        self.unit = unit

    def current(self, _):
        return 7

    def known(self, _):
        return self.unit.form


@contextlib.contextmanager
def running():
    with postgresql.running() as server:
        server.changed, server.saved = True, b""
        yield server


def unit_on(server, tmp_path, monkeypatch):
    """The unit, and a database with 50 pipelines."""
    if server.changed:
        server.sql("DROP DATABASE concourse WITH (FORCE)", "postgres")
        server.sql("CREATE DATABASE concourse OWNER web", "postgres")
        server.sql(TABLES, user="web")
        server.changed = False
    here = WebKeys()
    here.server, here.stopped, here.encryption, here.form = server, [], {}, 7
    here.folder = tmp_path / "backups"
    here.backups = action.Backups(
        folder=here.folder,
        installed=lambda: release.Release("8.3.0", pathlib.Path("/r")),
        tables=Tables(here),
        stop=here.stopped.append,
        authorized=tmp_path / "authorized",
    )
    # There may be no user concourse on this machine, who could not get into that folder either.
    monkeypatch.setattr(service, "USER", "nobody")
    monkeypatch.setattr(database, "_ACCESS", server.folder / "access")
    monkeypatch.setattr(web, "uses_local_database", lambda: False)
    monkeypatch.setattr(web, "database_settings", lambda: server.settings() | here.encryption)
    (tmp_path / "authorized").write_text("ssh-rsa AAAA\nssh-rsa BBBB\n")
    return here


def save(here, path=""):
    return here.backups.backup("web/0", path, here, lambda _: None)


def kept(here):
    """Path of a backup that was made once, without a key of encryption."""
    path = here.folder / "kept.tar"
    if not here.server.saved:
        save(here, str(path))
        here.server.saved = path.read_bytes()
    files.ensure_directory(here.folder, mode=0o700)
    path.write_bytes(here.server.saved)
    return str(path)


def restore(here, path, name="web"):
    done = here.backups.restore("web/3", path, name, here, lambda _: None)
    here.server.changed = True
    return done


def writes_script(argv):
    """Whether a command is the one that makes SQL of what was saved."""
    return "/usr/bin/pg_restore" in argv and "--file=-" in argv


def pipelines(server, where="public"):
    return server.sql(f"SELECT count(*) FROM {where}.pipelines")


def everything(server):
    return server.sql(
        "SELECT nspname || '.' || relname FROM pg_class c JOIN pg_namespace n ON n.oid = "
        "relnamespace WHERE nspname !~ '^pg_|information' ORDER BY 1"
    )


def unchanged(here, path, words):
    before = everything(here.server), here.secrets
    with pytest.raises(action.BackupError, match=words):
        restore(here, path)
    assert (everything(here.server), here.secrets) == before
    assert pipelines(here.server) == ["50"]
    assert not (here.folder / ".work").exists()
