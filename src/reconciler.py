# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""One hook, from top to bottom: look, decide, change what differs, and tell."""

import contextlib
import dataclasses
import logging

import observe
import ownership
from ci.concourse import key_rotation
from ci.concourse.api import worker_view
from ci.concourse.plan import plan as concourse
from ci.concourse.plan.model import WebPlan, WorkerPlan
from ci.concourse.upgrade import upgrade
from ci.concourse.upstream import TSA_PORT
from ci.concourse.web import tls as web_tls
from ci.concourse.web import web
from ci.concourse.worker import keys as worker_keys
from ci.concourse.worker import worker
from effects import Effects, Say
from gpu_agent.diagnosis import states
from gpu_agent.model import errors, inventory
from gpu_agent.model.inventory import Gpu
from gpu_agent.model.keep import Keep
from gpu_agent.runtime.settings import GpuPlan
from lifecycle import drain, gpu_remediation, machine_claim, part_runner, reboot, unit_record
from options.part import Part
from parts import health_watch
from plan import diagnosis, gpus, messages, plan, status
from plan.labels import NO_GPU_USABLE
from plan.messages import Level, Line
from plan.model import Plan
from plan.state import UnitState
from plan.unit_id import UnitId
from relations import cos_agent, exchange, juju, offers, peers, postgresql, tls_certificates, tsa
from relations.worker_view import Seen, Sight, digest

_log = logging.getLogger(__name__)


