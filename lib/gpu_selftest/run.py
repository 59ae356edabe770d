# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run the levels in their order, and take GPUs out of or into use by their results."""

import collections.abc
import dataclasses
import datetime
import time
import typing

from gpu_agent.availability import lease_report as leases
from gpu_agent.availability import quarantine
from gpu_agent.gpu.vendors import device_nodes, registry
from gpu_agent.gpu.vendors.nvidia import xid
from gpu_agent.model.inventory import Gpu
from gpu_agent.model.leases import Lease
from gpu_selftest import hotplug_guard as absence
from gpu_selftest import last_pass, results
from gpu_selftest.burnin import level as burnin
from gpu_selftest.check import Check, Level, Outcome, Progress, Request, Result
from gpu_selftest.compute import level as compute
from gpu_selftest.compute.equipment import Equipment
from gpu_selftest.isolation import level as isolation
from gpu_selftest.last_pass import Records
from gpu_selftest.quick import ci_checks, gpu_checks, host_checks
from gpu_selftest.quick.host_checks import Look
from gpu_selftest.results import Report
from gpu_selftest.settings import Settings

CHECKS: typing.Final = (
    *host_checks.CHECKS,
    *gpu_checks.CHECKS,
    *isolation.CHECKS,
    *compute.CHECKS,
    *burnin.CHECKS,
)
"""The checks of all levels, without those of a CI system."""

# Checks without which a GPU can't be asked for its health.
_SILENT: typing.Final = (host_checks.INVENTORY.id, host_checks.DRIVER.id)

# The part of a time in ISO 8601 that is compared.
_SECOND: typing.Final = len("2026-11-21T17:00:00")

_RECORDS: typing.Final = Records()

_Make = collections.abc.Callable[[tuple[Gpu, ...]], list[Result]]


def _quick(settings: Settings, gpus: tuple[Gpu, ...], look: Look) -> list[Result]:
    answer = ci_checks.ask(settings, [check.id for check in CHECKS])
    found = host_checks.run(settings, look, answer)
    # NVML answers regardless of other faults of this worker.
    silent = [result for result in found if result.check in _SILENT]
    return found + _unless_failed(
        gpu_checks.CHECKS, gpus, silent, lambda good: _health(settings, good)
    )


def _health(settings: Settings, gpus: tuple[Gpu, ...]) -> list[Result]:
    told = registry.find(gpus[0].vendor).health(gpu.uuid for gpu in gpus)
    return gpu_checks.run(settings, told, xid.read(), gpus, _busy(gpus, leases.holders()))


def _busy(gpus: tuple[Gpu, ...], held: collections.abc.Mapping[str, Lease] | None) -> set[str]:
    """Return the ids of GPUs that a job uses; of all GPUs if that is unknown."""
    if held is None:
        return {gpu.uuid for gpu in gpus}
    devices = {device for lease in held.values() if lease.occupied for device in lease.devices}
    return {gpu.uuid for gpu in gpus if not devices.isdisjoint({gpu.uuid, *gpu.devices})}


def _unless_failed(
    checks: tuple[Check, ...], gpus: tuple[Gpu, ...], earlier: list[Result], make: _Make
) -> list[Result]:
    """Run the next checks on the GPUs that have not failed so far.

    A failure that takes no GPU out does not stop the next checks, which may find more. A failure
    of the worker as a whole, such as a full disk, stops all of them.
    """
    failed = {
        result.gpu: result.check
        for result in reversed(earlier)
        if results.condemns(result) or (result.outcome is Outcome.FAILED and not result.gpu)
    }
    if "" in failed:
        why = f"{failed['']} failed"
        return [check.result(Outcome.NOT_RUN, why) for check in checks]
    good = tuple(gpu for gpu in gpus if gpu.uuid not in failed)
    not_run = [
        check.result(Outcome.NOT_RUN, f"{failed[gpu.uuid]} failed", gpu=gpu.uuid)
        for gpu in gpus
        if gpu not in good
        for check in checks
        # A check that is not of each GPU runs on another one.
        if check.each_gpu or not good
    ]
    return [*not_run, *(make(good) if good else [])]


@dataclasses.dataclass(frozen=True)
class Levels:
    """The checks of all levels, as values that a test replaces; the defaults are the real ones.

    Attributes:
        nodes: returns the names of the GPUs' device nodes.
        look: returns the state of the machine.
        quick: makes the checks of level quick.
        isolation: makes the checks of level isolation.
        equipment: what the levels compute and burn-in work with.
    """

    nodes: collections.abc.Callable[[], collections.abc.Collection[str]] = device_nodes.present
    look: collections.abc.Callable[[Settings], Look] = host_checks.look
    quick: collections.abc.Callable[[Settings, tuple[Gpu, ...], Look], list[Result]] = _quick
    isolation: collections.abc.Callable[[Settings, tuple[Gpu, ...], Progress], list[Result]] = (
        isolation.run
    )
    equipment: Equipment = Equipment()


