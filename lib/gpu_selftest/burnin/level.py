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

from gpu_agent.gpu.vendors import registry
from gpu_agent.gpu.vendors.nvidia import xid
from gpu_agent.gpu.vendors.vendor import Cuda, QueryError, Samples, Vendor
from gpu_agent.model.gpu_health import Sample
from gpu_agent.model.inventory import Gpu
from gpu_runtime.policy import SELF_TEST_CONTAINER
from gpu_selftest import gpu_reservation as reserve
from gpu_selftest import results
from gpu_selftest.burnin import checks as burnin_checks
from gpu_selftest.burnin import plot as picture
from gpu_selftest.burnin.checks import Course, Load, UnderLoad
from gpu_selftest.burnin.plot import Moment
from gpu_selftest.check import Obstacle, Outcome, Progress, Result
from gpu_selftest.compute import environment, work
from gpu_selftest.compute.environment import Environment
from gpu_selftest.settings import Settings
from gpu_selftest.starvation_clock import Pulse
from machine import exhaustion as scarcity
from machine import files, process

CHECKS: typing.Final = burnin_checks.CHECKS

# In seconds.
_LOOK_EVERY: typing.Final = 1.0
_TELL_EVERY: typing.Final = 30.0
# The load prints its state about each second. Before that it loads PyTorch, and the driver if
# persistence mode is off.
_SILENCE_SECONDS: typing.Final = 120.0
_STOP_SECONDS: typing.Final = 10.0


class _Working:
    """The work of one GPU, or of one of its MIG devices."""

    def __init__(self, child: process.Child, clock: Pulse) -> None:
        self._child, self._clock = child, clock
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
        if not self.ended and now - self._heard > _SILENCE_SECONDS:
            self._problem = f"no output for {_SILENCE_SECONDS:g} s"
            self._child.stop(patience=0)

    def stop(self) -> None:
        """Ask it to end."""
        self._child.terminate()

    def outcome(self) -> Load:
        """Return its result, after it was asked to end."""
        done = self._child.stop(_STOP_SECONDS)
        said = [line for line in done.stdout.splitlines() if line.startswith("{")]
        state: dict[str, typing.Any] = json.loads(said[-1]) if said else {}
        problem, starved = self._problem, ""
        if not problem and "ended" not in state and "unsupported" not in state:
            problem = work.broke_off(done.returncode, done.stderr, _SILENCE_SECONDS)
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
    """The work of all GPUs: PyTorch's environment, minutes, `cuda` or `cpu`, the run's id.

    Attributes:
        vendor: the vendor of the GPUs.
        cuda: how its driver is asked about CUDA.
    """

    where: Environment
    minutes: int
    device: str
    name: str
    vendor: Vendor
    cuda: Cuda

    def command(self) -> list[str]:
        """Return the load's program and its arguments."""
        seconds = str(60 * self.minutes)
        return work.argv(self.where, "load", self.device, "--seconds", seconds)


def run(
    settings: Settings,
    gpus: tuple[Gpu, ...],
    minutes: int,
    device: str,
    progress: Progress,
    name: str,
) -> list[Result]:
    """Put all these GPUs under load at once, each reserved, and return the results of each.

    A SIGTERM, which arrives as KeyboardInterrupt, ends it early. The results so far are returned.

    Args:
        settings: what this unit's GPUs are tested for.
        gpus: the GPUs.
        minutes: the duration.
        device: `cuda`; or `cpu`, for the same load on the CPU, which proves nothing about a GPU.
        progress: called with the state every half minute.
        name: the id of the run, for the pictures.
    """
    vendor = registry.find(gpus[0].vendor)
    if vendor.cuda is None:
        why = "the load supports NVIDIA's GPUs only"
        return [
            check.result(Outcome.SKIPPED, why, gpu=gpu.uuid) for gpu in gpus for check in CHECKS
        ]
    try:
        cuda = vendor.cuda.versions()[0] if device == "cuda" else ""
        where = environment.ensure(cuda, settings.wheels, settings.application, progress)
        return _tested(
            settings, gpus, _Task(where, minutes, device, name, vendor, vendor.cuda), progress
        )
    except environment.UnavailableError as error:
        return _not_run(dict.fromkeys(gpus, Obstacle(str(error))))
    except QueryError as error:
        return _not_run(dict.fromkeys(gpus, Obstacle(f"NVML says {error}")))


