# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Secrets that the operator makes and grants to applications."""

from collections.abc import Mapping

from tests.lab.errors import WrongUse
from tests.lab.juju import secret_tools
from tests.lab.juju.context import ToolError, add_revision
from tests.lab.juju.store import Store


class UserSecrets:
    """The operator's secrets in a model.

    Args:
        store: the model's.
    """

    def __init__(self, store: Store):
        self.store = store

    def add(self, name: str, content: Mapping[str, str]) -> str:
        """Make a secret of the operator's; its URI.

        Raises:
            WrongUse: a key that Juju would refuse, or a name that is taken.
        """
        if self.store.row("SELECT 1 FROM secret WHERE owner = '' AND label = ?", name):
            raise WrongUse(f"secret {name!r} is there already: use secret update")
        secret = secret_tools.new_id()
        with self.store.transaction():
            self.store.do("INSERT INTO secret VALUES (?, '', ?)", secret, name)
            self._set_content(secret, content)
        return f"secret:{secret}"

    def update(self, name: str, content: Mapping[str, str]) -> None:
        """Give an operator's secret a new revision.

        Raises:
            WrongUse: no such secret, or a key that Juju would refuse.
        """
        with self.store.transaction():
            self._set_content(self._user_secret(name), content)

    def _set_content(self, secret: str, content: Mapping[str, str]) -> None:
        try:
            add_revision(self.store, secret, secret_tools.check_content(dict(content)))
        except ToolError as error:
            raise WrongUse(str(error)) from error

    def _user_secret(self, name: str) -> str:
        sql = "SELECT id FROM secret WHERE owner = '' AND (label = ? OR id = ?)"
        secret = self.store.value(sql, name, secret_tools.plain_id(name))
        if not secret:
            raise WrongUse(f"you have no secret {name!r}: make it with secret add")
        return str(secret)

    def grant(self, name: str, app: str) -> None:
        """Let an application read an operator's secret.

        Raises:
            WrongUse: no such secret or application.
        """
        if not self.store.row("SELECT 1 FROM application WHERE name = ?", app):
            raise WrongUse(f"application {app!r} not found")
        secret = self._user_secret(name)
        # As in Juju, no unit is notified: the operator continues with `config`.
        self.store.do("INSERT OR REPLACE INTO secret_grant VALUES (?, ?, NULL)", secret, app)
