# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The burn-in: GPUs under load for minutes, watched each second."""

import collections.abc
import contextlib
import dataclasses
import json
import signal
import time
import typing

from gpu_agent.gpu.vendors.nvidia import nvml, xid
from gpu_agent.gpu.vendors.nvidia import nvml_health as health
from gpu_agent.gpu.vendors.nvidia.nvml_health import Sample
from gpu_agent.model.inventory import Gpu, Vendor
from gpu_runtime.policy import SELF_TEST_CONTAINER
from gpu_selftest import gpu_reservation as reserve
from gpu_selftest import results
from gpu_selftest.burnin import checks as burnin_checks
from gpu_selftest.burnin import plot as picture
from gpu_selftest.burnin.checks import Course, Load, UnderLoad
from gpu_selftest.burnin.plot import Moment
from gpu_selftest.check import Outcome, Progress, Result
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
# The load tells of itself about each second. Before that PyTorch is loaded, and the driver where
# persistence mode does not hold it.
_SILENCE_SECONDS: typing.Final = 120.0
_STOP_SECONDS: typing.Final = 10.0


class _Working:
    """The work that one GPU, or one of its MIG devices, is given."""

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
        """Whether it works no more."""
        return bool(self._problem) or self._child.completed() is not None

    def look(self) -> None:
        """Look for a sign of life; what gives none for long, while others are served, is ended."""
        line, now = self._child.last_line(), self._clock.seconds()
        if line != self._line:
            self._line, self._heard = line, now
        if not self.ended and now - self._heard > _SILENCE_SECONDS:
            self._problem = f"no sign of life for {_SILENCE_SECONDS:g} s"
            self._child.stop(patience=0)

    def stop(self) -> None:
        """Ask it to end."""
        self._child.terminate()

    def outcome(self) -> Load:
        """What came of it, once it has been asked to end."""
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
        """Whether it works no more."""
        return all(one.ended for one in self.working)

    def look(self, sample: Sample, now: float) -> None:
        """Note what was seen, as long as it works."""
        for one in self.working:
            one.look()
        if not self.begun and all(one.begun for one in self.working):
            self.begun = now
        if self.begun and not self.ended:
            self.moments.append(Moment(now - self.begun, sample))


@dataclasses.dataclass(frozen=True)
class _Task:
    """What the GPUs are to do: where PyTorch is, for how long, `cuda` or `cpu`, in which run."""

    where: Environment
    minutes: int
    device: str
    name: str

    def command(self) -> list[str]:
        """The load's program and its arguments."""
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
    """Have all these GPUs work at once, each alone, and tell what that proves of each.

    A SIGTERM, which arrives as KeyboardInterrupt, ends it early: what was seen until then is told.

    Args:
        settings: what this unit's GPUs are tested for.
        gpus: which.
        minutes: how long.
        device: `cuda`; or `cpu`, where the same load works on the CPU and proves no GPU.
        progress: told how it goes, each half minute.
        name: the id of the run, for the pictures.
    """
    if any(gpu.vendor is not Vendor.NVIDIA for gpu in gpus):
        return _all(Outcome.SKIPPED, dict.fromkeys(gpus, "only NVIDIA's GPUs are put under load"))
    try:
        cuda = nvml.read().cuda if device == "cuda" else ""
        where = environment.ensure(cuda, settings.wheels, settings.application, progress)
        return _tested(settings, gpus, _Task(where, minutes, device, name), progress)
    except environment.UnavailableError as error:
        return _all(Outcome.PREVENTED, dict.fromkeys(gpus, str(error)))
    except nvml.NvmlError as error:
        return _all(Outcome.PREVENTED, dict.fromkeys(gpus, f"NVML says {error}"))


def _tested(
    settings: Settings, gpus: tuple[Gpu, ...], task: _Task, progress: Progress
) -> list[Result]:
    """The results of the GPUs that nobody has, and of those that a job has why there are none.

    Raises:
        NvmlError: if NVML can't be used.
    """
    held: dict[Gpu, str] = {}
    with contextlib.ExitStack() as stack:
        for gpu in gpus:
            container = f"{SELF_TEST_CONTAINER}burn-in-{task.name}-{gpu.index}"
            if why := stack.enter_context(reserve.alone(container, gpu.devices)):
                held[gpu] = why
        free = [gpu for gpu in gpus if gpu not in held]
        courses = _courses(settings, free, task, progress) if free else []
    return _all(Outcome.PREVENTED, held) + burnin_checks.judge(courses)


def _all(outcome: Outcome, reasons: collections.abc.Mapping[Gpu, str]) -> list[Result]:
    """All checks of each of these GPUs, with the reason why they were not made."""
    return [
        check.result(outcome, why, gpu=gpu.uuid)
        for gpu, why in reasons.items()
        for check in CHECKS
    ]


def _courses(settings: Settings, gpus: list[Gpu], task: _Task, progress: Progress) -> list[Course]:
    """What each GPU's time under load was like.

    Raises:
        NvmlError: if NVML can't be used.
    """
    uuids = [gpu.uuid for gpu in gpus]
    before, earlier = health.read(uuids), xid.read()
    names = ", ".join(str(gpu.index) for gpu in gpus)
    progress(f"Burn-in of {task.minutes} min on GPU {names}")
    clock = Pulse()
    with contextlib.ExitStack() as stack:
        sample = stack.enter_context(health.watch(uuids))
        clock.start(_SILENCE_SECONDS)
        stack.callback(clock.stop)
        runs = [_Run(gpu, _begin(stack, gpu, task, clock)) for gpu in gpus]
        stopped = _watch(runs, sample, task.minutes, progress)
        for one in [one for each in runs for one in each.working]:
            one.stop()
        loads = {each.gpu: tuple(one.outcome() for one in each.working) for each in runs}
    after, log = health.read(uuids), xid.read()
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
    """Have a GPU, or each of its MIG devices, work until the stack is unwound."""
    command = task.command()
    environments = [work.variables(task.device, [device]) for device in gpu.devices]
    return [
        _Working(stack.enter_context(process.beside(command, env=env)), clock)
        for env in environments
    ]


def _watch(
    runs: list[_Run],
    sample: collections.abc.Callable[[], dict[str, Sample]],
    minutes: int,
    progress: Progress,
) -> str:
    """Look at the GPUs each second until all their work has ended.

    Returns:
        After how long somebody stopped it, in words; or empty.
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
    return f"GPU {gpu.index} {', '.join(words) or sample.failure or 'tells nothing'}"


def _keep_picture(each: _Run, task: _Task, progress: Progress) -> str:
    """Draw one GPU's time under load; return where that is."""
    gpu = each.gpu
    path = results.picture(task.name, gpu.index)
    since = results.started(task.name)
    title = f"GPU {gpu.index}: {gpu.model}, {task.minutes} min, {since:%Y-%m-%d %H:%M} UTC"
    files.ensure_directory(path.parent)
    files.ensure_file(path, picture.draw(title, each.moments))
    progress(f"Picture of GPU {gpu.index}: {path}")
    return str(path)
