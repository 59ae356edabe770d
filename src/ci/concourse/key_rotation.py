# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Rotates the worker's key and the TSA's host key without losing a worker.

First the other side accepts the new key and reports that over the relation. Only then the new key
is used. Each step continues at the next event. Files and the peers' secret hold the current step.
"""

import collections.abc
import typing

from ci.concourse import rsa_keys as keys
from ci.concourse.looks import Looks
from ci.concourse.options.table import chosen
from ci.concourse.plan.model import WebPlan, WorkerPlan, found, planned
from ci.concourse.worker.keys import WorkerKeys
from options.part import Part
from plan.model import Plan
from plan.state import UnitState
from relations import exchange, peers, tsa
from relations import worker_view as sights
from relations.worker_view import Rotation

_OUTSIDE: typing.Final = (
    "{option} is set. Change the key at the Concourse outside Juju first, which must accept both "
    "keys, and then here with juju config {application}; see docs/how-to/rotate-keys.md"
)
_SILENT: typing.Final = (
    "{units} does not report which keys it accepts. The web of the public charm accepts every key "
    "forever, so there is nothing to rotate; a web of this charm reports after its refresh"
)


class RotationError(Exception):
    """A key can't be given another's place now; the text says why and what to do instead."""


class KeyRotation:
    """The keys of this unit, during one hook or action."""

    def __init__(self, web_keys: peers.WebKeys, keys: WorkerKeys, looks: Looks) -> None:
        """Begin with nothing.

        Args:
            web_keys: the keys that all webs share.
            keys: the worker's.
            looks: the calls that look at web and worker.
        """
        self._model, self._web_keys = web_keys.model, web_keys
        self._keys, self._looks = keys, looks

    def begin_worker_key(self) -> dict[str, str]:
        """Make the worker's next key, which takes its place once each web takes it.

        Raises:
            RotationError: the key is not this unit's to change.
        """
        application = self._model.app.name
        for option in ("worker-private-key", "tsa-hosts"):
            if self._model.config.get(option):
                raise RotationError(_OUTSIDE.format(option=option, application=application))
        if not self._keys.shown():
            raise RotationError("This unit has no worker, or none that has a key yet")
        said = tsa.read_webs(self._model)
        if said.silent:
            raise RotationError(_SILENT.format(units=" and ".join(said.silent)))
        began = self._keys.begin()
        return {
            "state": "begun" if began else "goes on: a new key already waits for web to take it",
            "fingerprint": sights.fingerprint(self._keys.second()),
            "next": f"juju status {application}: it says so until web has taken the key",
        }

    def begin_host_key(self, *, force: bool) -> dict[str, str]:
        """Make the TSA's next host key, which all webs show once all related workers know it.

        Args:
            force: wait for no worker any more.

        Raises:
            RotationError: this unit is not the leader, or web has not got keys yet.
        """
        shared, lost = self._web_keys.read()
        if shared is None:
            how = "Juju doesn't give them: see juju status" if lost else "it runs no web yet"
            raise RotationError(f"This unit has no keys of a web to rotate: {how}")
        if not self._model.unit.is_leader():
            command = f"juju run {self._model.app.name}/leader rotate-tsa-key"
            raise RotationError(f"The leader alone can do that: {command}")
        new = shared.tsa_next_host_key or self._keys.new_key()
        began = self._web_keys.begin(new)
        awaited = self._web_keys.awaited()
        if force:
            self._web_keys.switch()
        return {
            "state": "begun" if began else "goes on: a new key already waits for the workers",
            "next-public-key": keys.public_key_line(new),
            "waits-for": ", ".join(() if force else awaited) or "nobody",
            "next": (
                "add the next-public-key to tsa-public-keys of each worker that has no relation"
            ),
        }

    def look(self) -> Rotation:
        """Which keys wait for their turn."""
        awaited = self._web_keys.awaited() if self._model.unit.is_leader() else ()
        return Rotation(own=bool(self._keys.second()), awaited=awaited)

    def ensure_key(self, state: UnitState) -> str:
        """Have the worker's key, the next one in its place if web takes it, and show it to webs.

        Returns:
            It, as a line of OpenSSH.
        """
        key = self._keys.ensure(chosen(state.options).worker.private_key)
        own = map(sights.fingerprint, self._looks.authorized()) if state.options.has_web else ()
        if self._keys.take_turn((*found(state).tsa.taken, *own)):
            key = self._keys.second()
        tsa.publish_worker(self._model, self._keys.shown() or key)
        return key

    def tell(
        self, state: UnitState, wanted: Plan, rests: collections.abc.Callable[[], bool]
    ) -> Rotation:
        """Publish which keys this unit trusts and which come next, after the plan was applied.

        Args:
            state: what was found.
            wanted: what this unit is to be.
            rests: returns whether the worker of this unit is drained or paused.

        Returns:
            Which keys wait for their turn now.
        """
        own = planned(wanted)
        if isinstance(own.worker, WorkerPlan):
            known = self._looks.trusted()
            if known is not None and self._keys.is_changing() and self._looks.is_connected():
                self._keys.settle()
                tsa.publish_worker(self._model, self._keys.shown())
            # One that rests tells no tags, so that its next word has web look at it again at once.
            tags = "" if rests() else sights.digest(own.worker.tags)
            second = self._keys.second()
            beside = peers.relations(self._model) if state.options.has_web else []
            for relation in (*tsa.to_webs(self._model), *beside):
                data = relation.data[self._model.unit]
                exchange.publish_worker(data, own.worker.name, tags, second, known)
        if isinstance(own.web, WebPlan) and Part.WEB not in state.frozen:
            following, authorized = found(state).web.tsa_next_public_key, self._looks.authorized()
            for relation in tsa.to_workers(self._model):
                if exchange.kin(relation):
                    exchange.publish_web(self._model, relation, authorized, following)
        return self.look()
