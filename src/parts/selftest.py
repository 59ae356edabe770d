# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Runs the self-test when it is due, and puts its verdict into the unit's state."""

import collections.abc
import dataclasses
import pathlib
import typing

from gpu_agent import paths as wrapper
from gpu_agent.availability import quarantine, retests
from gpu_agent.gpu.vendors.nvidia import reset as gpu_reset
from gpu_agent.model.inventory import Inventory, State
from gpu_agent.model.verdict import Verdict
from gpu_agent.reporting.notifier import device_watch_unit as devices
from gpu_agent.reporting.notifier import wake_unit as once
from gpu_agent.runtime import install
from gpu_agent.runtime import runc as runcs
from gpu_agent.runtime.settings import GpuPlan
from gpu_selftest import due as next_test
from gpu_selftest import last_pass, service, settings, verdict
from gpu_selftest.check import Level, Progress
from gpu_selftest.compute import environment
from gpu_selftest.last_pass import Records
from gpu_selftest.retests import Retests
from gpu_selftest.service import Service
from gpu_selftest.settings import Settings
from host import toolkit_trial as trial
from host.nvidia_toolkit import NvidiaToolkit
from options.part import Part
from plan import gpus
from plan.model import Plan
from plan.state import UnitState

# How long a hook follows a test of isolation, in seconds: it takes 60 at most, and ends itself
# after 90.
_PATIENCE: typing.Final = 120
# How long it waits for one by hand or at boot, in seconds: all but compute and burn-in are done.
_COURTESY: typing.Final = 30


class NodeWatch(typing.Protocol):
    """The unit that wakes the charm when device nodes come or go."""

    def install(self, unit: str, seen: tuple[str, ...]) -> object:
        """Wake this unit when other nodes than these are seen."""
        ...

    def remove(self) -> bool:
        """Remove it. Return True if it was there."""
        ...


class Wake(typing.Protocol):
    """The unit that wakes the charm once."""

    def install(self, unit: str) -> object:
        """Let it wake this unit."""
        ...

    def remove(self) -> bool:
        """Remove it. Return True if it was there."""
        ...


