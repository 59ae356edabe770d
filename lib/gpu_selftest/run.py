# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The levels in their order, what follows from a failure, and what the verdict changes."""

import collections.abc
import dataclasses
import datetime
import time
import typing

from gpu_agent.availability import lease_report as leases
from gpu_agent.availability import quarantine
from gpu_agent.gpu.kernel import device_nodes as nodes
from gpu_agent.gpu.vendors.nvidia import nvml_health as health
from gpu_agent.gpu.vendors.nvidia import xid
from gpu_agent.model.inventory import Gpu
from gpu_selftest import hotplug_guard as absence
from gpu_selftest import last_pass, results
from gpu_selftest.burnin import level as burnin
from gpu_selftest.check import Check, Level, Outcome, Progress, Result
from gpu_selftest.compute import level as compute
from gpu_selftest.isolation import level as isolation
from gpu_selftest.quick import gpu_checks, host_checks
from gpu_selftest.results import Report
from gpu_selftest.settings import Settings

# Those without which a GPU can't be asked how it is.
_SILENT: typing.Final = (host_checks.INVENTORY.id, host_checks.DRIVER.id)

# Times are compared to this.
_SECOND: typing.Final = len("2026-11-21T17:00:00")

_Make = collections.abc.Callable[[tuple[Gpu, ...]], list[Result]]


@dataclasses.dataclass(frozen=True)
class Request:
    """What is to be tested.

    Attributes:
        run: an id by which the caller knows the report.
        level: how much.
        gpu: id of the one GPU that is meant; empty: all that tasks may get.
        device: `cuda`; or `cpu`, which proves no GPU, so that its report changes nothing.
        minutes: how long the burn-in loads the GPUs.
    """

    run: str
    level: Level = Level.QUICK
    gpu: str = ""
    device: str = "cuda"
    minutes: int = 10


def run(
    settings: Settings,
    request: Request,
    progress: Progress,
    reached: collections.abc.Callable[[Level], None],
) -> Report:
    """Make all checks of a level and of those before it.

    A GPU that fails is out of use at once; the rest is done by conclude. `reached` is told of each
    level after quick that begins.
    """
    started, began = datetime.datetime.now(datetime.timezone.utc), time.monotonic()
    there = nodes.present()
    progress("Checking the machine and its GPUs")
    look = host_checks.look(settings)
    # NVML makes nodes that are missing, as after a boot.
    there = {*there, *nodes.present()}
    gpus = tuple(gpu for gpu in settings.gpus if request.gpu in ("", gpu.uuid))
    found = _quick(settings, gpus, look)
    for level, checks, make in _later(settings, request, progress):
        found = absence.spared(found, there, nodes.present())
        if request.level.includes(level):
            reached(level)
            # No job gets it meanwhile: the next level may take hours.
            _take_out(settings, request.device, found)
            found += _unless_prevented(checks, gpus, found, make)
    found = absence.spared(found, there, nodes.present())
    return Report(
        run=request.run,
        # What can't be told is to be tested again at the next event.
        subject="" if look.unknown else last_pass.subject(settings, look.inventory, look.machine),
        level=request.level,
        device=request.device,
        gpu=request.gpu,
        outcome=results.outcome(found),
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - began, 1),
        results=tuple(found),
    )


def _quick(settings: Settings, gpus: tuple[Gpu, ...], look: host_checks.Look) -> list[Result]:
    found = host_checks.run(settings, look)
    # NVML answers whatever else is wrong with this worker.
    silent = [result for result in found if result.check in _SILENT]
    return found + _unless_prevented(
        gpu_checks.CHECKS, gpus, silent, lambda good: _health(settings, good)
    )


def _health(settings: Settings, gpus: tuple[Gpu, ...]) -> list[Result]:
    told = health.read(gpu.uuid for gpu in gpus)
    return gpu_checks.run(settings, told, xid.read(), gpus, _busy(gpus))


def _busy(gpus: tuple[Gpu, ...]) -> set[str]:
    """The ids of those that a job has; of all where that can't be told."""
    held = leases.holders()
    if held is None:
        return {gpu.uuid for gpu in gpus}
    devices = {device for lease in held.values() if lease.occupied for device in lease.devices}
    return {gpu.uuid for gpu in gpus if not devices.isdisjoint({gpu.uuid, *gpu.devices})}


