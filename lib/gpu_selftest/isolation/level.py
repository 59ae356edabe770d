# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check from inside containers that a task gets its GPU, no other, and none without a lease.

Each check makes containers as a CI system does, through this worker's GPU runtime. GPUs are
reserved by leases, so that no task is disturbed. A GPU that a job uses is not tested.
"""

import collections.abc
import concurrent.futures
import contextlib
import dataclasses
import functools
import os
import threading
import typing
import uuid

from gpu_agent import paths as wrapper
from gpu_agent.gpu.vendors import registry
from gpu_agent.model.inventory import Gpu
from gpu_agent.runtime import policy
from gpu_agent.runtime import runc as runcs
from gpu_runtime.policy import Policy, TaskFolders
from gpu_runtime.refusal import Refused
from gpu_selftest import gpu_reservation
from gpu_selftest.check import Check, Obstacle, Outcome, Progress, Result
from gpu_selftest.isolation import container_view as views
from gpu_selftest.isolation import containers
from gpu_selftest.isolation import escape_attempts as doors
from gpu_selftest.isolation.allocation import Allocation
from gpu_selftest.isolation.container_view import View
from gpu_selftest.isolation.containers import ContainerError, Containers, Step
from gpu_selftest.isolation.inspector import Inspector
from gpu_selftest.settings import Settings
from gpu_selftest.starvation_clock import StarvedError

CHECKS: typing.Final = doors.CHECKS

# A container is made by one program after another, so that one check leaves the second processor
# of a small machine idle. The worker's tasks need the other processors.
_AT_ONCE: typing.Final = 2
# The name of the request that is in the queue as long as the checks last.
_IN_LINE: typing.Final = "in-line"


@contextlib.contextmanager
def _awake(gpus: tuple[Gpu, ...]) -> collections.abc.Generator[None]:
    """Keep these GPUs' driver initialised by an open node each, as nvidia-persistenced does.

    Otherwise every container may initialise it again, which takes a second or more for each GPU.
    """
    with contextlib.ExitStack() as stack:
        for path in [path for gpu in gpus for path in views.own_nodes(gpu)]:
            with contextlib.suppress(OSError):
                stack.callback(os.close, os.open(path, os.O_RDWR | os.O_CLOEXEC))
        yield


@contextlib.contextmanager
def _inspector(
    settings: Settings, gpus: tuple[Gpu, ...], tasks: TaskFolders
) -> collections.abc.Generator[Inspector]:
    """Provide what looks into containers; these GPUs' driver stays initialised meanwhile."""
    with _awake(gpus), Containers(runcs.for_tasks(settings.runc), tasks) as made:
        yield Inspector(settings, made)


@dataclasses.dataclass(frozen=True)
class Site:
    """The machine as these checks use it; the defaults are the real ones.

    Attributes:
        missing: returns the first missing file that containers need with that runc.
        allowed: returns the policy of the GPU runtime; None if tasks get no GPU.
        tasks: returns how the GPU runtime knows a task's container.
        inspector: provides what makes containers on these GPUs and looks into them.
        allocation: makes the checks in which the GPU runtime chooses the GPUs.
        alone: reserves GPUs (gpu_selftest.gpu_reservation).
        in_line: keeps idle runners from GPUs that are free between two checks.
    """

    missing: collections.abc.Callable[[str], str] = containers.missing
    allowed: collections.abc.Callable[[], Policy | None] = policy.allowed
    tasks: collections.abc.Callable[[], TaskFolders] = policy.task_folders
    inspector: collections.abc.Callable[
        [Settings, tuple[Gpu, ...], TaskFolders], contextlib.AbstractContextManager[Inspector]
    ] = _inspector
    allocation: collections.abc.Callable[[Inspector, Policy, list[str]], Allocation] = Allocation
    alone: collections.abc.Callable[
        [str, collections.abc.Iterable[str]], contextlib.AbstractContextManager[Obstacle | None]
    ] = gpu_reservation.alone
    in_line: collections.abc.Callable[[str], contextlib.AbstractContextManager[None]] = (
        gpu_reservation.in_line
    )


def run(
    settings: Settings, gpus: tuple[Gpu, ...], progress: Progress, site: Site = Site()
) -> list[Result]:
    """Make all checks of isolation on these GPUs, which are all or some of those in `settings`."""
    absent = site.missing(runcs.for_tasks(settings.runc))
    why = f"{absent} is missing" if absent else ""
    try:
        allowed = site.allowed()
        listed = {device.id for device in allowed.devices} if allowed else set[str]()
        if unknown := listed - {device for gpu in settings.gpus for device in gpu.devices}:
            why = why or f"{wrapper.POLICY} names {', '.join(sorted(unknown))}, which is missing"
        if allowed and not why:
            tasks = site.tasks()
            with (
                site.inspector(settings, gpus, tasks) as inspector,
                site.in_line(inspector.id(_IN_LINE)),
            ):
                without = doors.without(tasks)
                return _Isolation(gpus, inspector, allowed, without, progress, site).results()
    except (ContainerError, StarvedError, Refused) as error:
        why = why or str(error)
    why = why or f"{wrapper.POLICY} allows no GPU"
    return [
        check.result(Outcome.NOT_RUN, why, gpu=gpu)
        for check in CHECKS
        for gpu in ([one.uuid for one in gpus] if check.each_gpu else [""])
    ]