@dataclasses.dataclass(frozen=True)
class SelfTest:
    """The self-test of this machine, as hooks install, run and remove it.

    Attributes:
        service: installs, starts and follows self-tests.
        settings: the file of the self-test's settings.
        records: what earlier self-tests found.
        node_watch: wakes the charm when device nodes come or go.
        wake: wakes the charm at the end of a long self-test.
        toolkit: the container toolkit, which may be on trial.
        installed: returns what the files of the GPU runtime are now, by absolute path.
        apply: installs the GPU runtime again.
    """

    service: Service = service
    settings: pathlib.Path = settings.PATH
    records: Records = Records()
    node_watch: NodeWatch = devices
    wake: Wake = once
    toolkit: NvidiaToolkit = NvidiaToolkit()
    installed: collections.abc.Callable[
        [collections.abc.Iterable[pathlib.Path]], dict[str, str]
    ] = install.installed
    apply: collections.abc.Callable[[GpuPlan], object] = install.apply

    def ensure(self, state: UnitState, wanted: Plan, progress: Progress) -> UnitState:
        """Install self-test and node watch, and run a self-test if its subject has changed.

        Args:
            state: the state of this unit.
            wanted: the plan for it.
            progress: reports each step.

        Returns:
            The state with the verdict of the self-test.

        Raises:
            service.SelftestError: the self-test ended without a verdict.
            gpu_agent.install.AppError: the machine has no room for its programs.
            machine.packages.PackageError: a faulty toolkit cannot be rolled back now.
        """
        inventory, on_start = state.inventory, state.options.selftest_on_start
        if inventory is None or state.leaving:
            self.remove()
            return state
        progress = _after(gpus.change(state, wanted.choice), progress)
        # Before the settings: the self-test of an earlier revision does not read later ones.
        self.service.install(on_start=on_start, before=state.agent.service, needs=state.agent.runc)
        subject = self._subject(state, wanted, inventory)
        self.node_watch.install(state.unit, state.nodes)
        self.wake.install(state.unit)
        unknown, tried = "", bool(state.packaged.previous)
        # Without that runc no container can be made, which would not be the GPU's fault.
        testable = isinstance(wanted.gpu, GpuPlan) and _has_runc(state)
        state, subject = self._tried(state, wanted, inventory, subject, progress)
        due = next_test.due(subject, self.records, repaired=state.repaired)
        if (on_start or tried) and testable and due:
            unknown = self._test(due, progress)
            after, _ = self._tried(state, wanted, inventory, subject, progress)
            if after is not state:
                state = after
                unknown = self._test(Level.ISOLATION, progress)
        if testable:
            Retests(self.service, self.settings, self.records).ensure(progress)
        if not unknown and (ended := self.service.broken_off()):
            unknown = f"level {ended.level.value} ended without a verdict, see {service.LOG}"
        found = (
            Verdict("incomplete", failure=unknown)
            if unknown
            else verdict.verdict(self.records.home)
        )
        return dataclasses.replace(state, quarantined=quarantine.read(), verdict=found)

    def remove(self) -> bool:
        """Remove self-test and node watch, but not their results. True if anything was there."""
        removed = [
            # Before the service, whose end would wake the charm.
            self.node_watch.remove(),
            self.wake.remove(),
            gpu_reset.remove(),
            self.service.remove(),
            environment.remove(self.records.home),
            settings.remove(self.settings),
            retests.remove(),
        ]
        return any(removed)

    def _tried(
        self,
        state: UnitState,
        wanted: Plan,
        inventory: Inventory,
        subject: str,
        progress: Progress,
    ) -> tuple[UnitState, str]:
        """End a toolkit's trial if there is a verdict; return the state and the subject after it.

        The verdict may come from a test that outlived its hook, or that the operator has run.
        """
        after = trial.end(state, wanted, subject, progress, self.toolkit, self.records.home)
        if after is state:
            return state, subject
        if isinstance(wanted.gpu, GpuPlan):
            # The previous toolkit must work again before this hook ends.
            self.apply(wanted.gpu)
        return after, self._subject(after, wanted, inventory)

    def _subject(self, state: UnitState, wanted: Plan, inventory: Inventory) -> str:
        """Write the settings of the self-test, and return the name of its subject."""
        if inventory.state is State.NOT_PASSED:  # others may have them meanwhile
            self.records.forget_verdict()
        current = self._settings(state, wanted)
        settings.write(current, self.settings)
        return last_pass.subject(current, inventory, state.machine)

    def _test(self, level: Level, progress: Progress) -> str:
        """Test quick or isolation, or follow the test that a killed hook has started.

        Returns:
            Why no verdict exists yet; empty if one exists.

        Raises:
            service.SelftestError: it ended without one.
        """
        running = self.service.running()
        if running and not Level.ISOLATION.includes(running.level):
            return f"a self-test of level {running.level.value} still runs"
        if not running and (other := self.service.wait_for_others(_COURTESY)):
            return f"another self-test still runs: {other}"
        name = running.run if running else self.service.start(level)
        report = self.service.follow(name, _PATIENCE, lambda line: progress(f"Self-test: {line}"))
        return "" if report else "it still runs"

    def _settings(self, state: UnitState, wanted: Plan) -> Settings:
        """Return the settings of the self-test, with the previous GPUs while none can be used."""
        earlier, options = settings.read(self.settings), state.options
        chosen = tuple(
            dataclasses.replace(gpu, index=index)
            for index, gpu in zip(wanted.choice.indexes, wanted.choice.gpus, strict=True)
        )
        ready = isinstance(wanted.gpu, GpuPlan)
        wheels = state.wheels
        if wheels is None:  # Juju does not answer
            wheels = earlier.wheels if earlier else ""
        return Settings(
            unit=state.unit,
            vendor=options.gpu_vendor,
            gpus=chosen if ready or not earlier else earlier.gpus,
            allocation=options.gpu_allocation,
            min_gpu_memory_gib=options.minimums.gpu_memory_gib,
            min_compute_capability=options.minimums.compute_capability,
            min_driver_version=options.minimums.driver_version,
            min_cpus=options.minimums.cpus,
            min_memory_gib=options.minimums.memory_gib,
            gpu_driver=options.gpu_driver,
            auto_reboot=options.may_reboot_for_driver,
            allow_vulnerable_toolkit=options.allow_vulnerable_toolkit,
            files=self._files(state, earlier) if ready or not earlier else earlier.files,
            wheels=wheels,
            programs=state.agent.programs,
            runc=state.agent.runc,
            runc_remedy=state.agent.runc_remedy,
            checks=state.agent.checks,
            disks=state.agent.disks,
        )

    def _files(self, state: UnitState, earlier: Settings | None) -> dict[str, str]:
        """Return the expected files of the GPU runtime, as they have just been installed."""
        found = self.installed(map(pathlib.Path, state.agent.programs))
        last = earlier.files if earlier else {}
        if Part.ENGINES not in state.options.frozen:
            return found
        # The engines' options cannot be used, so their runtime was not repaired.
        tasks = {path: told for path, told in found.items() if not wrapper.is_for_engines(path)}
        return tasks | {path: told for path, told in last.items() if wrapper.is_for_engines(path)}


SELF_TEST: typing.Final = SelfTest()


def _after(said: str, progress: Progress) -> Progress:
    """Return a progress function that puts `said` before each text."""
    return (lambda line: progress(f"{said}; {line}")) if said else progress


def _has_runc(state: UnitState) -> bool:
    """Whether the runc that starts tasks is there; without it no container can be tested."""
    return pathlib.Path(runcs.for_tasks(state.agent.runc)).exists()
