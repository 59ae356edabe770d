# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the units of the application tell each other: whose turn it is to drain, web's secret."""

import collections.abc
import typing

import ops

from options.ssh import public_key_line
from relations import exchange, secrets, tsa
from relations.model import WebSecrets

ENDPOINT: typing.Final = "peers"

_POINTER: typing.Final = "web-secrets"
_HOST_KEY: typing.Final = "tsa-host-key"
_NEXT: typing.Final = "tsa-next-host-key"
_TURN: typing.Final = "drain"


def units(model: ops.Model) -> int:
    """How many units of this application there are, this one among them."""
    relation = model.get_relation(ENDPOINT)
    return 1 + (len(relation.units) if relation else 0)


def turns(model: ops.Model) -> tuple[tuple[str, str], ...]:
    """Return the other units of this application, each with its word about draining."""
    relation = model.get_relation(ENDPOINT)
    units = sorted(relation.units, key=lambda unit: unit.name) if relation else ()
    return tuple((unit.name, relation.data[unit].get(_TURN, "")) for unit in units if relation)


def tell_turn(model: ops.Model, word: str) -> None:
    """Tell them whether this unit has its turn, or waits for it; empty: neither."""
    relation = model.get_relation(ENDPOINT)
    if relation and relation.data[model.unit].get(_TURN, "") != word:
        relation.data[model.unit][_TURN] = word


def relations(model: ops.Model) -> list[ops.Relation]:
    """The one to the other units; none before Juju has made it."""
    relation = model.get_relation(ENDPOINT)
    return [relation] if relation else []


class WebKeys(ops.Object):
    """The web's keys and its administrator's password."""

    def __init__(
        self, charm: ops.CharmBase, new: collections.abc.Callable[[], WebSecrets]
    ) -> None:
        """Ask for those of this charm's application.

        Args:
            charm: this unit's.
            new: creates new keys.
        """
        super().__init__(charm, "web-keys")
        self._new = new
        # Old revisions of the secret, with keys that are no longer used, are removed.
        self.framework.observe(charm.on.secret_remove, self._on_secret_remove)

    def read(self) -> tuple[WebSecrets | None, bool]:
        """They, and whether they are lost.

        None before the peer relation exists, before the leader has made them, and where they are
        lost: they were made, but Juju doesn't give them.
        """
        uri = self._pointer()
        if not uri:
            return None, False
        try:
            content = secrets.content(self.model, uri, refresh=True)
        except secrets.WithheldError:
            return None, True
        return WebSecrets(
            admin_password=content["admin-password"],
            tsa_host_key=content[_HOST_KEY],
            session_signing_key=content["session-signing-key"],
            tsa_next_host_key=content.get(_NEXT, ""),
        ), False

    def make(self, *, anew: bool = False) -> bool:
        """Create web's keys if none exist; only the leader does.

        A new TSA host key replaces the old one when all related workers trust it.

        Args:
            anew: create new keys even if some exist.

        Returns:
            Whether the keys have changed.
        """
        model, relation = self.model, self.model.get_relation(ENDPOINT)
        if relation is None or not model.unit.is_leader():
            return False
        if self._pointer() and not anew:
            return not self.awaited() and self.switch()
        made = self._new()
        secret = model.app.add_secret(
            {
                "admin-password": made.admin_password,
                _HOST_KEY: made.tsa_host_key,
                "session-signing-key": made.session_signing_key,
            },
            description="Concourse web: admin password, TSA host key, session signing key",
        )
        relation.data[model.app][_POINTER] = secret.id or ""
        return True

    def put(self, kept: WebSecrets) -> bool:
        """Have these in place of those that there are, as out of a backup; the leader's to do.

        Returns:
            Whether they are others than before.
        """
        content = {
            "admin-password": kept.admin_password,
            _HOST_KEY: kept.tsa_host_key,
            "session-signing-key": kept.session_signing_key,
        }
        if kept.tsa_next_host_key:
            content[_NEXT] = kept.tsa_next_host_key
        if self._content() == content:
            return False
        self._set(content)
        return True

    def units(self) -> int:
        """How many units have these keys, or will."""
        return units(self.model)

    def is_leader(self) -> bool:
        """Whether this unit may change them."""
        return self.model.unit.is_leader()

    def begin(self, next_host_key: str) -> bool:
        """Have another TSA host key wait for its turn, in PEM. Return False where one does."""
        content = self._content()
        if content is None or _NEXT in content:
            return False
        self._set({**content, _NEXT: next_host_key})
        return True

    def switch(self) -> bool:
        """Use the next TSA host key, whether workers trust it or not. Return False without one."""
        content = self._content()
        if content is None or _NEXT not in content:
            return False
        new = content.pop(_NEXT)
        self._set({**content, _HOST_KEY: new})
        return True

    def awaited(self) -> tuple[str, ...]:
        """Return the units whose workers do not trust the next TSA host key yet.

        Workers of the public charm are left out: they trust each published key at once.
        """
        content = self._content() or {}
        if _NEXT not in content:
            return ()
        line = public_key_line(content[_NEXT])
        model, found = self.model, set[str]()
        for relation in tsa.to_workers(model):
            for one in exchange.kin(relation):
                unit = model.get_unit(one.unit)
                if not exchange.knows(relation.data[unit], line):
                    found.add(one.unit)
        if model.config["deployment-mode"] == "all" and (own := model.get_relation(ENDPOINT)):
            units = {model.unit, *own.units}
            found |= {one.name for one in units if not exchange.knows(own.data[one], line)}
        return tuple(sorted(found))

    def _content(self) -> dict[str, str] | None:
        """All of them; None where there are none, or Juju doesn't give them."""
        if not (uri := self._pointer()):
            return None
        try:
            return secrets.content(self.model, uri, refresh=True)
        except secrets.WithheldError:
            return None

    def _set(self, content: dict[str, str]) -> None:
        self.model.get_secret(id=self._pointer()).set_content(content)

    def _pointer(self) -> str:
        """The name of their secret; empty where there is none yet."""
        relation = self.model.get_relation(ENDPOINT)
        return relation.data[self.model.app].get(_POINTER, "") if relation else ""

    def _on_secret_remove(self, event: ops.SecretRemoveEvent) -> None:
        event.remove_revision()
