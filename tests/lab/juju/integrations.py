# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Relating applications, and taking relations away, as the operator does."""

from collections.abc import Mapping
from typing import Any

from tests.lab.errors import WrongUse
from tests.lab.juju import events
from tests.lab.juju.store import Store

# One way to relate two applications: app, endpoint, other app, its endpoint, interface.
Match = tuple[str, str, str, str, str]


class Integrations:
    """The relations of a model.

    Args:
        store: the model's.
    """

    def __init__(self, store: Store):
        self.store = store

    def make_peers(self, app: str, endpoints: Mapping[str, Mapping[str, Any]]) -> None:
        """Make the peer relations of a new application."""
        for endpoint, spec in endpoints.items():
            if spec["role"] == "peers":
                relation = self._new(spec["interface"])
                sql = "INSERT INTO relation_end VALUES (?, ?, ?, 'peers')"
                self.store.do(sql, relation, app, endpoint)

    def _new(self, interface: str) -> int:
        return self.store.do("INSERT INTO relation (interface) VALUES (?)", interface)

    def _end(self, text: str) -> tuple[str, str]:
        app, _, endpoint = text.partition(":")
        if not self.store.row("SELECT 1 FROM application WHERE name = ?", app):
            have = ", ".join(self.store.column("SELECT name FROM application ORDER BY name"))
            raise WrongUse(f"application {app!r} not found: have {have or 'none'}")
        endpoints = self.store.meta(app)["endpoints"]
        if endpoint and endpoint not in endpoints:
            raise WrongUse(f"{app} has no endpoint {endpoint!r}: have {', '.join(endpoints)}")
        return app, endpoint

    def _matches(self, one: str, two: str) -> list[Match]:
        """Every pair of endpoints that the two could be related by."""
        (app, wanted), (other, other_wanted) = self._end(one), self._end(two)
        if app == other:
            raise WrongUse(f"cannot relate {app} to itself")
        found: list[Match] = []
        for endpoint, spec in self.store.meta(app)["endpoints"].items():
            for remote, remote_spec in self.store.meta(other)["endpoints"].items():
                roles = {spec["role"], remote_spec["role"]}
                if (
                    roles == {"provides", "requires"}
                    and spec["interface"] == remote_spec["interface"]
                    and wanted in ("", endpoint)
                    and other_wanted in ("", remote)
                ):
                    found.append((app, endpoint, other, remote, spec["interface"]))
        return found

    def _existing(self, match: Match) -> int | None:
        sql = (
            "SELECT a.relation FROM relation_end a JOIN relation_end b ON a.relation = b.relation "
            "WHERE a.app = ? AND a.endpoint = ? AND b.app = ? AND b.endpoint = ?"
        )
        return self.store.value(sql, *match[:4])

    def related(self, one: str, two: str) -> bool:
        """Whether the two endpoints are related.

        Raises:
            WrongUse: no such application or endpoint.
        """
        return any(self._existing(match) for match in self._matches(one, two))

    def integrate(self, one: str, two: str) -> int:
        """Relate two applications, by `app` or `app:endpoint` each; the relation's id.

        Raises:
            WrongUse: they do not fit, fit in several ways, or are related already.
        """
        matches = self._matches(one, two)
        if len(matches) != 1:
            ways = "; ".join(f"{a}:{x} {b}:{y}" for a, x, b, y, _ in matches)
            why = f"ambiguous, one of: {ways}" if ways else "no endpoints fit together"
            raise WrongUse(f"cannot integrate {one} {two}: {why}")
        match = matches[0]
        if self._existing(match):
            raise WrongUse(f"cannot integrate {one} {two}: already exists")
        app, endpoint, other, remote, interface = match
        with self.store.transaction():
            relation = self._new(interface)
            for name, end in ((app, endpoint), (other, remote)):
                role = self.store.meta(name)["endpoints"][end]["role"]
                self.store.do(
                    "INSERT INTO relation_end VALUES (?, ?, ?, ?)", relation, name, end, role
                )
            events.begin_relation(self.store, relation)
        return relation

    def remove(self, one: str, two: str) -> None:
        """Remove the relation of two applications.

        Raises:
            WrongUse: there is none.
        """
        found = [r for r in map(self._existing, self._matches(one, two)) if r]
        if len(found) != 1:
            raise WrongUse(
                f"{one} and {two} are not related" if not found else "name the endpoints"
            )
        with self.store.transaction():
            events.end_relation(self.store, found[0])
