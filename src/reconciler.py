# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""One hook, from top to bottom: look, decide, change what differs, and tell."""

import contextlib
import dataclasses
import logging

import observe
import ownership
from ci.system import CiSystem, Place
from effects import Say
from gpu_agent.diagnosis import states
from gpu_agent.model import errors, inventory
from gpu_agent.model.inventory import Gpu
from gpu_agent.model.keep import Keep
from gpu_agent.runtime.settings import GpuPlan
from lifecycle import drain, machine_claim, part_runner
from lifecycle.reboot import Reboots
from options.part import Part
from outside import Outside
from parts import health_watch
from plan import diagnosis, gpus, host_software, messages, plan, status
from plan.messages import Line
from plan.model import Plan
from plan.state import UnitState
from plan.unit_id import UnitId
from relations import cos_agent, juju, offers, peers

_log = logging.getLogger(__name__)


class Reconciler:
    """Bring this unit to what its options, its relations and its machine ask for.

    Attributes:
        lines: the lines of the unit's status.
    """

    def __init__(
        self,
        model: juju.Model,
        unit: UnitId,
        ci: CiSystem,
        others: ownership.Systems,
        say: Say,
        outside: Outside,
    ) -> None:
        """Begin with an empty status.

        Args:
            model: Juju's, as this hook sees it.
            unit: this one.
            ci: the CI system that its options choose.
            others: the CI systems that they do not choose.
            say: reports a step that takes long.
            outside: the machine.
        """
        self.lines: list[Line] = []
        self._model, self._unit = model, unit
        self._ci, self._others = ci, others
        self._say, self._outside = say, outside
        self._do, self._records = outside.effects, outside.records

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
                state = self._equip(self._look())
                state = self._leave_other_systems(state)
                wanted = plan.make(state, self._ci)
                state = self._run(Place.KEYS, state, wanted)
                state = self._run(Place.RELEASE, state, wanted)
                state, wanted = self._hand_out(state, wanted)
                state = self._run(Place.POOL, state, wanted)
                sick = self._do.remedy(self._records.remediation, state, wanted, self._say)
                state = self._test(state, wanted)
                # Again, since failures and the self-test's verdict are known now.
                wanted = plan.make(state, self._ci)
                state = self._run(Place.SERVICES, state, wanted)
                state = self._finish(state, wanted)
                state = self._run(Place.PUBLISH, state, wanted)
                self._reboot(state, wanted, sick, now=may_reboot)
                self._tell(state)
        except errors.UnknownError as error:
            self.lines.append(messages.line("machine-unreadable", text=error))
        except machine_claim.TakenError as error:
            self.lines.append(error.line)

    def told(self) -> contextlib.AbstractContextManager[None]:
        """Report errors of what runs within it in status, in place of raising them."""
        return part_runner.told(self._unit.name, self.lines)

    def leave(self) -> None:
        """Note that this unit's removal has begun, and retire what takes its jobs.

        Raises:
            OSError: that can't be noted.
            machine.process.CommandError: systemd refuses something.
        """
        systems = [self._ci, *self._others]
        ownership.leave(self._unit, self._model.config, self._records, systems, self._say)

    def _take(self, *, new: bool) -> None:
        """Have the machine for this unit; workers that are gone are refused before.

        Raises:
            lifecycle.machine_claim.TakenError: another unit has it.
        """
        if mine := self._records.claim.has(self._unit):
            self._revoke()
        mode, systems = str(self._model.config["deployment-mode"]), [self._ci, *self._others]
        ownership.take(self._unit, mode, self._outside, systems, self._say, new=new)
        if not mine:
            self._revoke()

    def _revoke(self) -> None:
        with self.told():
            for system in (self._ci, *self._others):
                system.revoke()

    def _look(self) -> UnitState:
        return observe.at_unit(self._model, self._ci, self._outside.looks, self._records)

    def _equip(self, state: UnitState) -> UnitState:
        """Have the software that the host's GPUs need, and look at what that has brought."""
        keeps = state.leaving or Part.UNIT in state.frozen
        wanted = Keep.AS_IS if keeps else host_software.make(state)
        changed, after = part_runner.make(
            state, Part.HOST, self._do.equip, wanted, self._ci.drainer, self._say
        )
        if changed is False:
            return after
        return dataclasses.replace(self._look(), failures=after.failures)

    def _leave_other_systems(self, state: UnitState) -> UnitState:
        """Take away a CI system that the unit had before; its jobs have some time to end.

        Its programs go last, since the GPU runtime may still use them (_finish). A pause stays; a
        drain was for the CI system that goes, or begins again.
        """
        if state.leaving or Part.UNIT in state.frozen:
            return state
        for other in self._others:
            if other.is_here():
                self._records.unit.set_removing(other.name)
                self._say(f"Removing the CI system {other.name}")
                ownership.retire(self._model.config, [other], self._say)
                drain.forget_drain(self._records)
                ownership.remove_services(other)
                state = dataclasses.replace(state, rests=self._records.drain.rests())
        return state

    def _run(self, place: Place, state: UnitState, wanted: Plan) -> UnitState:
        """Run the steps that the CI system has at this place."""
        for step in self._ci.steps.get(place, ()):
            state = step(state, wanted)
        return state

    def _hand_out(self, state: UnitState, wanted: Plan) -> tuple[UnitState, Plan]:
        """Have GPUs given to tasks and to engines' containers by the GPU runtime.

        Returns:
            The state, with whether the runtime had to be repaired, and with what failed. And the
            plan, in which the GPUs stay as they are if the runtime could not be installed.
        """
        self._log_found(state, wanted)
        if changed := gpus.change(state, wanted.choice):
            self._say(changed)
        repaired = None
        if isinstance(wanted.gpu, GpuPlan):
            repaired, state = part_runner.make(
                state, Part.GPU, self._do.install_runtime, wanted.gpu
            )
        self._do.mount(wanted.ci.folders, wanted.gpu, state.agent.runc, state.agent.tasks)
        if Part.UNIT not in state.frozen:
            self._do.close(wanted.closed)
        if wanted.unusable or (state.inventory and state.inventory.gpus):
            self._do.record_unavailable((*state.external, *wanted.unusable))
        # The engines' runtime is nothing without that of tasks.
        if not isinstance(wanted.engines, Keep) and Part.GPU not in state.frozen:
            registered, state = part_runner.make(
                state, Part.ENGINES, self._do.register_engines, wanted.engines
            )
            repaired = repaired or registered
        if Part.GPU in state.frozen and wanted.gpu:
            wanted = dataclasses.replace(wanted, gpu=Keep.AS_IS)
        return dataclasses.replace(state, repaired=bool(repaired)), wanted

    def _test(self, state: UnitState, wanted: Plan) -> UnitState:
        """Have the self-test's verdict and the health service: no task may meet a sick GPU."""
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
        """Remove what nothing uses, and publish what this unit gives to tasks."""
        if wanted.gpu is None and not wanted.ci.folders:
            self._do.remove["runtime"]()
        if not isinstance(wanted.gpu, Keep):
            noted = self._records.unit
            noted.remember_ids(wanted.choice.remember)
            for other in (one for one in self._others if noted.is_removing(one.name)):
                ownership.remove_programs(other)
                noted.set_removed()
        self._ci.drainer.give_up_overdue()
        word = drain.word(self._records, takes_jobs=wanted.ci.takes_jobs)
        peers.tell_turn(self._model, word)
        offers.publish(self._model, wanted.offer, state.elsewhere)
        if Part.WATCH not in state.frozen:
            port = health_watch.port(state)
            cos_agent.publish(self._model, port, self._ci.metrics_port())
        _, state = part_runner.make(state, Part.RUN, self._do.serve_gpu_run, state, wanted)
        return state

    def _reboot(self, state: UnitState, wanted: Plan, sick: tuple[str, ...], *, now: bool) -> None:
        """Have the machine rebooted after this hook if that helps, and jobs and options let it."""
        reboots = Reboots(self._ci.drainer, self._records, self._say)
        try:
            if reboots.prepare(state, may=bool(wanted.reboot or sick), now=now, sick=sick):
                self._model.unit.reboot()
        except errors.UnknownError as error:
            self.lines.append(status.failed(error, passes=True))

    def _tell(self, state: UnitState) -> None:
        """Make the lines of the status."""
        # A release may have been rolled back.
        wanted = plan.make(state, self._ci)
        running = observe.at_services(self._ci.drainer, self._outside.looks)
        added = self._ci.status(state, wanted, rests=running.rest is not None)
        left = [note for one in self._others for note in one.left_behind(state)]
        added = dataclasses.replace(added, notes=(*added.notes, *left))
        self.lines += status.lines(state, wanted, running, added)

    def _log_found(self, state: UnitState, wanted: Plan) -> None:
        """Have the unit's log say which GPUs were found, at first and whenever that changes."""
        facts = diagnosis.facts(state)
        if facts is None:
            return
        if wrong := states.blocking(facts):
            text = f"GPUs: {wrong}"
        else:
            found, given = facts.inventory, {gpu.uuid for gpu in wanted.choice.gpus}
            shown = [_words(gpu, for_tasks=gpu.uuid in given) for gpu in found.gpus]
            text = f"GPUs found: {'; '.join(shown)}"
            text += f"; driver {found.driver}" if found.driver else ""
            text += f", CUDA {found.cuda}" if found.cuda else ""
        if self._records.unit.note_gpus(text):
            _log.info("%s", text)


def _words(gpu: Gpu, *, for_tasks: bool) -> str:
    size = f" {inventory.memory_gib(gpu)} GiB" if inventory.memory_gib(gpu) else ""
    out = "" if for_tasks else ", not for tasks (gpu-device-ids)"
    return f"GPU {gpu.index} {gpu.model}{size} at {gpu.pci_address}, {gpu.uuid}{out}"