def _later(
    settings: Settings, request: Request, progress: Progress
) -> tuple[tuple[Level, tuple[Check, ...], _Make], ...]:
    """The levels after quick, each with its checks and how they are made on some GPUs."""

    def isolate(gpus: tuple[Gpu, ...]) -> list[Result]:
        return isolation.run(settings, gpus, progress)

    def calculate(gpus: tuple[Gpu, ...]) -> list[Result]:
        return compute.run(settings, gpus, request.device, progress)

    def load(gpus: tuple[Gpu, ...]) -> list[Result]:
        return burnin.run(settings, gpus, request.minutes, request.device, progress, request.run)

    return (
        (Level.ISOLATION, isolation.CHECKS, isolate),
        (Level.COMPUTE, compute.CHECKS, calculate),
        (Level.BURN_IN, burnin.CHECKS, load),
    )


def _unless_prevented(
    checks: tuple[Check, ...], gpus: tuple[Gpu, ...], earlier: list[Result], make: _Make
) -> list[Result]:
    """The results of the next checks, on those GPUs alone that have failed none so far.

    What condemns no GPU does not spare it the next checks, which may show more; but without room
    on the disk, say, none can be made.
    """
    failed = {
        result.gpu: result.check
        for result in reversed(earlier)
        if results.condemns(result) or (result.outcome is Outcome.FAILED and not result.gpu)
    }
    if "" in failed:
        why = f"{failed['']} failed"
        return [check.result(Outcome.PREVENTED, why) for check in checks]
    good = tuple(gpu for gpu in gpus if gpu.uuid not in failed)
    prevented = [
        check.result(Outcome.PREVENTED, f"{failed[gpu.uuid]} failed", gpu=gpu.uuid)
        for gpu in gpus
        if gpu not in good
        for check in checks
        # Those that are not of each GPU have another to run on.
        if check.each_gpu or not good
    ]
    return [*prevented, *(make(good) if good else [])]


def conclude(settings: Settings, report: Report) -> None:
    """Have every GPU in or out of use as a report says, and keep it.

    A failure of the worker as a whole takes all its GPUs out, but for what a job may bring about.
    A GPU returns when the level that failed it passes; what an operator has cordoned stays so.
    """
    if report.device == "cuda":
        _take_out(settings, report.device, report.results)
        _bring_back(settings, report)
        if _proves(report):
            last_pass.keep(report.subject)
    # Whoever waits for the report finds done what it says.
    results.save(report)
    if report.device == "cuda" and not report.gpu:
        last_pass.note_verdict()


def _take_out(settings: Settings, device: str, found: collections.abc.Iterable[Result]) -> None:
    """Quarantine what failed, for the first reason that it failed for."""
    if device != "cuda":
        return
    earlier = {entry.uuid: entry for entry in quarantine.read()}
    failed: dict[str, Result] = {}
    for failure in filter(results.condemns, found):
        for uuid in [failure.gpu] if failure.gpu else [gpu.uuid for gpu in settings.gpus]:
            failed.setdefault(uuid, failure)
    for uuid, failure in failed.items():
        level, before = failure.level, earlier.get(uuid)
        if before and before.level and not level.includes(Level(before.level)):
            level = Level(before.level)
        quarantine.put(uuid, failure.text, failure.check, level.value, failure.remedy)


def _bring_back(settings: Settings, report: Report) -> None:
    """End the quarantine of those that pass the level that failed them."""
    tested = {gpu.uuid for gpu in settings.gpus if report.gpu in ("", gpu.uuid)}
    for entry in quarantine.read():
        # Without a level nothing but the operator's word brings it back.
        ours = entry.uuid in tested and entry.by != quarantine.OPERATOR and entry.level
        # Nor does a test prove what the watch saw after it had begun. Both times are in UTC.
        later = entry.by == quarantine.WATCH and entry.since[:_SECOND] >= report.started[:_SECOND]
        if ours and not later and results.passed(report, entry.uuid, Level(entry.level)):
            quarantine.lift(entry.uuid)


def _proves(report: Report) -> bool:
    """Whether all GPUs passed isolation."""
    whole = not report.gpu and report.level.includes(Level.ISOLATION)
    return whole and not any(map(results.is_against, report.results))
