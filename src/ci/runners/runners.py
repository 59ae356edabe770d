# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Runners of a CI service on a unit, during one hook."""

import collections.abc
import dataclasses
import pathlib
import typing

from ci.runners import daemon_unit, github, options, plan, program, release
from ci.runners.daemon import retire
from ci.runners.jobs import Jobs
from ci.runners.options import Download, RunnersOptions, chosen
from ci.runners.plan import Pinned
from ci.runners.settings import FIGURES, Settings
from ci.system import CiSystem, Place, Remains, Remove, Say, Step
from gpu_agent.model.keep import Keep
from gpu_agent.runtime import runc as runcs
from gpu_agent.runtime.settings import GpuPlan
from lifecycle import part_runner
from lifecycle.action_call import Action
from lifecycle.drain import Drainable, Drainer
from lifecycle.records import Records
from machine import process
from options.declaration import CiOptions
from options.part import Part
from options.table import Options
from plan.agent_view import AgentView
from plan.ci_plan import CiPlan, CiStatus, WaitLimit
from plan.gpus import Choice, Unusable
from plan.messages import Line
from plan.model import Plan
from plan.state import UnitState
from plan.unit_id import UnitId
from relations import cos_agent, juju, peers

_RESOURCE: typing.Final = "runner"
_DISPATCH: typing.Final = pathlib.Path(__file__).resolve().parents[3] / "dispatch"


@dataclasses.dataclass(frozen=True)
class Outside:
    """What of runners is outside of a unit; the defaults are what is there on a machine.

    Attributes:
        jobs: what takes jobs.
        current_program: returns the path of the program that new runners of a service have; or
            empty.
        program_age: returns how old the release of that program is, in days; None: not known.
        has_release: whether that program is of a download.
        have_program: makes a program the one that new runners of a service have.
        wanted_program: asks a service which program it wants now; nothing if it does not say.
        report: returns what the daemon reported.
        runs: whether the daemon runs.
        is_here: whether anything of the daemon is here, for a service or, if empty, for any.
        current: returns the daemon's settings; None: there are none.
        leave: ends idle runners, so that the service of the daemon's settings forgets them.
        install: runs the daemon with settings.
        retire: lets jobs end for so many seconds, and removes all runners.
        remove: removes the daemon.
        remove_program: removes the program of a service.
    """

    jobs: Drainable = dataclasses.field(default_factory=Jobs)
    current_program: collections.abc.Callable[[str], str] = program.installed
    program_age: collections.abc.Callable[[str], int | None] = program.age
    has_release: collections.abc.Callable[[str, Download], bool] = program.is_from
    have_program: collections.abc.Callable[[str, str, Download, Say], bool] = program.ensure
    wanted_program: collections.abc.Callable[[str, RunnersOptions], Download] = release.wanted
    report: collections.abc.Callable[[], daemon_unit.Report] = daemon_unit.report
    runs: collections.abc.Callable[[], bool] = daemon_unit.is_running
    is_here: collections.abc.Callable[[str], bool] = daemon_unit.is_here
    current: collections.abc.Callable[[], Settings | None] = daemon_unit.current
    leave: collections.abc.Callable[[], None] = retire.leave
    install: collections.abc.Callable[[Settings], bool] = daemon_unit.install
    retire: collections.abc.Callable[[float, Say], None] = retire.retire
    remove: Remove = daemon_unit.remove
    remove_program: collections.abc.Callable[[str], object] = program.remove


_HERE: typing.Final = Outside()


@dataclasses.dataclass(frozen=True)
class Kind:
    """A CI service whose runners a unit can have.

    Attributes:
        options: its options, with its name in settings.
        shown: its name for people.
        log_reader: the name of the program that starts a job's steps and reads what they write;
            empty: the runner's program itself.
    """

    options: CiOptions
    shown: str
    log_reader: str = ""


GITEA: typing.Final = Kind(options.GITEA, "Gitea")
# GitHub's Runner.Listener starts another program for its job (JobDispatcher.cs).
GITHUB: typing.Final = Kind(options.GITHUB, "GitHub", "Runner.Worker")


def gitea_runners(charm: juju.Charm, say: Say, records: Records) -> CiSystem:
    """Return runners of Gitea for one hook."""
    return Runners(GITEA, charm, say, records)


def github_runners(charm: juju.Charm, say: Say, records: Records) -> CiSystem:
    """Return runners of GitHub for one hook."""
    return Runners(GITHUB, charm, say, records)


