# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Rotates the worker's key and the TSA's host key without losing a worker.

First the other side accepts the new key and reports that over the relation. Only then the new key
is used. Each step continues at the next event. Files and the peers' secret hold the current step.
"""

import typing

from ci.concourse import rsa_keys as keys
from ci.concourse.options.table import chosen
from ci.concourse.plan.model import WebPlan, WorkerPlan, found, planned
from ci.concourse.web import web
from ci.concourse.worker import keys as worker_keys
from ci.concourse.worker import worker
from lifecycle import drain
from options.part import Part
from plan.model import Plan
from plan.state import UnitState
from relations import exchange, juju, peers, tsa
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


def begin_worker_key(model: juju.Model) -> dict[str, str]:
    """Make the worker's next key, which takes its place once each web takes it.

    Raises:
        RotationError: the key is not this unit's to change.
    """
    application = model.app.name
    for option in ("worker-private-key", "tsa-hosts"):
        if model.config.get(option):
            raise RotationError(_OUTSIDE.format(option=option, application=application))
    if not worker_keys.shown():
        raise RotationError("This unit has no worker, or none that has a key yet")
    said = tsa.read_webs(model)
    if said.silent:
        raise RotationError(_SILENT.format(units=" and ".join(said.silent)))
    began = worker_keys.begin()
    return {
        "state": "begun" if began else "goes on: a new key already waits for web to take it",
        "fingerprint": sights.fingerprint(worker_keys.second()),
        "next": f"juju status {application}: it says so until web has taken the key",
    }


def begin_host_key(web_keys: peers.WebKeys, *, force: bool) -> dict[str, str]:
    """Make the TSA's next host key, which all webs show once all related workers know it.

    Args:
        web_keys: the keys that all webs share.
        force: wait for no worker any more.

    Raises:
        RotationError: this unit is not the leader, or web has not got keys yet.
    """
    model = web_keys.model
    shared, lost = web_keys.read()
    if shared is None:
        how = "Juju doesn't give them: see juju status" if lost else "it runs no web yet"
        raise RotationError(f"This unit has no keys of a web to rotate: {how}")
    if not model.unit.is_leader():
        command = f"juju run {model.app.name}/leader rotate-tsa-key"
        raise RotationError(f"The leader alone can do that: {command}")
    new = shared.tsa_next_host_key or keys.generate_private_key()
    began = web_keys.begin(new)
    awaited = web_keys.awaited()
    if force:
        web_keys.switch()
    return {
        "state": "begun" if began else "goes on: a new key already waits for the workers",
        "next-public-key": keys.public_key_line(new),
        "waits-for": ", ".join(() if force else awaited) or "nobody",
        "next": ("add the next-public-key to tsa-public-keys of each worker that has no relation"),
    }


def look(web_keys: peers.WebKeys) -> Rotation:
    """Which keys wait for their turn."""
    awaited = web_keys.awaited() if web_keys.model.unit.is_leader() else ()
    return Rotation(own=bool(worker_keys.second()), awaited=awaited)


def ensure_key(model: juju.Model, state: UnitState) -> str:
    """Have the worker's key, the next one in its place if web takes it, and show it to webs.

    Returns:
        It, as a line of OpenSSH.
    """
    key = worker_keys.ensure(chosen(state.options).worker.private_key)
    own = map(sights.fingerprint, web.authorized()) if state.options.has_web else ()
    if worker_keys.take_turn((*found(state).tsa.taken, *own)):
        key = worker_keys.second()
    tsa.publish_worker(model, worker_keys.shown() or key)
    return key


def tell(model: juju.Model, web_keys: peers.WebKeys, state: UnitState, wanted: Plan) -> Rotation:
    """Publish which keys this unit trusts and which come next, after the plan was applied.

    Returns:
        Which keys wait for their turn now.
    """
    own = planned(wanted)
    if isinstance(own.worker, WorkerPlan):
        known = worker.trusted()
        if known is not None and worker_keys.is_changing() and worker.is_connected():
            worker_keys.settle()
            tsa.publish_worker(model, worker_keys.shown())
        # One that rests tells no tags, so that its next word has web look at it again at once.
        tags = "" if drain.rests() else sights.digest(own.worker.tags)
        second = worker_keys.second()
        beside = peers.relations(model) if state.options.has_web else []
        for relation in (*tsa.to_webs(model), *beside):
            data = relation.data[model.unit]
            exchange.publish_worker(data, own.worker.name, tags, second, known)
    if isinstance(own.web, WebPlan) and Part.WEB not in state.frozen:
        following, authorized = found(state).web.tsa_next_public_key, web.authorized()
        for relation in tsa.to_workers(model):
            if exchange.kin(relation):
                exchange.publish_web(model, relation, authorized, following)
    return look(web_keys)
