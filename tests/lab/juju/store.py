# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The model's state: one SQLite file, outside the machines."""

import contextlib
import json
import pathlib
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from typing import Any

SCHEMA = """
CREATE TABLE IF NOT EXISTS model (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS application (
    name TEXT PRIMARY KEY, charm TEXT, revision INTEGER DEFAULT 0, meta TEXT,
    played TEXT DEFAULT '',
    leader TEXT DEFAULT '', version TEXT DEFAULT '', next_unit INTEGER DEFAULT 0,
    binds TEXT DEFAULT '[]',
    outfit TEXT DEFAULT '{}', life TEXT DEFAULT 'alive');
CREATE TABLE IF NOT EXISTS unit (
    name TEXT PRIMARY KEY, app TEXT, number INTEGER, machine_id TEXT, machine TEXT,
    address TEXT DEFAULT '',
    life TEXT DEFAULT 'alive', status TEXT DEFAULT 'waiting',
    message TEXT DEFAULT 'waiting for machine', agent TEXT DEFAULT 'allocating',
    agent_message TEXT DEFAULT '', since TEXT DEFAULT '', rebooted INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS option (
    app TEXT, name TEXT, value TEXT, PRIMARY KEY (app, name));
CREATE TABLE IF NOT EXISTS relation (
    id INTEGER PRIMARY KEY AUTOINCREMENT, interface TEXT, life TEXT DEFAULT 'alive');
CREATE TABLE IF NOT EXISTS relation_end (
    relation INTEGER, app TEXT, endpoint TEXT, role TEXT, PRIMARY KEY (relation, app, endpoint));
-- Units that have entered the relation: their relation-created hook has run.
CREATE TABLE IF NOT EXISTS member (relation INTEGER, unit TEXT, PRIMARY KEY (relation, unit));
-- The remote units that a unit knows by relation-joined.
CREATE TABLE IF NOT EXISTS seen (
    relation INTEGER, unit TEXT, remote TEXT, PRIMARY KEY (relation, unit, remote));
CREATE TABLE IF NOT EXISTS databag (
    relation INTEGER, entity TEXT, key TEXT, value TEXT, PRIMARY KEY (relation, entity, key));
-- Owner: an application, a unit, or '' for one that the operator made.
CREATE TABLE IF NOT EXISTS secret (id TEXT PRIMARY KEY, owner TEXT, label TEXT);
CREATE TABLE IF NOT EXISTS secret_revision (
    secret TEXT, revision INTEGER, content TEXT, PRIMARY KEY (secret, revision));
CREATE TABLE IF NOT EXISTS secret_grant (
    secret TEXT, entity TEXT, relation INTEGER, PRIMARY KEY (secret, entity));
CREATE TABLE IF NOT EXISTS secret_consumer (
    secret TEXT, unit TEXT, revision INTEGER, PRIMARY KEY (secret, unit));
CREATE TABLE IF NOT EXISTS resource (app TEXT, name TEXT, path TEXT, PRIMARY KEY (app, name));
CREATE TABLE IF NOT EXISTS port (unit TEXT, port TEXT, PRIMARY KEY (unit, port));
-- What the machine agent last saw of the unit's machine.
CREATE TABLE IF NOT EXISTS address (
    unit TEXT, position INTEGER, interface TEXT, mac TEXT, address TEXT, cidr TEXT,
    PRIMARY KEY (unit, position));
-- What each unit's agent has to do, in this order. State: pending, running, failed; late: not yet.
CREATE TABLE IF NOT EXISTS event (
    id INTEGER PRIMARY KEY AUTOINCREMENT, unit TEXT, kind TEXT, relation INTEGER,
    remote_app TEXT DEFAULT '', remote_unit TEXT DEFAULT '', departing TEXT DEFAULT '',
    secret TEXT DEFAULT '', revision INTEGER DEFAULT 0, action TEXT DEFAULT '',
    state TEXT DEFAULT 'pending', attempts INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS action (
    id TEXT PRIMARY KEY, unit TEXT, name TEXT, params TEXT, status TEXT DEFAULT 'pending',
    results TEXT DEFAULT '{}', message TEXT DEFAULT '');
"""

Row = sqlite3.Row


class Store:
    """The model's database, shared by the threads of one command and readable by other commands.

    Args:
        path: of the file, made when missing.
    """

    def __init__(self, path: pathlib.Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=30
        )
        # Secrets are in it.
        path.chmod(0o600)
        self._connection.row_factory = sqlite3.Row
        self._lock = threading.RLock()
        self._depth = 0
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.executescript(SCHEMA)
        self.do("INSERT OR IGNORE INTO model VALUES ('uuid', ?)", str(uuid.uuid4()))

    @property
    def model_uuid(self) -> str:
        """The model's UUID, made with the file."""
        return str(self.value("SELECT value FROM model WHERE key = 'uuid'"))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; other threads wait. May be nested, the outermost one counts."""
        with self._lock:
            if not self._depth:
                self._connection.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
            except BaseException:
                if self._depth == 1:
                    self._connection.execute("ROLLBACK")
                raise
            else:
                if self._depth == 1:
                    self._connection.execute("COMMIT")
            finally:
                self._depth -= 1

    def do(self, sql: str, *arguments: object) -> int:
        """Run one statement; the id of the row that it inserted."""
        with self._lock:
            return int(self._connection.execute(sql, arguments).lastrowid or 0)

    def rows(self, sql: str, *arguments: object) -> list[Row]:
        """All rows of a query."""
        with self._lock:
            return self._connection.execute(sql, arguments).fetchall()

    def row(self, sql: str, *arguments: object) -> Row | None:
        """The first row of a query, if there is any."""
        with self._lock:
            return self._connection.execute(sql, arguments).fetchone()

    def value(self, sql: str, *arguments: object) -> Any:
        """The first column of the first row, None without a row."""
        row = self.row(sql, *arguments)
        return row[0] if row else None

    def column(self, sql: str, *arguments: object) -> list[Any]:
        """The first column of all rows."""
        return [row[0] for row in self.rows(sql, *arguments)]

    def unit(self, name: str) -> Row:
        """A unit that exists."""
        row = self.row("SELECT * FROM unit WHERE name = ?", name)
        assert row, name
        return row

    def application(self, name: str) -> Row:
        """An application that exists."""
        row = self.row("SELECT * FROM application WHERE name = ?", name)
        assert row, name
        return row

    def meta(self, app: str) -> dict[str, Any]:
        """What the application's charm declares (charmfile.py)."""
        return json.loads(self.application(app)["meta"])

    def databag(self, relation: int, entity: str) -> dict[str, str]:
        """What a unit or an application has committed in a relation."""
        sql = "SELECT key, value FROM databag WHERE relation = ? AND entity = ? ORDER BY key"
        return {row["key"]: row["value"] for row in self.rows(sql, relation, entity)}