class Runners:
    """Runners of a CI service on this unit, during one hook."""

    changing: frozenset[str] = frozenset()

    def __init__(
        self,
        kind: Kind,
        charm: juju.Charm,
        say: Say,
        records: Records,
        outside: Outside = _HERE,
    ) -> None:
        """Begin with nothing.

        Args:
            kind: which CI service it is.
            charm: this unit's.
            say: reports a step that takes long.
            records: what the unit keeps on its machine.
            outside: what of runners is on the machine.
        """
        self.name: str = kind.options.name
        self._kind = kind
        self._model, self._say, self._outside = charm.model, say, outside
        self.actions: collections.abc.Mapping[str, Action] = {}
        self.drainer = Drainer(outside.jobs, records)
        self.steps: collections.abc.Mapping[Place, tuple[Step, ...]] = {
            Place.RELEASE: (self._have_program,),
            Place.SERVICES: (self._keep_runners,),
        }
        self.removals: collections.abc.Mapping[Remains, tuple[Remove, ...]] = {
            Remains.SERVICES: (self._remove,),
            Remains.PROGRAMS: (lambda: outside.remove_program(self.name),),
        }

    def revoke(self) -> None:
        """Do nothing: no worker registers here."""

    def observe(self, _options: Options) -> object:
        """Return what there is of runners."""
        return plan.Found(
            program=self._outside.current_program(self.name),
            runs=self._outside.runs(),
            report=self._outside.report(),
            relations=juju.relations_but(self._model, cos_agent.ENDPOINT, peers.ENDPOINT),
            model=self._model.uuid,
            dispatch=str(_DISPATCH),
            has_runc=pathlib.Path(runcs.for_tasks("")).exists(),
            proxies=process.proxies(),
        )

    def agent(self, _options: Options) -> AgentView:
        """Return what the agent needs to know of runners."""
        return AgentView(
            service=daemon_unit.SERVICE,
            job_names=("-m", "ci.runners.jobs"),
            log_reader=self._kind.log_reader,
            figures=str(FIGURES),
            disks=("/var/lib",),
        )

    def longest_wait(self, _state: UnitState) -> WaitLimit:
        """Return no limit: jobs wait in the service's own queue."""
        return WaitLimit()

    def plan(
        self, state: UnitState, choice: Choice, gpu: GpuPlan | Keep | None, _unusable: Unusable
    ) -> CiPlan:
        """Return what the runners should be."""
        return plan.make(state, choice, gpu, self.name, self._kind.shown)

    def status(self, state: UnitState, wanted: Plan, *, rests: bool) -> CiStatus:
        """Return what runners add to the unit's status."""
        return plan.status_of(state, wanted, self._kind.shown, rests=rests)

    def metrics_port(self) -> int:
        """Return 0: only the agent has metrics."""
        return 0

    def departed(self, _endpoint: str) -> bool:
        """Return False: no relation ends this unit."""
        return False

    def left_behind(self, _state: UnitState) -> tuple[Line, ...]:
        """Return nothing: all is removed."""
        return ()

    def is_here(self) -> bool:
        """Whether anything of runners is on this machine."""
        return self._outside.is_here(self.name) or bool(self._outside.current_program(self.name))

    def former(self, _unit: UnitId, _mode: str, *, new: bool) -> UnitId | None:  # noqa: ARG002
        """Return None: no earlier revision had such units."""
        return None

    def retire(self, seconds: float, say: Say) -> None:
        """Let jobs end for so many seconds; then the service forgets the runners.

        Raises:
            machine.process.CommandError: systemd refuses something.
        """
        if self._outside.is_here(""):
            self._outside.retire(seconds, say)

    def set_data_aside(self, _owner: str) -> None:
        """Do nothing: runners keep no data."""

    def _remove(self) -> None:
        """Remove the daemon, and runners that it has left."""
        if self._outside.is_here(""):
            self._outside.retire(0, self._say)
            self._outside.remove()

    def _install(self, wanted: Settings) -> None:
        """Run the daemon with these settings; if a server or scope is left, it forgets runners."""
        found = self._outside.current()
        if found and (found.url, found.scope) != (wanted.url, wanted.scope):
            self._outside.leave()
        self._outside.install(wanted)

    def _have_program(self, state: UnitState, _wanted: Plan) -> UnitState:
        """Have the runner's program, from the resource or by download."""
        if state.leaving or {Part.UNIT, Part.RELEASE} & state.frozen:
            return state
        given = juju.resource(
            self._model, _RESOURCE, lambda _: bool(self._outside.current_program(self.name))
        )
        if given is None:  # Juju does not answer
            return state
        own = chosen(state.options)
        wanted = own.download
        is_pinned = bool(given or wanted.url)
        if not is_pinned:
            found, state = part_runner.make(
                state, Part.RELEASE, self._outside.wanted_program, self.name, own
            )
            wanted = found or Download()
        _, state = part_runner.make(
            state, Part.RELEASE, self._outside.have_program, self.name, given, wanted, self._say
        )
        seen = dataclasses.replace(
            plan.found(state),
            program=self._outside.current_program(self.name),
            pinned=self._pinned(own, by_resource=bool(given)) if is_pinned else None,
        )
        return dataclasses.replace(state, ci=seen)

    def _pinned(self, own: RunnersOptions, *, by_resource: bool) -> Pinned | None:
        """Return how old the program is, if GitHub may want a newer one; else None."""
        if self.name != github.NAME:
            return None
        days = self._outside.program_age(self.name)
        if days is None or days < plan.WARNED:
            return None
        try:
            is_wanted = self._outside.has_release(
                self.name, self._outside.wanted_program(self.name, own)
            )
        except release.ReleaseError:  # then its age alone tells
            is_wanted = False
        return None if is_wanted else Pinned(by_resource, days)

    def _keep_runners(self, state: UnitState, wanted: Plan) -> UnitState:
        """Run the daemon with the settings of the plan; without any, remove it."""
        if state.leaving or Part.UNIT in state.frozen:
            return state
        own = plan.planned(wanted)
        if isinstance(own, Settings):
            _, state = part_runner.make(state, Part.WORKER, self._install, own)
        elif own is None:
            self._remove()
        seen = dataclasses.replace(
            plan.found(state), runs=self._outside.runs(), report=self._outside.report()
        )
        return dataclasses.replace(state, ci=seen)
