#!/usr/bin/env python3
# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Juju's front door. No work is done here, but the whole way of a hook is: `_reconcile`."""

import dataclasses

import ops

import observe as look
from actions import dispatch as actions
from ci.concourse import key_rotation as rotation
from ci.concourse.plan import plan as concourse
from ci.concourse.plan.model import WebPlan, WorkerPlan
from ci.concourse.upgrade import upgrade as release_change
from ci.concourse.upstream import TSA_PORT
from ci.concourse.web import tls as web_tls
from ci.concourse.web import web
from ci.concourse.worker import container_network, worker
from ci.concourse.worker import keys as worker_keys
from gpu_agent.health import service
from gpu_agent.model import errors
from gpu_agent.model.keep import Keep
from gpu_agent.runtime import install
from lifecycle import drain, reboot
from lifecycle import gpu_remediation as recovery
from lifecycle import machine_claim as owner
from lifecycle import part_runner as attempts
from lifecycle import unit_record as memory
from options.part import Part
from parts import health_watch as watch
from parts import selftest as automatic
from plan import plan, status
from plan.model import Plan
from plan.state import UnitState
from relations import cos_agent, juju, offers, peers, postgresql, tls_certificates, tsa
from steps import equipment, fewer, handout, lookback, ownership


class GpuCiWorkerCharm(ops.CharmBase):
    """A machine that runs Concourse's web, its worker, or both; CI tasks get its GPUs."""

    def __init__(self, framework: ops.Framework) -> None:
        super().__init__(framework)
        self._lines: list[status.Line] = []
        self._id = juju.unit_id(self)
        self._web_keys = peers.WebKeys(self, web.new_secrets)
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
        for name in actions.ALL:
            observe(on[name].action, self._on_action)

    def _on_collect_unit_status(self, event: ops.CollectStatusEvent) -> None:
        for line in self._lines:
            event.add_status(ops.StatusBase.from_name(line.kind.value, line.text))

    def _on_relation_departed(self, event: ops.RelationDepartedEvent) -> None:
        noted, goes = False, event.departing_unit == self.unit
        with attempts.told(self.unit.name, self._lines):
            # If the unit alone goes, web takes this worker's key until the -broken that follows.
            if goes and event.relation.name in tsa.WORKER_ENDPOINTS:
                ownership.leave(self._id, self.config, self._say)
            # If a web goes, its workers stay: another web may serve them.
            if goes and event.relation.name in tsa.WEB_ENDPOINTS and owner.has(self._id):
                memory.note_served(())
            noted = True
        if noted:  # Or it would start what has ended.
            self._reconcile(event)

    def _on_stop(self, _event: ops.StopEvent) -> None:
        with attempts.told(self.unit.name, self._lines):
            ownership.leave(self._id, self.config, self._say)

    def _on_remove(self, _event: ops.RemoveEvent) -> None:
        ownership.give_up(self._id)

    def _on_action(self, event: ops.ActionEvent) -> None:
        name = event.handle.kind.removesuffix("_action").replace("_", "-")
        call = actions.Call(self.unit.name, event.params, event.log, self.config, self._web_keys)
        try:
            owner.check(self._id)
            event.set_results(actions.run(name, call))
        except actions.ActionError as error:
            event.fail(str(error))
            if error.results:
                event.set_results(error.results)
        except (owner.TakenError, OSError) as error:
            event.fail(str(error))
            return
        if name in actions.CHANGING:
            self._reconcile(event)

    def _say(self, text: str) -> None:
        self.unit.status = ops.MaintenanceStatus(text)

    def _reconcile(self, event: ops.EventBase) -> None:
        """The whole way of a hook."""
        new, mode = isinstance(event, ops.InstallEvent), str(self.config["deployment-mode"])
        try:
            if new:
                self._take(mode, new=True)  # If that fails, the hook has to come again as install.
            with attempts.told(self.unit.name, self._lines):
                if not new:
                    self._take(mode, new=False)
                state = look.at_unit(self.model, self._web_keys)
                state = self._equip(state, plan.make(state))
                state = self._prepare(state, plan.make(state))
                sick = recovery.ensure(state, plan.make(state), self._say)
                state = self._test(state, plan.make(state))
                wanted = plan.make(state)
                state = self._finish(state, wanted)
                try:  # Juju reboots no machine within an action; the next event does.
                    may, now = bool(wanted.reboot or sick), not isinstance(event, ops.ActionEvent)
                    if reboot.prepare(state, self._say, may=may, now=now, sick=sick):
                        self.unit.reboot()
                except errors.UnknownError as error:
                    self._lines.append(status.failed(error, passes=True))
                # A release may have been left again.
                self._lines += status.lines(state, plan.make(state), look.at_services())
        except (errors.UnknownError, owner.TakenError) as error:
            passes = not isinstance(error, owner.TakenError)
            self._lines.append(status.failed(error, passes=passes))

    def _take(self, mode: str, *, new: bool) -> None:
        """Have the machine for this unit; keys of workers that are gone are revoked before.

        Raises:
            lifecycle.machine_claim.TakenError: another unit has it.
        """
        if mine := owner.has(self._id):
            self._authorize_workers()
        ownership.take(self._id, mode, new=new, progress=self._say)
        if not mine:
            self._authorize_workers()

    def _authorize_workers(self) -> None:
        """Have this machine's web, if any, let in the workers that are there and no others."""
        with attempts.told(self.unit.name, self._lines):
            known, _ = tsa.read_worker_keys(self.model)
            web.authorize((*known, *worker_keys.every()))

    def _equip(self, state: UnitState, wanted: Plan) -> UnitState:
        """Have the software that the host's GPUs need, and look at what that has brought."""
        changed, after = attempts.make(state, Part.HOST, equipment.ensure, wanted.host, self._say)
        if changed is False:
            return after
        seen = look.at_unit(self.model, self._web_keys)
        return dataclasses.replace(seen, failures=after.failures)

    def _prepare(self, state: UnitState, wanted: Plan) -> UnitState:
        """Have what the self-test and the services rest on: keys, the release, the wrapper."""
        options, stays = state.options, state.leaving or Part.WORKER in state.frozen
        key = ""
        if options.has_worker and not stays:
            _, state = attempts.make(state, Part.WORKER, container_network.ensure)
            key = rotation.ensure_key(self.model, state)
        elif Part.UNIT not in state.frozen and not options.has_worker:
            tsa.withdraw_worker(self.model)
        if options.has_web and not state.leaving:
            postgresql.request(self.model)
            tls_certificates.request(self.model, web_tls.request, concourse.names(state))
            # Keys made just now are ones that web has to know.
            if self._web_keys.make() or (key and key not in state.web.worker_keys):
                state = dataclasses.replace(state, web=look.at_web(self.model, self._web_keys))
        if wanted.release:
            state = release_change.ensure(state, wanted.release, self._say)
            self.unit.set_workload_version(state.installed)
        state = handout.ensure(state, wanted)
        return fewer.ensure(state, wanted, self._say)

    def _test(self, state: UnitState, wanted: Plan) -> UnitState:
        """Have the self-test's verdict and the watch: no task is to meet a GPU that is sick."""
        if Part.UNIT in state.frozen:
            return state
        if state.inventory is None or state.leaving:
            service.remove()  # before the programs that it runs from
        # Without a verdict the worker stays as it is.
        tested, state = attempts.make(
            state, Part.WORKER, automatic.ensure, state, wanted, self._say
        )
        _, state = attempts.make(tested or state, Part.WATCH, watch.ensure, state, wanted)
        return state

    def _finish(self, state: UnitState, wanted: Plan) -> UnitState:
        """Have web and worker as planned, and tell the others."""
        if isinstance(wanted.web, WebPlan):
            done, state = attempts.make(state, Part.WEB, web.apply, wanted.web, self._say)
            if done is not None:
                self.unit.set_ports(wanted.web.open_port, TSA_PORT)
                key = state.web.tsa_public_key
                tsa.publish_web(self.model, wanted.web.tsa_addresses, key, state.installed)
        elif wanted.web is None:
            web.remove()
            self.unit.set_ports()
            tsa.withdraw_web(self.model)
        if isinstance(wanted.worker, WorkerPlan) and not drain.keeps_down():
            _, state = attempts.make(state, Part.WORKER, worker.apply, wanted.worker, self._say)
        elif wanted.worker is None:
            worker.retire(worker.FAREWELL_SECONDS, self._say)
            worker.remove()
        if wanted.gpu is None and not wanted.folders:
            install.remove()
        if not isinstance(wanted.gpu, Keep):
            memory.remember_ids(wanted.choice.remember)
        peers.tell_turn(self.model, drain.word(wanted.worker))
        offers.publish(self.model, wanted.offer, state.elsewhere)
        if Part.WATCH not in state.frozen:
            cos_agent.publish(self.model, watch.port(state), web.metrics_port())
        state = lookback.tell(self.model, self._web_keys, state, wanted)
        return release_change.settle(state, wanted, self._finish, self._say)


if __name__ == "__main__":
    ops.main(GpuCiWorkerCharm)