def _tested(
    settings: Settings, gpus: tuple[Gpu, ...], task: _Task, progress: Progress
) -> list[Result]:
    """Return the results of all GPUs, with the obstacle for those that a job uses.

    Raises:
        QueryError: the driver can't be queried.
    """
    held: dict[Gpu, Obstacle] = {}
    with contextlib.ExitStack() as stack:
        for gpu in gpus:
            container = f"{SELF_TEST_CONTAINER}burn-in-{task.name}-{gpu.index}"
            if why := stack.enter_context(reserve.alone(container, gpu.devices)):
                held[gpu] = why
        free = [gpu for gpu in gpus if gpu not in held]
        courses = _courses(settings, free, task, progress) if free else []
    return _not_run(held) + burnin_checks.judge(courses)


def _not_run(reasons: collections.abc.Mapping[Gpu, Obstacle]) -> list[Result]:
    """Return the results of all checks of these GPUs, none of which could run."""
    return [check.not_run(why, gpu.uuid) for gpu, why in reasons.items() for check in CHECKS]


def _courses(settings: Settings, gpus: list[Gpu], task: _Task, progress: Progress) -> list[Course]:
    """Return each GPU's time under load.

    Raises:
        QueryError: the driver can't be queried.
    """
    uuids = [gpu.uuid for gpu in gpus]
    before, earlier = task.vendor.health(uuids), xid.read()
    names = ", ".join(str(gpu.index) for gpu in gpus)
    progress(f"Burn-in of {task.minutes} min on GPU {names}")
    clock = Pulse()
    with contextlib.ExitStack() as stack:
        sample = stack.enter_context(task.cuda.watch(uuids))
        clock.start(_SILENCE_SECONDS)
        stack.callback(clock.stop)
        runs = [_Run(gpu, _begin(stack, gpu, task, clock)) for gpu in gpus]
        stopped = _watch(runs, sample, task.minutes, progress)
        for one in [one for each in runs for one in each.working]:
            one.stop()
        loads = {each.gpu: tuple(one.outcome() for one in each.working) for each in runs}
    after, log = task.vendor.health(uuids), xid.read()
    new = [message for message in log.messages if message not in earlier.messages]
    return [
        Course(
            case=UnderLoad(settings, each.gpu, after[each.gpu.uuid], log),
            before=before[each.gpu.uuid],
            moments=tuple(each.moments),
            messages=tuple(one for one in new if one.pci_address == each.gpu.pci_address),
            loads=loads[each.gpu],
            picture=_keep_picture(each, task, progress),
            stopped=stopped,
        )
        for each in runs
    ]


def _begin(stack: contextlib.ExitStack, gpu: Gpu, task: _Task, clock: Pulse) -> list[_Working]:
    """Let a GPU, or each of its MIG devices, work until the stack is unwound."""
    command = task.command()
    environments = [work.variables(task.device, [device]) for device in gpu.devices]
    return [
        _Working(stack.enter_context(process.beside(command, env=env)), clock)
        for env in environments
    ]


def _watch(
    runs: list[_Run],
    sample: collections.abc.Callable[[], Samples],
    minutes: int,
    progress: Progress,
) -> str:
    """Sample the GPUs each second until all their work has ended.

    Returns:
        After how long it was stopped, such as `3.0 of 10 min`; or empty.
    """
    began = told = time.monotonic()
    try:
        while not all(each.ended for each in runs):
            time.sleep(_LOOK_EVERY)
            now, samples = time.monotonic(), sample()
            for each in runs:
                each.look(samples[each.gpu.uuid], now)
            if now - told >= _TELL_EVERY:
                told = now
                states = "; ".join(_state(each.gpu, samples[each.gpu.uuid]) for each in runs)
                progress(f"Burn-in, {(now - began) / 60:.1f} of {minutes} min: {states}")
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


def _keep_picture(each: _Run, task: _Task, progress: Progress) -> str:
    """Draw one GPU's time under load; return the picture's path."""
    gpu = each.gpu
    path = results.picture(task.name, gpu.index)
    since = results.started(task.name)
    title = f"GPU {gpu.index}: {gpu.model}, {task.minutes} min, {since:%Y-%m-%d %H:%M} UTC"
    files.ensure_directory(path.parent)
    files.ensure_file(path, picture.draw(title, each.moments))
    progress(f"Picture of GPU {gpu.index}: {path}")
    return str(path)
