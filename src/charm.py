#!/usr/bin/env python3
# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Juju's front door: which event does what. The way of a hook is in reconciler.py."""

import typing

import ops

import ownership
from actions import dispatch as actions
from ci import systems
from lifecycle import machine_claim
from lifecycle.action_call import ActionError, Call
from outside import Outside
from reconciler import Reconciler
from relations import juju


class GpuCiWorkerCharm(ops.CharmBase):
    """A machine whose GPUs go to CI tasks, to containers and to people's commands.

    Attributes:
        outside: the machine; a test has a subclass with another one.
    """

    outside: typing.ClassVar[Outside] = Outside()

    def __init__(self, framework: ops.Framework) -> None:
        super().__init__(framework)
        self._id = juju.unit_id(self)
        chosen, _ = systems.chosen(self.config)
        records = self.outside.records
        self._claim = records.claim
        self._systems = {
            one.options.name: one.make(self, self._say, records) for one in self.outside.rooms
        }
        self._ci = self._systems[chosen.options.name]
        others = [one for one in self._systems.values() if one is not self._ci]
        self._reconciler = Reconciler(
            self.model, self._id, self._ci, others, self._say, self.outside
        )
        observe, on = framework.observe, self.on
        observe(on.collect_unit_status, self._on_collect_unit_status)
        for event in (
            on.install, on.start, on.config_changed, on.upgrade_charm, on.update_status,
            on.leader_elected, on.secret_changed,
        ):  # fmt: skip
            observe(event, self._reconcile)
        for endpoint in self.meta.relations:
            observe(on[endpoint].relation_created, self._reconcile)
            observe(on[endpoint].relation_changed, self._reconcile)
            observe(on[endpoint].relation_departed, self._on_relation_departed)
            observe(on[endpoint].relation_broken, self._reconcile)
        observe(on.stop, self._on_stop)
        observe(on.remove, self._on_remove)
        for name in self.meta.actions:
            observe(on[name].action, self._on_action)

    def _on_collect_unit_status(self, event: ops.CollectStatusEvent) -> None:
        for line in self._reconciler.lines:
            event.add_status(ops.StatusBase.from_name(line.level.value, line.text))

    def _on_relation_departed(self, event: ops.RelationDepartedEvent) -> None:
        noted, goes = False, event.departing_unit == self.unit
        with self._reconciler.told():
            if goes and self._claim.has(self._id):
                leaves = [one.departed(event.relation.name) for one in self._systems.values()]
                if any(leaves):
                    self._reconciler.leave()
            noted = True
        if noted:  # Or it would start what has ended.
            self._reconcile(event)

    def _on_stop(self, _event: ops.StopEvent) -> None:
        with self._reconciler.told():
            self._reconciler.leave()

    def _on_remove(self, _event: ops.RemoveEvent) -> None:
        ownership.give_up(self._id, self.outside, self._systems.values())

    def _on_action(self, event: ops.ActionEvent) -> None:
        name = event.handle.kind.removesuffix("_action").replace("_", "-")
        own = [*self._systems.values()]
        drainer, look = self._ci.drainer, self.outside.looks.gpus
        call = Call(self.unit.name, event.params, event.log, self.config, drainer, look)
        # One that belongs to a CI system which is not chosen says so by what it finds.
        added = {name: action for one in own for name, action in one.actions.items()}
        try:
            self._claim.check(self._id)
            event.set_results(actions.run(name, call, added))
        except ActionError as error:
            event.fail(str(error))
            if error.results:
                event.set_results(error.results)
        except (machine_claim.TakenError, OSError) as error:
            event.fail(str(error))
            return
        if name in actions.CHANGING.union(*(one.changing for one in own)):
            self._reconcile(event)

    def _reconcile(self, event: ops.EventBase) -> None:
        # Juju reboots no machine within an action; the next event does.
        self._reconciler.reconcile(
            new=isinstance(event, ops.InstallEvent),
            may_reboot=not isinstance(event, ops.ActionEvent),
        )

    def _say(self, text: str) -> None:
        self.unit.status = ops.MaintenanceStatus(text)


if __name__ == "__main__":
    ops.main(GpuCiWorkerCharm)
