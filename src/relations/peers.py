# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What all web units of the application share, in a Juju secret that the peers point at."""

import collections.abc
import typing

import ops

from plan.state import WebSecrets
from relations import secrets

ENDPOINT: typing.Final = "peers"

_POINTER: typing.Final = "web-secrets"


def units(model: ops.Model) -> int:
    """How many units of this application there are, this one among them."""
    relation = model.get_relation(ENDPOINT)
    return 1 + (len(relation.units) if relation else 0)


class WebKeys:
    """The web's keys and its administrator's password."""

    def __init__(self, model: ops.Model, new: collections.abc.Callable[[], WebSecrets]) -> None:
        """Ask for those of this model.

        Args:
            model: this unit's.
            new: makes others, which nobody has seen.
        """
        self._model = model
        self._new = new

    def read(self) -> tuple[WebSecrets | None, bool]:
        """They, and whether they are lost.

        None before the peer relation exists, before the leader has made them, and where they are
        lost: they were made, but Juju doesn't give them.
        """
        uri = self._pointer()
        if not uri:
            return None, False
        try:
            content = secrets.content(self._model, uri)
        except secrets.WithheldError:
            return None, True
        return WebSecrets(
            admin_password=content["admin-password"],
            tsa_host_key=content["tsa-host-key"],
            session_signing_key=content["session-signing-key"],
        ), False

    def make(self, *, anew: bool = False) -> bool:
        """Have them made where there are none yet, which is the leader's to do.

        Args:
            anew: others take the place of those that were made, too.

        Returns:
            Whether they were made.
        """
        model, relation = self._model, self._model.get_relation(ENDPOINT)
        if relation is None or not model.unit.is_leader() or (self._pointer() and not anew):
            return False
        made = self._new()
        secret = model.app.add_secret(
            {
                "admin-password": made.admin_password,
                "tsa-host-key": made.tsa_host_key,
                "session-signing-key": made.session_signing_key,
            },
            description="Concourse web: admin password, TSA host key, session signing key",
        )
        relation.data[model.app][_POINTER] = secret.id or ""
        return True

    def _pointer(self) -> str:
        """The name of their secret; empty where there is none yet."""
        relation = self._model.get_relation(ENDPOINT)
        return relation.data[self._model.app].get(_POINTER, "") if relation else ""
