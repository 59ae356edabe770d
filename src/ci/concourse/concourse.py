# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Concourse on a unit, during one hook: what it adds to the hook's places."""

import collections.abc
import dataclasses
import typing

from ci.concourse import agent_view, former_owner, observe
from ci.concourse.actions import CHANGING, Actions
from ci.concourse.key_rotation import KeyRotation
from ci.concourse.options.table import OPTIONS
from ci.concourse.outside import Outside
from ci.concourse.plan import plan as concourse
from ci.concourse.plan import status
from ci.concourse.plan.model import WebPlan, WorkerPlan, found, noted, planned
from ci.concourse.upgrade import upgrade
from ci.concourse.upstream import TSA_PORT, WEB_REQUEST_TIMEOUT
from ci.concourse.worker import worker
from ci.system import Place, Remains, Remove, Say, Step
from gpu_agent.model.keep import Keep
from gpu_agent.runtime.settings import GpuPlan
from lifecycle import part_runner
from lifecycle.action_call import Action
from lifecycle.drain import Drainer
from lifecycle.records import Records
from options.part import Part
from options.table import Options
from plan import gpus, plan
from plan.agent_view import AgentView
from plan.ci_plan import CiPlan, CiStatus, WaitLimit
from plan.labels import NO_GPU_USABLE
from plan.messages import Line
from plan.model import Plan
from plan.state import UnitState
from plan.unit_id import UnitId
from relations import exchange, juju, peers, postgresql, tls_certificates, tsa
from relations.worker_view import Seen, Sight, digest

_HERE: typing.Final = Outside()


