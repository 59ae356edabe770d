# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A web and a worker of this charm, related: what one writes into its databag the other reads.

Hooks come as Juju's do: each change of a unit's data is one relation-changed at the other side.
Both run on the rooms of one test, which each has for itself while its hook runs.
"""

import copy
import dataclasses

from ops import testing

import charm
from ci.concourse import rsa_keys as keys
from ci.concourse import service
from ci.concourse.worker import keys as worker_keys
from ci.concourse.worker.keys import ensure, every
from gpu_agent import paths
from lifecycle import unit_record as memory
from tests import once
from tests.unit.situations import database, state, tsa, workers

_FILES = {
    "worker_key": "PRIVATE",
    "worker_key.next": "_NEXT",
    "worker_key.former.pub": "_FORMER",
}


class Side:
    """One application's only unit, with its rooms."""

    def __init__(self, name, rooms, begin, endpoint, folder):
        self.name, self.endpoint, self.folder = name, endpoint, folder / name
        self.folder.mkdir()
        self.context = testing.Context(charm.GpuCiWorkerCharm, app_name=name, unit_id=0)
        self.state, self._rooms, self._own = begin, rooms, copy.deepcopy(vars(rooms))
        self.hooks = 0

    def relation(self):
        (found,) = self.state.get_relations(self.endpoint)
        return found

    @property
    def tells(self):
        return dict(self.relation().local_unit_data)

    @property
    def status(self):
        return self.state.unit_status

    def rooms(self, **changes):
        """Have this unit's rooms be otherwise."""
        self._own.update(changes)

    def __getattr__(self, name):
        """What its rooms have."""
        return self._own[name]

    def hears(self, data):
        """The other side's unit has this data: whether that is news, and then the hook for it."""
        relation = self.relation()
        if relation.remote_units_data[0] == data:
            return False
        changed = dataclasses.replace(relation, remote_units_data={0: data})
        others = [one for one in self.state.relations if one.id != relation.id]
        self.state = dataclasses.replace(self.state, relations=[*others, changed])
        self.run(self.context.on.relation_changed(changed, remote_unit=0))
        return True

    def run(self, event=None):
        """One hook, update-status if no other is named."""
        for file, name in _FILES.items():
            setattr(worker_keys, name, self.folder / file)
        paths.STATE = self.folder.with_name(f"{self.name}-state")
        memory._SERVED = paths.STATE / "served-workers.json"
        mine = vars(self._rooms)
        mine.clear()
        mine.update(self._own)
        self.hooks += 1
        try:
            self.state = self.context.run(event or self.context.on.update_status(), self.state)
        finally:
            self._own = dict(mine)

    def action(self, name, **params):
        self.run(self.context.on.action(name, params=params or None))
        return dict(self.context.action_results)


class Pair:
    """Web and worker, with real files of keys for the worker."""

    def __init__(self, rooms, monkeypatch, tmp_path):
        # In their own tests the worker's keys are real ones, in files.
        made = iter([once.rsa_key(number) for number in (10, 11, 12)])
        for room, name, answer in (
            (worker_keys, "ensure", ensure),
            (worker_keys, "every", every),
            (keys, "generate_private_key", lambda: next(made)),
            (service, "ensure_keys_folder", lambda: False),
        ):
            monkeypatch.setattr(room, name, answer)
        self.worker = Side("worker", rooms, state(relations=[tsa()]), "worker-tsa", tmp_path)
        web = state("web", [database(), workers("")])
        self.web = Side("web", rooms, web, "web-tsa", tmp_path)

    def settle(self, most=20):
        """Hand each side's data to the other until there is no more news; how many hooks."""
        for hooks in range(most):
            news = self.web.hears(self.worker.tells) or self.worker.hears(self.web.tells)
            if not news:
                return hooks
        raise AssertionError(f"they still talk after {most} hooks")
