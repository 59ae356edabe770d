# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run one hook: a snapshot that it reads, and changes that it has not committed yet.

Juju 4.0.15, internal/worker/uniter/runner/context/context.go: status, log lines, action logs and
the workload version are written at once; everything else only when the hook has exited with 0.
"""

import dataclasses
import json
import secrets
import threading
from collections.abc import Callable
from typing import Any

from tests.lab.juju import events
from tests.lab.juju.store import Row, Store


class ToolError(Exception):
    """A hook command was refused; the text goes to its standard error after `ERROR`."""

    status = 1


class ArgumentError(ToolError):
    """A hook command was given what it cannot mean."""

    status = 2


@dataclasses.dataclass
class SecretDraft:
    """A secret that the hook made, or gave a new revision."""

    owner: str
    content: dict[str, str]
    label: str = ""
    new: bool = False


class HookContext:
    """What the hook commands of one running hook work on.

    Args:
        store: the model.
        unit: whose hook it is.
        event: the row of the queue.
        log: takes (level, message).
        action_log: takes the lines of action-log.
    """

    def __init__(
        self,
        store: Store,
        unit: str,
        event: Row,
        log: Callable[[str, str], None],
        action_log: Callable[[str], None],
    ):
        self.store = store
        self.unit = unit
        self.app = events.app_of(unit)
        self.event = event
        self.log = log
        self.action_log = action_log
        self.id = f"{unit}-{event['kind']}-{secrets.token_hex(8)}"
        self.lock = threading.Lock()
        self.commands = 0
        self.reboot = False
        self.action_failure: str | None = None
        self.exit_status = 0
        self.said = ("", "")
        self.action_results: dict[str, Any] = {}
        self.drafts: dict[str, SecretDraft] = {}
        # Grants and removals, in order: functions that commit() calls.
        self.secret_changes: list[Callable[[], None]] = []
        self._config: dict[str, Any] | None = None
        self._bags: dict[tuple[int, str], dict[str, str]] = {}
        self._written: set[tuple[int, str]] = set()
        self._ports: set[str] | None = None
        if event["kind"] == "relation-joined":
            values = (event["relation"], unit, event["remote_unit"])
            store.do("INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", *values)

    @property
    def is_leader(self) -> bool:
        """Whether the unit leads its application."""
        return self.store.application(self.app)["leader"] == self.unit

    def need_leader(self, what: str) -> None:
        """Refuse what only a leader may do.

        Raises:
            ToolError: the unit is none.
        """
        if not self.is_leader:
            raise ToolError(f"permission denied: {what}: {self.unit} is not the leader")

    def config(self) -> dict[str, Any]:
        """The application's options, set or default; one with neither is left out."""
        if self._config is None:
            declared = self.store.meta(self.app)["options"]
            values = {k: v["default"] for k, v in declared.items() if v.get("default") is not None}
            sql = "SELECT name, value FROM option WHERE app = ?"
            values.update(
                {r["name"]: json.loads(r["value"]) for r in self.store.rows(sql, self.app)}
            )
            self._config = values
        return self._config

    def bag(self, relation: int, entity: str) -> dict[str, str]:
        """A databag as this hook sees it, its own writes included."""
        key = (relation, entity)
        if key not in self._bags:
            self._bags[key] = self.store.databag(relation, entity)
        return self._bags[key]

    def write_bag(self, relation: int, entity: str, changes: dict[str, str]) -> None:
        """Change keys of a databag; an empty value removes its key."""
        bag = self.bag(relation, entity)
        for key, value in changes.items():
            if value:
                bag[key] = value
            else:
                bag.pop(key, None)
        self._written.add((relation, entity))

    @property
    def ports(self) -> set[str]:
        """The unit's open ports (`80/tcp`, `8000-8010/udp`, `icmp`), to be changed in place."""
        if self._ports is None:
            sql = "SELECT port FROM port WHERE unit = ?"
            self._ports = set(self.store.column(sql, self.unit))
        return self._ports

    def commit(self) -> None:
        """Write all that the hook's success makes true, and tell those whom it concerns."""
        with self.store.transaction():
            # Grants before data: a unit that learns of a secret may read it.
            self._commit_secrets()
            for relation, entity in sorted(self._written):
                self._commit_bag(relation, entity)
            if self._ports is not None:
                self.store.do("DELETE FROM port WHERE unit = ?", self.unit)
                for port in sorted(self._ports):
                    self.store.do("INSERT INTO port VALUES (?, ?)", self.unit, port)

    def _commit_bag(self, relation: int, entity: str) -> None:
        bag = self._bags[relation, entity]
        if bag == self.store.databag(relation, entity):
            return
        self.store.do("DELETE FROM databag WHERE relation = ? AND entity = ?", relation, entity)
        for key, value in bag.items():
            self.store.do("INSERT INTO databag VALUES (?, ?, ?, ?)", relation, entity, key, value)
        events.databag_changed(self.store, relation, entity)

    def _commit_secrets(self) -> None:
        for secret, draft in self.drafts.items():
            if draft.new:
                sql = "INSERT INTO secret VALUES (?, ?, ?)"
                self.store.do(sql, secret, draft.owner, draft.label)
            add_revision(self.store, secret, draft.content)
        for change in self.secret_changes:
            change()


def add_revision(store: Store, secret: str, content: dict[str, str]) -> None:
    """Make a new revision, unless the content is unchanged, and notify its readers."""
    sql = "SELECT * FROM secret_revision WHERE secret = ? ORDER BY revision DESC LIMIT 1"
    latest = store.row(sql, secret)
    if latest and json.loads(latest["content"]) == content:
        return
    revision = latest["revision"] + 1 if latest else 1
    store.do("INSERT INTO secret_revision VALUES (?, ?, ?)", secret, revision, json.dumps(content))
    events.secret_changed(store, secret)
    if latest:
        events.secret_obsolete(store, secret, latest["revision"])