_Make = collections.abc.Callable[[], Result]


class _Isolation:
    """One run of the checks, two at a time."""

    def __init__(
        self,
        gpus: tuple[Gpu, ...],
        inspector: Inspector,
        allowed: Policy,
        without: collections.abc.Mapping[str, Step],
        progress: Progress,
        site: Site,
    ) -> None:
        self._gpus = gpus
        self._inspector = inspector
        self._allowed = allowed
        self._without = without
        self._progress = progress
        self._site = site
        # GPUs that passed the check lease. A check that needs any GPU takes one of them and locks
        # it in _turns.
        self._proven: list[Gpu] = []
        self._turns = {gpu.uuid: threading.Lock() for gpu in gpus}
        # Why other GPUs are not among them.
        self._broken = ""
        self._taken: Obstacle | None = None
        # What the machine had no time or room for; no further check is tried then.
        self._starved = ""

    def results(self) -> list[Result]:
        """Make all checks; a check that needs an earlier one's success comes after it."""
        bound = functools.partial
        found = self._side_by_side(
            (doors.LEASE, bound(self._lease, gpu), gpu.uuid) for gpu in self._gpus
        )
        self._proven.sort(key=self._gpus.index)
        self._progress("Isolation: containers without a lease, or that ask for more than theirs")
        ways = dict.fromkeys(one.check for one in doors.DOORS)
        found += self._side_by_side(
            (
                (doors.NO_LEASE, self._no_lease, ""),
                *((check, bound(self._door, check), "") for check in ways),
                (doors.EXEC_ENVIRONMENT, self._exec_environment, ""),
            )
        )
        # One at a time: the GPU runtime chooses, and is timed.
        self._progress("Isolation: two tasks at once, and a killed one")
        proven = [device for gpu in self._proven for device in gpu.devices]
        allocation = self._site.allocation(self._inspector, self._allowed, proven)
        for check, make in (
            (doors.DISJOINT, allocation.disjoint),
            (doors.RECLAIM, allocation.reclaim),
        ):
            not_run = check.result(Outcome.NOT_RUN, self._broken)
            found.append(not_run if self._broken else self._unless_starved(check, make, ""))
        return [*found, self._device_cgroup()]

    def _side_by_side(
        self, checks: collections.abc.Iterable[tuple[Check, _Make, str]]
    ) -> list[Result]:
        """Make these checks, which are independent, and return the results in their order.

        If a check ends by an exception, or this process is stopped, no further check begins.

        Args:
            checks: each with the function that makes it, and the id of its GPU, or an empty one.
        """
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            return [*pool.map(self._unless_starved, *zip(*checks, strict=True))]

    def _unless_starved(self, check: Check, make: _Make, gpu: str) -> Result:
        """Return a check's result, or that it can't run if the machine has no time or room.

        A job can starve the machine, and a late answer is not a wrong one.
        """
        try:
            if not self._starved:
                return make()
        except StarvedError as error:
            self._starved = f"this machine has no time or room for the check: {error}"
        return check.result(Outcome.NOT_RUN, self._starved, gpu=gpu)

    def _lease(self, gpu: Gpu) -> Result:
        check = doors.LEASE
        self._progress(f"Isolation: a task with GPU {gpu.index}")
        if not gpu.devices:
            why = "MIG is on, but there is no MIG device"
            return check.result(Outcome.SKIPPED, why, gpu=gpu.uuid)
        seen: list[View] = []
        faults: list[str] = []
        for place, device in enumerate(gpu.devices):
            name = f"lease-{gpu.index}-{place}"
            with self._site.alone(self._inspector.id(name), [device]) as why:
                if why:
                    self._taken = why
                    return check.not_run(why, gpu.uuid)
                try:
                    view = self._inspector.see(name, doors.PLAIN)
                except ContainerError as error:
                    faults.append(f"its container could not be made: {error}")
                    break
            seen.append(view)
            faults += views.faults_with(view, self._inspector.nodes, gpu, device)
        if views.share_mig_nodes(seen):
            faults.append("one of its MIG devices gives access to another")
        if faults:
            self._broken = f"{check.id} failed on GPU {gpu.index}"
            text = f"a task does not see only its GPU: {'; '.join(faults)}"
            return self._inspector.failed(check, text, gpu=gpu.uuid)
        self._proven.append(gpu)
        nvml = "; NVML lists only it" if seen[0].nvml is not None else ""
        text = f"a task has {', '.join(views.own_nodes(gpu))} and no other GPU's node{nvml}"
        return check.result(Outcome.PASSED, text, gpu=gpu.uuid)

    def _no_lease(self) -> Result:
        check = doors.NO_LEASE
        for name, step in self._without.items():
            try:
                faults = views.faults_without(self._inspector.see(f"{check.id}-{name}", step))
            except ContainerError as error:
                faults = [f"its container could not be made: {error}"]
            if faults:
                text = f"{name} without a lease has a GPU: {'; '.join(faults)}"
                return self._inspector.failed(check, text)
        names = ", ".join(self._without)
        return check.result(Outcome.PASSED, f"no GPU was seen in: {names}")

    def _door(self, check: Check) -> Result:
        by_runtime = registry.find(self._gpus[0].vendor).grant.by_runtime
        if check in doors.NVIDIA_ONLY and not by_runtime:
            return check.result(Outcome.SKIPPED, "only NVIDIA's container runtime accepts this")
        said: list[str] = []
        for door in doors.DOORS:
            if door.check != check:
                continue
            name = f"{check.id}-{len(said)}"
            with self._a_proven_gpu(name) as gpu:
                if isinstance(gpu, Obstacle):
                    return check.not_run(gpu)
                try:
                    view = self._inspector.see(name, door.step)
                except ContainerError as error:
                    if not (door.refusable and error.code):
                        return self._inspector.failed(check, f"its container failed: {error}")
                    said.append(f"refused with a message: {error}")
                    continue
            faults = views.faults_with(view, self._inspector.nodes, gpu, gpu.devices[0])
            if faults:
                text = f"{check.id} gives a task more than its lease: {'; '.join(faults)}"
                return self._inspector.failed(check, text)
            said.append(f"a task saw only GPU {gpu.index}")
        return check.result(Outcome.PASSED, "; ".join(said))

    def _exec_environment(self) -> Result:
        check = doors.EXEC_ENVIRONMENT
        faults: list[str] = []
        with self._a_proven_gpu(check.id) as gpu:
            if isinstance(gpu, Obstacle):
                return check.not_run(gpu)
            try:
                with self._inspector.create(check.id, doors.UNTRUE) as container:
                    for what, exec_id in (("step", "task"), ("hijacked", str(uuid.uuid4()))):
                        view = self._inspector.look(container, exec_id)
                        untruths = views.untruths(view, gpu, gpu.devices[0])
                        faults += [f"{what}: {fault}" for fault in untruths]
            except ContainerError as error:
                faults.append(str(error))
        if faults:
            text = f"variables do not match the lease: {'; '.join(faults)}"
            return self._inspector.failed(check, text)
        text = f"a step and a hijacked session both have {gpu.devices[0]}"
        return check.result(Outcome.PASSED, text)

    @contextlib.contextmanager
    def _a_proven_gpu(self, name: str) -> collections.abc.Generator[Gpu | Obstacle]:
        """Reserve a GPU that passed the check `lease` for the container of that name."""
        obstacle = Obstacle(self._broken) if self._broken else self._taken
        # GPUs that no other check uses now come first, so that two checks rarely wait.
        for gpu in sorted(self._proven, key=lambda one: self._turns[one.uuid].locked()):
            taken = self._site.alone(self._inspector.id(name), gpu.devices[:1])
            with self._turns[gpu.uuid], taken as why:
                if not why:
                    yield gpu
                    return
            obstacle = why
        yield obstacle or Obstacle("no GPU has a device to hand out")

    def _device_cgroup(self) -> Result:
        check, inspector = doors.DEVICE_CGROUP, self._inspector
        if not inspector.looks:
            return check.result(Outcome.NOT_RUN, "no container could be looked into")
        leaked = ", ".join(f"{path} in {name}" for path, name in inspector.leaked.items())
        count, looks = len(inspector.nodes), f"{len(inspector.looks)} looks from inside"
        if inspector.nested:
            if leaked:
                text = f"this container's user namespace does not keep tasks from GPUs: {leaked}"
                return inspector.failed(check, text, remedy=doors.UNNEST)
            text = f"{looks}, in a container without device rules: none of {count} nodes could be"
            return check.result(Outcome.PASSED, f"{text} made (mknod), no other GPU's was there")
        if leaked:
            return inspector.failed(check, f"tasks can open GPUs that they don't have: {leaked}")
        text = f"{looks}: of {count} nodes only those granted could be opened"
        return check.result(Outcome.PASSED, text)
