# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The last step of a hook: tell the others and people, and look at how web sees the workers.

A worker has no credentials of web's. So each web asks its own API, tells its workers what it sees
(state and a digest of the tags), and the worker compares that with what it should be. The public
charm's web, and one outside Juju, tell nothing; then the connection to the TSA is what is known.
"""

import dataclasses

from ci.concourse import key_rotation as rotation
from ci.concourse.api import worker_view as registered
from ci.concourse.plan.model import WebPlan, WorkerPlan
from ci.concourse.web import web
from ci.concourse.worker import worker
from lifecycle import part_runner as attempts
from lifecycle import unit_record as memory
from options.part import Part
from parts import gpu_run as parts_gpu_run
from plan.model import Plan
from plan.state import UnitState
from relations import exchange, juju, peers, tsa
from relations import worker_view as sights
from relations.worker_view import Seen, Sight


def tell(model: juju.Model, web_keys: peers.WebKeys, state: UnitState, wanted: Plan) -> UnitState:
    """Tell the others of keys and workers here, once all is as planned, and have gpu-run.

    Takes some seconds where web sees a worker otherwise than it should be.

    Returns:
        The state with what web sees of this unit's worker, and the keys that wait.
    """
    _, state = attempts.make(state, Part.RUN, parts_gpu_run.ensure, state, wanted)
    keys = rotation.tell(model, web_keys, state, wanted)
    own, tags = "", ""
    if isinstance(wanted.worker, WorkerPlan):
        own, tags = wanted.worker.name, sights.digest(wanted.worker.tags)
    found = dict[str, Sight]()
    if isinstance(wanted.web, WebPlan) and Part.WEB not in state.frozen and web.healthy():
        found = _look(model, {own: tags} if own else {})
    elif wanted.web is None:
        memory.note_served(())
    seen = (found[own],) if own in found else state.tsa.sights if own else ()
    compared = Seen(seen, tags)
    # One that is paused, or does not answer, is seen so for that.
    since = registered.wrong_for(wrong=compared.wrong is not None and worker.healthy())
    return dataclasses.replace(
        state, rotation=keys, seen=dataclasses.replace(compared, since=since)
    )


def _look(model: juju.Model, own: dict[str, str]) -> dict[str, Sight]:
    """How web here sees the workers that it serves, which are told; nothing if it can't tell."""
    kin = [(relation, exchange.kin(relation)) for relation in tsa.to_workers(model)]
    wanted = {**{one.name: one.tags for _, those in kin for one in those}, **own}
    found = registered.look(wanted) if wanted else {}
    if found is None:
        return {}
    # What signed off is off web's list. One that could not is, such as of a machine that is gone.
    gone = memory.served() - {*wanted}
    left = registered.prune(gone) if gone else frozenset[str]()
    memory.note_served({*(one.name for _, those in kin for one in those), *left})
    for relation, those in kin:
        if those:
            told = {one.name: found[one.name] for one in those}
            exchange.publish_sights(model, relation, told)
    return found