def run(
    settings: Settings,
    request: Request,
    progress: Progress,
    reached: collections.abc.Callable[[Level], None],
    levels: Levels = Levels(),
) -> Report:
    """Run all checks of a level and of the levels before it.

    A GPU that fails is taken out of use at once; conclude does the rest.

    Args:
        settings: those of this unit.
        request: what to test.
        progress: called with each step.
        reached: called with each level after quick when it begins.
        levels: makes the checks.
    """
    started, began = datetime.datetime.now(datetime.timezone.utc), time.monotonic()
    there = levels.nodes()
    progress("Checking the machine and its GPUs")
    look = levels.look(settings)
    # NVML makes missing nodes, for example after boot.
    there = {*there, *levels.nodes()}
    gpus = tuple(gpu for gpu in settings.gpus if request.gpu in ("", gpu.uuid))
    found = levels.quick(settings, gpus, look)
    for level, checks, make in _later(settings, request, progress, levels):
        found = absence.spared(found, there, levels.nodes())
        if request.level.includes(level):
            reached(level)
            # The next level may take hours: no job may get a failed GPU meanwhile.
            _take_out(settings, request.device, found)
            found += _unless_failed(checks, gpus, found, make)
    found = absence.spared(found, there, levels.nodes())
    return Report(
        run=request.run,
        # An unknown state is tested again at the next event.
        subject="" if look.unknown else last_pass.subject(settings, look.inventory, look.machine),
        level=request.level,
        device=request.device,
        gpu=request.gpu,
        outcome=results.outcome(found),
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - began, 1),
        results=tuple(found),
    )


def _later(
    settings: Settings, request: Request, progress: Progress, levels: Levels
) -> tuple[tuple[Level, tuple[Check, ...], _Make], ...]:
    """Return the levels after quick, each with its checks and the function that runs them."""

    def isolate(gpus: tuple[Gpu, ...]) -> list[Result]:
        return levels.isolation(settings, gpus, progress)

    def calculate(gpus: tuple[Gpu, ...]) -> list[Result]:
        return compute.run(settings, gpus, request.device, progress, levels.equipment)

    def load(gpus: tuple[Gpu, ...]) -> list[Result]:
        return burnin.run(settings, gpus, request, progress, levels.equipment)

    return (
        (Level.ISOLATION, isolation.CHECKS, isolate),
        (Level.COMPUTE, compute.CHECKS, calculate),
        (Level.BURN_IN, burnin.CHECKS, load),
    )


def conclude(settings: Settings, report: Report, records: Records = _RECORDS) -> None:
    """Take every GPU out of or into use as the report says, then save the report.

    A failure of the worker as a whole takes all its GPUs out, unless a job may have caused it. A
    GPU returns when the level that it failed passes. A GPU that an operator cordoned stays out.
    """
    if report.device == "cuda":
        _take_out(settings, report.device, report.results)
        _bring_back(settings, report)
        if _proves(report):
            records.keep(report.subject)
    # Saved last: a caller that waits for the report finds its effects done.
    records.save(report)
    if report.device == "cuda" and not report.gpu:
        records.note_verdict()


def _take_out(settings: Settings, device: str, found: collections.abc.Iterable[Result]) -> None:
    """Quarantine the GPUs that failed, each for its first reason."""
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
    """End the quarantine of GPUs that pass the level that they failed."""
    tested = {gpu.uuid for gpu in settings.gpus if report.gpu in ("", gpu.uuid)}
    for entry in quarantine.read():
        # Without a level, only the operator brings the GPU back.
        ours = entry.uuid in tested and entry.by != quarantine.OPERATOR and entry.level
        # A test proves nothing about what the health service saw after its start. Times are UTC.
        later = entry.by == quarantine.HEALTH and entry.since[:_SECOND] >= report.started[:_SECOND]
        if ours and not later and results.passed(report, entry.uuid, Level(entry.level)):
            quarantine.lift(entry.uuid)


def _proves(report: Report) -> bool:
    """Return whether all GPUs passed isolation."""
    whole = not report.gpu and report.level.includes(Level.ISOLATION)
    return whole and not any(map(results.is_against, report.results))
