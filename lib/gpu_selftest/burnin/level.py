# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run the burn-in: GPUs under load for minutes, sampled each second."""

import collections.abc
import contextlib
import dataclasses
import json
import signal
import time
import typing

from gpu_agent.gpu.vendors.nvidia import xid
from gpu_agent.gpu.vendors.vendor import Cuda, QueryError, Samples, Vendor
from gpu_agent.model.gpu_health import Sample
from gpu_agent.model.inventory import Gpu
from gpu_runtime.policy import SELF_TEST_CONTAINER
from gpu_selftest import results
from gpu_selftest.burnin import checks as burnin_checks
from gpu_selftest.burnin import plot as picture
from gpu_selftest.burnin.checks import Course, Load, UnderLoad
from gpu_selftest.burnin.plot import Moment
from gpu_selftest.check import Obstacle, Outcome, Progress, Request, Result
from gpu_selftest.compute import work
from gpu_selftest.compute.environment import Environment, UnavailableError
from gpu_selftest.compute.equipment import Equipment, Times
from gpu_selftest.settings import Settings
from gpu_selftest.starvation_clock import Pulse
from machine import exhaustion as scarcity
from machine import files, process

CHECKS: typing.Final = burnin_checks.CHECKS


class _Working:
    """The work of one GPU, or of one of its MIG devices."""

    def __init__(self, child: process.Child, clock: Pulse, times: Times) -> None:
        self._child, self._clock, self._times = child, clock, times
        self._line, self._heard = "", clock.seconds()
        self._problem = ""

    @property
    def begun(self) -> bool:
        """Whether it is, or was, under load."""
        return bool(self._line)

    @property
    def ended(self) -> bool:
        """Whether it no longer works."""
        return bool(self._problem) or self._child.completed() is not None

    def look(self) -> None:
        """Look for output; end the work if there was none for long while others were served."""
        line, now = self._child.last_line(), self._clock.seconds()
        if line != self._line:
            self._line, self._heard = line, now
        if not self.ended and now - self._heard > self._times.silence:
            self._problem = f"no output for {self._times.silence:g} s"
            self._child.stop(patience=0)

    def stop(self) -> None:
        """Ask it to end."""
        self._child.terminate()

    def outcome(self) -> Load:
        """Return its result, after it was asked to end."""
        done = self._child.stop(self._times.stop)
        said = [line for line in done.stdout.splitlines() if line.startswith("{")]
        state: dict[str, typing.Any] = json.loads(said[-1]) if said else {}
        problem, starved = self._problem, ""
        if not problem and "ended" not in state and "unsupported" not in state:
            problem = work.broke_off(done.returncode, done.stderr, self._times.silence)
            if done.returncode == -signal.SIGKILL or scarcity.is_told_by(done.stderr):
                problem, starved = "", problem
        return Load(
            products=state.get("products", 0),
            mismatches=state.get("mismatches", 0),
            tflops=state.get("tflops", 0.0),
            problem=problem,
            starved=starved,
            unsupported=state.get("unsupported", ""),
        )


@dataclasses.dataclass
class _Run:
    """One GPU while it is under load; `begun` in seconds of the monotonic clock."""

    gpu: Gpu
    working: list[_Working]
    begun: float = 0.0
    moments: list[Moment] = dataclasses.field(default_factory=list[Moment])

    @property
    def ended(self) -> bool:
        """Whether all its work has ended."""
        return all(one.ended for one in self.working)

    def look(self, sample: Sample, now: float) -> None:
        """Keep a sample as long as it works."""
        for one in self.working:
            one.look()
        if not self.begun and all(one.begun for one in self.working):
            self.begun = now
        if self.begun and not self.ended:
            self.moments.append(Moment(now - self.begun, sample))


@dataclasses.dataclass(frozen=True)
class _Task:
    """The work of all GPUs.

    Attributes:
        request: what was requested.
        where: PyTorch's environment.
        vendor: the vendor of the GPUs.
        cuda: how its driver is asked about CUDA.
        equipment: what the burn-in works with.
        xids: reads the messages of NVIDIA's driver.
        progress: called with each step.
    """

    request: Request
    where: Environment
    vendor: Vendor
    cuda: Cuda
    equipment: Equipment
    xids: collections.abc.Callable[[], xid.Log]
    progress: Progress

    def command(self) -> list[str]:
        """Return the load's program and its arguments."""
        seconds = str(60 * self.request.minutes)
        return work.argv(self.where, "load", self.request.device, "--seconds", seconds)


def run(
    settings: Settings,
    gpus: tuple[Gpu, ...],
    request: Request,
    progress: Progress,
    equipment: Equipment,
    xids: collections.abc.Callable[[], xid.Log] = xid.read,
) -> list[Result]:
    """Put all these GPUs under load at once, each reserved, and return the results of each.

    A SIGTERM, which arrives as KeyboardInterrupt, ends it early. The results so far are returned.

    Args:
        settings: what this unit's GPUs are tested for.
        gpus: the GPUs.
        request: the duration; the device, where `cpu` is for the same load on the CPU, which
            proves nothing about a GPU; the id of the run, for the pictures.
        progress: called with the state every half minute.
        equipment: what it works with.
        xids: reads the messages of NVIDIA's driver.
    """
    vendor = equipment.vendor(gpus[0].vendor)
    if vendor.cuda is None:
        why = "the load supports NVIDIA's GPUs only"
        return [
            check.result(Outcome.SKIPPED, why, gpu=gpu.uuid) for gpu in gpus for check in CHECKS
        ]
    try:
        cuda = vendor.cuda.versions()[0] if request.device == "cuda" else ""
        where = equipment.pytorch(cuda, settings.wheels, settings.application, progress)
        task = _Task(request, where, vendor, vendor.cuda, equipment, xids, progress)
        return _tested(settings, gpus, task)
    except UnavailableError as error:
        return _not_run(dict.fromkeys(gpus, Obstacle(str(error))))
    except QueryError as error:
        return _not_run(dict.fromkeys(gpus, Obstacle(f"NVML says {error}")))