class Reconciler:
    """Bring this unit to what its options, its relations and its machine ask for.

    Attributes:
        lines: the lines of the unit's status.
    """

    def __init__(
        self, model: juju.Model, unit: UnitId, web_keys: peers.WebKeys, say: Say, effects: Effects
    ) -> None:
        """Begin with an empty status.

        Args:
            model: Juju's, as this hook sees it.
            unit: this one.
            web_keys: those of the web, for all units of the application.
            say: reports a step that takes long.
            effects: the calls that change the machine.
        """
        self.lines: list[Line] = []
        self._model, self._unit, self._web_keys = model, unit, web_keys
        self._say, self._do = say, effects

    def reconcile(self, *, new: bool, may_reboot: bool) -> None:
        """Do all that a hook does.

        An error that an operator can fix, or that passes by itself, fails no hook.

        Args:
            new: whether the unit has not been set up before. If it can't have the machine then,
                the hook has to come again as install.
            may_reboot: whether Juju reboots the machine after this hook if it is asked to.

        Raises:
            OSError: a new unit can't have the machine.
            machine.process.CommandError: the same, as systemd refuses something.
        """
        try:
            if new:
                self._take(new=True)
            with self.told():
                if not new:
                    self._take(new=False)
                state = observe.at_unit(self._model, self._web_keys)
                state = self._equip(state, plan.make(state))
                wanted = plan.make(state)
                state = self._prepare(state, wanted)
                state = self._hand_out(state, wanted)
                state = self._offer_fewer(state, wanted)
                sick = gpu_remediation.ensure(state, plan.make(state), self._say)
                state = self._test(state, plan.make(state))
                wanted = plan.make(state)
                state = self._finish(state, wanted)
                self._reboot(state, wanted, sick, now=may_reboot)
                # A release may have been left again.
                self.lines += status.lines(state, plan.make(state), observe.at_services())
        except errors.UnknownError as error:
            self.lines.append(messages.line("machine-unreadable", text=error))
        except machine_claim.TakenError as error:
            self.lines.append(Line(Level.BLOCKED, "machine-taken", str(error)))

    def told(self) -> contextlib.AbstractContextManager[None]:
        """Report errors of what runs within it in status, in place of raising them."""
        return part_runner.told(self._unit.name, self.lines)

    def leave(self) -> None:
        """Note that this unit's removal has begun, and retire its worker.

        Raises:
            OSError: that can't be noted.
            machine.process.CommandError: systemd refuses something.
        """
        ownership.leave(self._unit, self._model.config, self._do, self._say)

    def _take(self, *, new: bool) -> None:
        """Have the machine for this unit; keys of workers that are gone are revoked before.

        Raises:
            lifecycle.machine_claim.TakenError: another unit has it.
        """
        if mine := machine_claim.has(self._unit):
            self._authorize_workers()
        mode = str(self._model.config["deployment-mode"])
        ownership.take(self._unit, mode, self._do, self._say, new=new)
        if not mine:
            self._authorize_workers()

    def _authorize_workers(self) -> None:
        """Have this machine's web, if any, let in the workers that are there and no others."""
        with self.told():
            known, _ = tsa.read_worker_keys(self._model)
            web.authorize((*known, *worker_keys.every()))

    def _equip(self, state: UnitState, wanted: Plan) -> UnitState:
        """Have the software that the host's GPUs need, and look at what that has brought."""
        changed, after = part_runner.make(state, Part.HOST, self._do.equip, wanted.host, self._say)
        if changed is False:
            return after
        seen = observe.at_unit(self._model, self._web_keys)
        return dataclasses.replace(seen, failures=after.failures)

    def _prepare(self, state: UnitState, wanted: Plan) -> UnitState:
        """Have what the services rest on: keys, what the relations ask for, the release."""
        options, stays = state.options, state.leaving or Part.WORKER in state.frozen
        key = ""
        if options.has_worker and not stays:
            _, state = part_runner.make(state, Part.WORKER, self._do.forward)
            key = key_rotation.ensure_key(self._model, state)
        elif Part.UNIT not in state.frozen and not options.has_worker:
            tsa.withdraw_worker(self._model)
        if options.has_web and not state.leaving:
            postgresql.request(self._model)
            tls_certificates.request(self._model, web_tls.request, concourse.names(state))
            # Keys made just now are ones that web has to know.
            if self._web_keys.make() or (key and key not in state.web.worker_keys):
                seen = observe.at_web(self._model, self._web_keys)
                state = dataclasses.replace(state, web=seen)
        if wanted.release:
            state = upgrade.ensure(state, wanted.release, self._say)
            self._model.unit.set_workload_version(state.installed)
        return state

    def _hand_out(self, state: UnitState, wanted: Plan) -> UnitState:
        """Have GPUs given to tasks by the wrapper and to engines' containers by our runtime.

        Returns:
            The state, with whether the wrapper had to be repaired, and with what failed.
        """
        _log_found(state, wanted)
        repaired = None
        if isinstance(wanted.gpu, GpuPlan):
            repaired, state = part_runner.make(
                state, Part.GPU, self._do.install_runtime, wanted.gpu
            )
        self._do.mount(wanted.folders, wanted.gpu)
        if wanted.unusable or (state.inventory and state.inventory.gpus):
            self._do.record_unavailable((*state.external, *wanted.unusable))
        # The runtime is nothing without the wrapper's back end.
        if not isinstance(wanted.engines, Keep) and Part.GPU not in state.frozen:
            changed, state = part_runner.make(
                state, Part.ENGINES, self._do.register_engines, wanted.engines
            )
            repaired = repaired or changed
        return dataclasses.replace(state, repaired=bool(repaired))

    def _offer_fewer(self, state: UnitState, wanted: Plan) -> UnitState:
        """Shrink the worker's offer at once if GPUs that tasks were given are gone.

        The self-test takes its time, and no task may be placed here for a GPU that is gone. The
        GPUs that are left were tested together with it. A GPU that is new is tested before it is
        offered; until then status alone names it.
        """
        said = gpus.change(state, wanted.choice)
        if said:
            self._say(said)
        left = {gpu.uuid for gpu in wanted.choice.gpus}
        fewer = bool(left) and left < {*state.handed_out} and not drain.keeps_down()
        # If all were gone, each GPU that is here now is new.
        if fewer and isinstance(wanted.worker, WorkerPlan) and not worker.has_tag(NO_GPU_USABLE):

            def say(line: str) -> None:
                self._say(f"{said}; {line}")

            _, state = part_runner.make(
                state, Part.WORKER, self._do.apply_worker, wanted.worker, say
            )
        return state

    def _test(self, state: UnitState, wanted: Plan) -> UnitState:
        """Have the self-test's verdict and the watch: no task is to meet a GPU that is sick."""
        if Part.UNIT in state.frozen:
            return state
        if state.inventory is None or state.leaving:
            self._do.remove["health watch"]()  # before the programs that it runs from
        # Without a verdict the worker is not changed.
        tested, state = part_runner.make(
            state, Part.WORKER, self._do.test, state, wanted, self._say
        )
        _, state = part_runner.make(tested or state, Part.WATCH, self._do.watch, state, wanted)
        return state

    def _finish(self, state: UnitState, wanted: Plan) -> UnitState:
        """Apply the plan to web and worker, and publish the result to the relations."""
        if isinstance(wanted.web, WebPlan):
            done, state = part_runner.make(
                state, Part.WEB, self._do.apply_web, wanted.web, self._say
            )
            if done is not None:
                self._model.unit.set_ports(wanted.web.open_port, TSA_PORT)
                key = state.web.tsa_public_key
                tsa.publish_web(self._model, wanted.web.tsa_addresses, key, state.installed)
        elif wanted.web is None:
            self._do.remove["web"]()
            self._model.unit.set_ports()
            tsa.withdraw_web(self._model)
        if isinstance(wanted.worker, WorkerPlan) and not drain.keeps_down():
            _, state = part_runner.make(
                state, Part.WORKER, self._do.apply_worker, wanted.worker, self._say
            )
        elif wanted.worker is None:
            self._do.retire_worker(worker.FAREWELL_SECONDS, self._say)
            self._do.remove["worker"]()
        if wanted.gpu is None and not wanted.folders:
            self._do.remove["runtime"]()
        if not isinstance(wanted.gpu, Keep):
            unit_record.remember_ids(wanted.choice.remember)
        peers.tell_turn(self._model, drain.word(wanted.worker))
        offers.publish(self._model, wanted.offer, state.elsewhere)
        if Part.WATCH not in state.frozen:
            port = health_watch.port(state)
            cos_agent.publish(self._model, port, web.metrics_port())
        _, state = part_runner.make(state, Part.RUN, self._do.serve_gpu_run, state, wanted)
        keys = key_rotation.tell(self._model, self._web_keys, state, wanted)
        state = dataclasses.replace(state, rotation=keys, seen=self._seen(state, wanted))
        return upgrade.settle(state, wanted, self._finish, self._say)

    def _seen(self, state: UnitState, wanted: Plan) -> Seen:
        """Return how web sees this unit's worker; a web on this unit publishes what it sees.

        A worker has no credentials of web's. So each web asks its own API and publishes to its
        workers what it sees: state and a digest of the tags. The worker compares that with its
        plan. The public charm's web and a web outside Juju publish nothing; then the connection
        to the TSA is all that is known. If a worker differs from its plan, this takes some
        seconds.
        """
        own, tags = "", ""
        if isinstance(wanted.worker, WorkerPlan):
            own, tags = wanted.worker.name, digest(wanted.worker.tags)
        found = dict[str, Sight]()
        if isinstance(wanted.web, WebPlan) and Part.WEB not in state.frozen and web.healthy():
            found = self._look_at_workers({own: tags} if own else {})
        elif wanted.web is None:
            unit_record.note_served(())
        seen = (found[own],) if own in found else state.tsa.sights if own else ()
        compared = Seen(seen, tags)
        # One that is paused, or does not answer, is seen so for that.
        since = worker_view.wrong_for(wrong=compared.wrong is not None and worker.healthy())
        return dataclasses.replace(compared, since=since)

    def _look_at_workers(self, own: dict[str, str]) -> dict[str, Sight]:
        """Return how web on this unit sees the workers that it serves, and publish it to them.

        Args:
            own: name and digest of the tags of the worker on this machine, if there is one.

        Returns:
            By worker; empty if web gives no answer.
        """
        kin = [(relation, exchange.kin(relation)) for relation in tsa.to_workers(self._model)]
        wanted = {**{one.name: one.tags for _, those in kin for one in those}, **own}
        found = worker_view.look(wanted) if wanted else {}
        if found is None:
            return {}
        # What signed off is off web's list. One that could not is, such as of a machine that is
        # gone.
        gone = unit_record.served() - {*wanted}
        left = worker_view.prune(gone) if gone else frozenset[str]()
        unit_record.note_served({*(one.name for _, those in kin for one in those), *left})
        for relation, those in kin:
            if those:
                told = {one.name: found[one.name] for one in those}
                exchange.publish_sights(self._model, relation, told)
        return found

    def _reboot(self, state: UnitState, wanted: Plan, sick: tuple[str, ...], *, now: bool) -> None:
        """Have the machine rebooted after this hook if that helps, and jobs and options let it."""
        try:
            if reboot.prepare(
                state, self._say, may=bool(wanted.reboot or sick), now=now, sick=sick
            ):
                self._model.unit.reboot()
        except errors.UnknownError as error:
            self.lines.append(status.failed(error, passes=True))


def _log_found(state: UnitState, wanted: Plan) -> None:
    """Have the unit's log say which GPUs were found, at first and whenever that changes."""
    facts = diagnosis.facts(state)
    if facts is None:
        return
    if wrong := states.blocking(facts):
        text = f"GPUs: {wrong}"
    else:
        found, given = facts.inventory, {gpu.uuid for gpu in wanted.choice.gpus}
        shown = [_words(gpu, for_tasks=gpu.uuid in given) for gpu in found.gpus]
        text = f"GPUs found: {'; '.join(shown)}; driver {found.driver}"
        text += f", CUDA {found.cuda}" if found.cuda else ""
    if unit_record.note_gpus(text):
        _log.info("%s", text)


def _words(gpu: Gpu, *, for_tasks: bool) -> str:
    size = f" {inventory.memory_gib(gpu)} GiB" if inventory.memory_gib(gpu) else ""
    out = "" if for_tasks else ", not for tasks (gpu-device-ids)"
    return f"GPU {gpu.index} {gpu.model}{size} at {gpu.pci_address}, {gpu.uuid}{out}"