class Concourse:
    """Concourse on this unit, during one hook."""

    name: str = OPTIONS.name
    changing: frozenset[str] = CHANGING

    def __init__(
        self, charm: juju.Charm, say: Say, records: Records, outside: Outside = _HERE
    ) -> None:
        """Begin with nothing.

        Args:
            charm: this unit's.
            say: reports a step that takes long.
            records: what the unit keeps on its machine.
            outside: what of Concourse is on the machine.
        """
        self._outside = outside
        self._model, self._say, self._records = charm.model, say, records
        self._do, self._looks, self._keys = outside.effects, outside.looks, outside.keys
        self._web_keys = peers.WebKeys(charm, self._do.new_secrets)
        self._rotation = KeyRotation(self._web_keys, self._keys, self._looks)
        self.drainer = Drainer(outside.worker, records)
        actions = Actions(self._web_keys, self._rotation, outside)
        self.actions: collections.abc.Mapping[str, Action] = actions.by_name
        self.steps: collections.abc.Mapping[Place, tuple[Step, ...]] = {
            Place.KEYS: (self._have_worker_key, self._have_web_keys),
            Place.RELEASE: (self._have_release,),
            Place.POOL: (self._have_launcher, self._offer_fewer),
            Place.SERVICES: (self._run_services, self._leave_failed_release),
            Place.PUBLISH: (self._publish,),
        }
        remove = self._do.remove
        self.removals: collections.abc.Mapping[Remains, tuple[Remove, ...]] = {
            Remains.SERVICES: (
                *(remove["worker"], remove["launcher"], remove["web"]),
                self._withdraw,
            ),
            Remains.DATA: (remove["database"],),
            Remains.PROGRAMS: (remove["network"], remove["release"]),
        }

    def revoke(self) -> None:
        """Let this machine's web, if any, accept the workers that are there and no others."""
        known, _ = tsa.read_worker_keys(self._model)
        self._do.authorize((*known, *self._keys.every()))

    def observe(self, options: Options) -> object:
        """Return what there is of Concourse.

        Raises:
            gpu_agent.model.errors.UnknownError: the machine's addresses cannot be read now.
        """
        return observe.at_unit(self._model, self._web_keys, options, self._outside)

    def agent(self, options: Options) -> AgentView:
        """Return what the agent needs to know of Concourse."""
        return agent_view.make(self._model.app.name, has_web=options.has_web)

    def longest_wait(self, state: UnitState) -> WaitLimit:
        """Return how long a task may wait, so that its refusal reaches the build."""
        return concourse.longest_wait(state)

    def plan(
        self,
        state: UnitState,
        choice: gpus.Choice,
        gpu: GpuPlan | Keep | None,
        unusable: gpus.Unusable,
    ) -> CiPlan:
        """Return what Concourse should be."""
        return concourse.make(state, choice, gpu, unusable)

    def status(self, state: UnitState, wanted: Plan, *, rests: bool) -> CiStatus:
        """Return what Concourse adds to the unit's status."""
        return status.make(state, wanted, observe.at_services(self._outside), rests=rests)

    def metrics_port(self) -> int:
        """Return the port of web's metrics on 127.0.0.1; 0: none."""
        return self._looks.metrics_port() or 0

    def departed(self, endpoint: str) -> bool:
        """Note that this unit leaves a relation; return whether its worker retires."""
        # If a web goes, its workers stay: another web may serve them.
        if endpoint in tsa.WEB_ENDPOINTS:
            self._records.unit.note_served(())
        # If the unit alone goes, web takes this worker's key until the -broken that follows.
        return endpoint in tsa.WORKER_ENDPOINTS

    def left_behind(self, state: UnitState) -> tuple[Line, ...]:
        """Return notes about the databases that are kept on a unit that has another CI system."""
        database = self._outside.database
        names = filter(None, (database.kept(), *database.aside()))
        return tuple(status.database_kept(state, name) for name in names)

    def is_here(self) -> bool:
        """Whether anything of Concourse is on this machine, except for a database."""
        looks, installed = self._looks, self._outside.releases.installed()
        return bool(looks.worker_name()) or looks.web_is_set_up() or installed is not None

    def former(self, unit: UnitId, mode: str, *, new: bool) -> UnitId | None:
        """Return the unit that has left Concourse on a machine without a record of its owner."""
        return former_owner.find(unit, mode, new=new)

    def retire(self, seconds: float, say: Say) -> None:
        """Let builds end for so many seconds; then the worker leaves web.

        Raises:
            machine.process.CommandError: systemd refuses something.
        """
        self._do.retire_worker(seconds, say)

    def set_data_aside(self, owner: str) -> None:
        """Note whose database this is."""
        self._do.set_database_aside(owner)

    def _withdraw(self) -> None:
        """Publish nothing of web and worker any more, and have Juju close web's ports."""
        tsa.withdraw_worker(self._model)
        tsa.withdraw_web(self._model)
        self._model.unit.set_ports()
        self._model.unit.set_workload_version("")

    def _have_worker_key(self, state: UnitState, _wanted: Plan) -> UnitState:
        """Have the worker's key and tell webs of it; this unit's own web knows it then."""
        if not state.options.has_worker:
            if Part.UNIT not in state.frozen:
                tsa.withdraw_worker(self._model)
            return state
        if state.leaving or Part.WORKER in state.frozen:
            return state
        _, state = part_runner.make(state, Part.WORKER, self._do.forward)
        key = self._rotation.ensure_key(state)
        return state if key in found(state).web.worker_keys else self._look_at_web(state)

    def _have_web_keys(self, state: UnitState, _wanted: Plan) -> UnitState:
        """Have web's keys, and ask for its database and certificate."""
        if not state.options.has_web or state.leaving:
            return state
        postgresql.request(self._model)
        request, names = self._outside.signing.request, concourse.names(state)
        tls_certificates.request(self._model, request, names)
        # Keys made just now are ones that web has to know.
        return self._look_at_web(state) if self._web_keys.make() else state

    def _look_at_web(self, state: UnitState) -> UnitState:
        if not state.options.has_web or state.leaving:
            return state
        return noted(state, web=observe.at_web(self._model, self._web_keys, self._outside))

    def _have_release(self, state: UnitState, wanted: Plan) -> UnitState:
        if release_plan := planned(wanted).release:
            state = upgrade.ensure(
                state, self.drainer, self._outside.releases, release_plan, self._say
            )
            self._model.unit.set_workload_version(found(state).installed)
        return state

    def _have_launcher(self, state: UnitState, wanted: Plan) -> UnitState:
        """Have the script by which containerd finds the GPU runtime, before a worker needs it."""
        if planned(wanted).worker is not None and Part.UNIT not in state.frozen:
            _, state = part_runner.make(state, Part.WORKER, self._do.install_launcher)
        return state

    def _offer_fewer(self, state: UnitState, wanted: Plan) -> UnitState:
        """Shrink the worker's offer at once if GPUs that tasks were given are gone.

        The self-test takes its time, and no task may be placed here for a GPU that is gone. The
        GPUs that are left were tested together with it. A GPU that is new is tested before it is
        offered; until then status alone names it.
        """
        own, said = planned(wanted).worker, gpus.change(state, wanted.choice)
        left = {gpu.uuid for gpu in wanted.choice.gpus}
        fewer = bool(left) and left < {*state.handed_out} and not self.drainer.keeps_down()
        # If all were gone, each GPU that is here now is new.
        if fewer and isinstance(own, WorkerPlan) and not self._looks.has_tag(NO_GPU_USABLE):

            def say(line: str) -> None:
                self._say(f"{said}; {line}")

            _, state = part_runner.make(
                state, Part.WORKER, self._do.apply_worker, own, self._keys, say
            )
        return state

    def _run_services(self, state: UnitState, wanted: Plan) -> UnitState:
        """Run web and worker as planned, and publish web to workers."""
        own = planned(wanted)
        if isinstance(own.web, WebPlan):
            database = self._outside.database
            done, state = part_runner.make(
                state, Part.WEB, self._do.apply_web, own.web, database, self._say
            )
            if done is not None:
                self._model.unit.set_ports(own.web.open_port, TSA_PORT)
                addresses, key = own.web.tsa_addresses, found(state).web.tsa_public_key
                version = found(state).installed
                tsa.publish_web(
                    self._model, addresses, TSA_PORT, key, version, WEB_REQUEST_TIMEOUT
                )
        elif own.web is None:
            self._do.remove["web"]()
            self._model.unit.set_ports()
            tsa.withdraw_web(self._model)
        if isinstance(own.worker, WorkerPlan) and not self.drainer.keeps_down():
            _, state = part_runner.make(
                state, Part.WORKER, self._do.apply_worker, own.worker, self._keys, self._say
            )
        elif own.worker is None:
            self._do.retire_worker(worker.FAREWELL_SECONDS, self._say)
            self._do.remove["worker"]()
        return state

    def _leave_failed_release(self, state: UnitState, wanted: Plan) -> UnitState:
        """Roll back to the previous release if web or worker do not run on the new one."""
        releases = self._outside.releases
        after = upgrade.roll_back_if_failed(state, self.drainer, releases, wanted, self._say)
        return state if after is state else self._run_services(after, plan.make(after, self))

    def _publish(self, state: UnitState, wanted: Plan) -> UnitState:
        keys = self._rotation.tell(state, wanted, self._records.drain.rests)
        return noted(state, rotation=keys, seen=self._seen(state, wanted))

    def _seen(self, state: UnitState, wanted: Plan) -> Seen:
        """Return how web sees this unit's worker; a web on this unit publishes what it sees.

        A worker has no credentials of web's. So each web asks its own API and publishes to its
        workers what it sees: state and a digest of the tags. The worker compares that with its
        plan. The public charm's web and a web outside Juju publish nothing; then the connection
        to the TSA is all that is known. If a worker differs from its plan, this takes some
        seconds.
        """
        plans, own, tags = planned(wanted), "", ""
        if isinstance(plans.worker, WorkerPlan):
            own, tags = plans.worker.name, digest(plans.worker.tags)
        sights = dict[str, Sight]()
        has_web = isinstance(plans.web, WebPlan) and Part.WEB not in state.frozen
        if has_web and self._looks.web_runs():
            sights = self._look_at_workers({own: tags} if own else {})
        elif plans.web is None:
            self._records.unit.note_served(())
        seen = (sights[own],) if own in sights else found(state).tsa.sights if own else ()
        compared = Seen(seen, tags)
        # One that is paused, or does not answer, is seen so for that.
        wrong = compared.wrong is not None and self._looks.worker_runs()
        since = self._looks.wrong_for(wrong=wrong)
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
        sights = self._looks.sights(wanted) if wanted else {}
        if sights is None:
            return {}
        # What signed off is off web's list. One that could not is, such as of a machine that is
        # gone.
        gone = self._records.unit.served() - {*wanted}
        left = self._do.prune(gone) if gone else frozenset[str]()
        self._records.unit.note_served({*(one.name for _, those in kin for one in those), *left})
        for relation, those in kin:
            if those:
                told = {one.name: sights[one.name] for one in those}
                exchange.publish_sights(self._model, relation, told)
        return sights
