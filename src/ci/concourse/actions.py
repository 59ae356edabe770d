# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The operator's actions on Concourse.

Each action reads only its own inputs, so a fault in another part of the unit does not stop it. It
changes only its own subject.
"""

import collections.abc
import typing

from ci.concourse.backup.backup import BackupError
from ci.concourse.key_rotation import KeyRotation, RotationError
from ci.concourse.outside import Outside
from ci.concourse.plan import messages
from ci.concourse.web import web
from ci.concourse.web.local_postgresql import DATABASE
from lifecycle.action_call import Action, ActionError, Call, Results
from relations.peers import WebKeys

CHANGING: typing.Final = frozenset({
    *("remove-local-database", "replace-web-keys", "rotate-worker-key", "rotate-tsa-key"),
    "restore",
})  # fmt: skip
"""The actions after which the charm applies the plan and updates the status."""


class Actions:
    """The actions of a unit.

    Attributes:
        by_name: each action by its name in actions.yaml.
    """

    def __init__(self, web_keys: WebKeys, rotation: KeyRotation, outside: Outside) -> None:
        """Begin with nothing.

        Args:
            web_keys: the keys of web, shared by all units of the application.
            rotation: rotates the keys of worker and TSA.
            outside: what of Concourse is on the machine.
        """
        self._web_keys, self._rotation, self._outside = web_keys, rotation, outside
        self.by_name: collections.abc.Mapping[str, Action] = {
            one.__name__.replace("_", "-"): one
            for one in (
                *(self.get_admin_password, self.remove_local_database, self.backup),
                *(self.restore, self.replace_web_keys),
                *(self.rotate_worker_key, self.rotate_tsa_key),
            )
        }

    def get_admin_password(self, call: Call) -> Results:
        """Show how to log in to the web UI, even if web cannot be changed now.

        Raises:
            ActionError: this unit runs no web, or the password is lost.
        """
        url, (secrets, lost) = self._outside.looks.url(), self._web_keys.read()
        if lost:
            raise ActionError(messages.text("web-keys-lost", application=call.application))
        if url is None or secrets is None:
            raise ActionError(
                "This unit runs no web: run the action on a unit of the web application that is "
                "ready"
            )
        return {"username": web.ADMIN, "password": secrets.admin_password, "url": url}

    def replace_web_keys(self, call: Call) -> Results:
        """Create new keys and a new password for web if Juju has lost the old ones.

        Raises:
            ActionError: the keys are not lost, or another unit is the leader.
        """
        if not self._web_keys.read()[1]:
            raise ActionError("Web's keys and password are not lost: there is nothing to replace")
        if not self._web_keys.make(anew=True):
            command = f"juju run {call.application}/leader replace-web-keys"
            raise ActionError(f"Only the leader can do that: {command}")
        return {
            "state": "new keys and password created",
            "next": f"juju run {call.application}/leader get-admin-password",
        }

    def rotate_worker_key(self, _call: Call) -> Results:
        """Begin to replace the key of this unit's worker.

        Raises:
            ActionError: this unit does not manage the key.
        """
        try:
            return self._rotation.begin_worker_key()
        except RotationError as error:
            raise ActionError(str(error)) from error

    def rotate_tsa_key(self, call: Call) -> Results:
        """Begin to replace the host key of web's TSA on all units.

        Raises:
            ActionError: this unit is not the leader, or has no keys of web.
        """
        try:
            return self._rotation.begin_host_key(force=call.params["force"])
        except RotationError as error:
            raise ActionError(str(error)) from error

    def backup(self, call: Call) -> Results:
        """Save the database and keys of web to a file that only root can read.

        Raises:
            ActionError: the backup failed, and no file is left.
        """
        try:
            path = call.params.get("path", "")
            return self._outside.backups.backup(call.unit, path, self._web_keys, call.log)
        except BackupError as error:
            raise ActionError(str(error)) from error

    def restore(self, call: Call) -> Results:
        """Replace the database and keys of web by those of a backup.

        Raises:
            ActionError: the restore failed, and nothing was changed.
        """
        path, confirm = call.params["path"], call.params["confirm"]
        try:
            return self._outside.backups.restore(
                call.unit, path, confirm, self._web_keys, call.log
            )
        except BackupError as error:
            raise ActionError(str(error)) from error

    def remove_local_database(self, call: Call) -> Results:
        """Drop a database on this machine that web no longer uses.

        Raises:
            ActionError: `confirm` does not name it, it does not exist, or it is in use.
        """
        database, confirm = self._outside.database, call.params["confirm"]
        kept = database.kept()
        if not kept:
            raise ActionError("This machine has no database of web: nothing was removed")
        aside = database.aside()
        if confirm in aside:
            database.remove_aside(confirm)
            return {"was": f"database {confirm}", "state": "removed"}
        if confirm != DATABASE:
            raise ActionError(
                f"confirm '{confirm}' does not name a database on this machine; it has "
                f"{', '.join((kept, *aside))}. Nothing was removed. "
                f"confirm={DATABASE} deletes it with all pipelines and builds"
            )
        if web.uses_local_database():
            raise ActionError(
                f"The web of this unit uses the database {kept}: nothing was removed. First set "
                "deployment-mode=worker, or integrate with another database"
            )
        if aside:
            raise ActionError(
                "The data that restore kept aside would be removed with the database "
                f"{kept}: first remove {', '.join(aside)} with confirm=<name>. Nothing was removed"
            )
        self._outside.effects.remove["database"]()
        return {"was": f"database {kept}", "state": "removed"}
