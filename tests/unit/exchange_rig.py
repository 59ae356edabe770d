# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A web and a worker of this charm, related: what one writes into its databag the other reads.

Hooks come as Juju's do: each change of a unit's data is one relation-changed at the other side.
Each runs on a machine of its own.
"""

import dataclasses

from ci.concourse.worker.keys import WorkerKeys
from tests import once
from tests.unit.situations import Rooms, database, state, tsa, workers


class Side:
    """One application's only unit, on a machine of its own with its rooms."""

    def __init__(self, name, begin, endpoint, folder, new_key):
        self.name, self.endpoint = name, endpoint
        folder.mkdir()
        self.machine = Rooms(machine_folder=folder)
        self.folder = folder / "keys"
        self.machine.hand_in(keys=WorkerKeys(self.folder, new_key))
        self.context = self.machine.context(name)
        self.state = begin
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
        for name, value in changes.items():
            setattr(self.machine, name, value)

    def __getattr__(self, name):
        """What its rooms have."""
        return getattr(self.machine, name)

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
        self.hooks += 1
        self.state = self.context.run(event or self.context.on.update_status(), self.state)

    def action(self, name, **params):
        self.run(self.context.on.action(name, params=params or None))
        return dict(self.context.action_results)


class Pair:
    """Web and worker, with real files of keys for the worker."""

    def __init__(self, tmp_path):
        # In their own tests the worker's keys change.
        made = iter([10, 11, 12])

        def new_key():
            return once.rsa_key(next(made))

        begin = state(relations=[tsa()])
        self.worker = Side("worker", begin, "worker-tsa", tmp_path / "worker", new_key)
        begin = state("web", [database(), workers("")])
        self.web = Side("web", begin, "web-tsa", tmp_path / "web", new_key)

    def settle(self, most=20):
        """Hand each side's data to the other until there is no more news; how many hooks."""
        for hooks in range(most):
            news = self.web.hears(self.worker.tells) or self.worker.hears(self.web.tells)
            if not news:
                return hooks
        raise AssertionError(f"they still talk after {most} hooks")