def _tested(settings: Settings, gpus: tuple[Gpu, ...], task: _Task) -> list[Result]:
    """Return the results of all GPUs, with the obstacle for those that a job uses.

    Raises:
        QueryError: the driver can't be queried.
    """
    held: dict[Gpu, Obstacle] = {}
    with contextlib.ExitStack() as stack:
        for gpu in gpus:
            container = f"{SELF_TEST_CONTAINER}burn-in-{task.request.run}-{gpu.index}"
            if why := stack.enter_context(task.equipment.alone(container, gpu.devices)):
                held[gpu] = why
        free = [gpu for gpu in gpus if gpu not in held]
        courses = _courses(settings, free, task) if free else []
    return _not_run(held) + burnin_checks.judge(courses)


def _not_run(reasons: collections.abc.Mapping[Gpu, Obstacle]) -> list[Result]:
    """Return the results of all checks of these GPUs, none of which could run."""
    return [check.not_run(why, gpu.uuid) for gpu, why in reasons.items() for check in CHECKS]


def _courses(settings: Settings, gpus: list[Gpu], task: _Task) -> list[Course]:
    """Return each GPU's time under load.

    Raises:
        QueryError: the driver can't be queried.
    """
    uuids = [gpu.uuid for gpu in gpus]
    before, earlier = task.vendor.health(uuids), task.xids()
    names = ", ".join(str(gpu.index) for gpu in gpus)
    task.progress(f"Burn-in of {task.request.minutes} min on GPU {names}")
    clock = task.equipment.clock()
    with contextlib.ExitStack() as stack:
        sample = stack.enter_context(task.cuda.watch(uuids))
        clock.start(task.equipment.times.silence)
        stack.callback(clock.stop)
        runs = [_Run(gpu, _begin(stack, gpu, task, clock)) for gpu in gpus]
        stopped = _watch(runs, sample, task)
        for one in [one for each in runs for one in each.working]:
            one.stop()
        loads = {each.gpu: tuple(one.outcome() for one in each.working) for each in runs}
    after, log = task.vendor.health(uuids), task.xids()
    new = [message for message in log.messages if message not in earlier.messages]
    return [
        Course(
            case=UnderLoad(settings, each.gpu, after[each.gpu.uuid], log),
            before=before[each.gpu.uuid],
            moments=tuple(each.moments),
            messages=tuple(one for one in new if one.pci_address == each.gpu.pci_address),
            loads=loads[each.gpu],
            picture=_keep_picture(each, task),
            stopped=stopped,
        )
        for each in runs
    ]


def _begin(stack: contextlib.ExitStack, gpu: Gpu, task: _Task, clock: Pulse) -> list[_Working]:
    """Let a GPU, or each of its MIG devices, work until the stack is unwound."""
    command = task.command()
    environments = [work.variables(task.request.device, [device]) for device in gpu.devices]
    return [
        _Working(
            stack.enter_context(process.beside(command, env=env)), clock, task.equipment.times
        )
        for env in environments
    ]


def _watch(runs: list[_Run], sample: collections.abc.Callable[[], Samples], task: _Task) -> str:
    """Sample the GPUs each second until all their work has ended.

    Returns:
        After how long it was stopped, such as `3.0 of 10 min`; or empty.
    """
    times, minutes = task.equipment.times, task.request.minutes
    began = told = time.monotonic()
    try:
        while not all(each.ended for each in runs):
            time.sleep(times.look)
            now, samples = time.monotonic(), sample()
            for each in runs:
                each.look(samples[each.gpu.uuid], now)
            if now - told >= times.tell:
                told = now
                states = "; ".join(_state(each.gpu, samples[each.gpu.uuid]) for each in runs)
                task.progress(f"Burn-in, {(now - began) / 60:.1f} of {minutes} min: {states}")
    except KeyboardInterrupt:
        return f"{(time.monotonic() - began) / 60:.1f} of {minutes} min"
    return ""


def _state(gpu: Gpu, sample: Sample) -> str:
    told = (
        (sample.sm_clock_mhz, "MHz"),
        (None if sample.power_w is None else round(sample.power_w), "W"),
        (sample.temperature, "°C"),
    )
    words = [f"{value} {unit}" for value, unit in told if value is not None]
    return f"GPU {gpu.index} {', '.join(words) or sample.failure or 'unknown'}"


def _keep_picture(each: _Run, task: _Task) -> str:
    """Draw one GPU's time under load; return the picture's path."""
    gpu, request = each.gpu, task.request
    path = results.picture(request.run, gpu.index, task.equipment.home)
    since = results.started(request.run)
    title = f"GPU {gpu.index}: {gpu.model}, {request.minutes} min, {since:%Y-%m-%d %H:%M} UTC"
    files.ensure_directory(path.parent)
    files.ensure_file(path, picture.draw(title, each.moments))
    task.progress(f"Picture of GPU {gpu.index}: {path}")
    return str(path)
