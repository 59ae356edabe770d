# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The self-test as the charm runs it by itself, and what the last one came to."""

import dataclasses
import datetime
import time
import typing

import allowed
from found import Found, Verdict
from oci import quarantine, wrapper
from plan import GpuPlan, Plan
from selftest import proof, results, settings, unit
from selftest.check import Level, Outcome, Progress, Result
from selftest.compute import environment
from selftest.settings import Settings

# How long a hook follows a test of isolation, in seconds: it takes 60 at most, and ends itself
# after 90.
_PATIENCE: typing.Final = 120
# How long it waits for one by hand or at boot, in seconds: all but compute and burn-in are done.
_COURTESY: typing.Final = 30
# How often one is tried again, in seconds, that was incomplete, since a job held a GPU, or that
# failed of what a job may have brought about, such as a full disk.
_TRY_AGAIN: typing.Final = 300


def ensure(found: Found, wanted: Plan, *, repaired: bool, progress: Progress) -> Found:
    """Have the self-test on this machine, and run it where something changed that it proves.

    Args:
        found: what this unit was decided on.
        wanted: what it is to be.
        repaired: whether something of the wrapper was not as it should be.
        progress: told what happens.

    Returns:
        The same with what the self-test says.

    Raises:
        unit.SelftestError: it ended without a verdict.
    """
    if found.inventory is None or found.leaving:
        remove()
        return found
    current = _settings(found, wanted)
    settings.write(current)
    on_start = found.options.selftest_on_start
    unit.install(on_start=on_start)
    subject = proof.subject(current, found.inventory, found.machine)
    unknown = ""
    due = _due(subject, repaired=repaired)
    if on_start and isinstance(wanted.gpu, GpuPlan) and due:
        unknown = _test(due, progress)
    elif ended := unit.broken_off():
        unknown = f"that of level {ended.level.value} ended without a verdict, see {unit.LOG}"
    said = Verdict("incomplete", failure=unknown) if unknown else verdict()
    return dataclasses.replace(found, quarantined=quarantine.read(), verdict=said)


def _test(level: Level, progress: Progress) -> str:
    """Test quick or isolation, or follow the test that a killed hook has started.

    Returns:
        Why there is no verdict yet; empty if there is.

    Raises:
        unit.SelftestError: it ended without one.
    """
    running = unit.running()
    if running and not Level.ISOLATION.includes(running.level):
        return f"it is due, and one of level {running.level.value} still runs"
    if not running and (other := unit.wait_for_others(_COURTESY)):
        return f"it is due, and another still runs: {other}"
    name = running.run if running else unit.start(level)
    report = unit.follow(name, _PATIENCE, lambda line: progress(f"Self-test: {line}"))
    return "" if report else "it still runs"


def remove() -> bool:
    """Take the self-test from this machine; what it found out stays. True if it was there."""
    removed = [unit.remove(), environment.remove(), settings.remove()]
    return any(removed)


def verdict() -> Verdict | None:
    """What the last self-test came to; None before the first."""
    report = results.read()
    if report is None:
        return None
    told = Outcome.PREVENTED if report.outcome == "incomplete" else Outcome.FAILED
    # First what takes no GPU out: of the others status has what it says of the quarantine.
    found = sorted(filter(lambda one: one.outcome is told, report.results), key=results.condemns)
    first = found[0] if found else None
    if first is None:
        return Verdict(report.outcome, bool(report.gpu))
    # Which container it is, how long it has had a GPU and how full the disk is change by the
    # minute.
    cut = ":" if told is Outcome.FAILED and not first.condemns else " by container"
    why = first.text.partition(cut)[0]
    return Verdict(report.outcome, bool(report.gpu), why, first.remedy)


def _settings(found: Found, wanted: Plan) -> Settings:
    """What the self-test must know; while the GPUs can't be used, those that were here before."""
    earlier, options = settings.read(), found.options
    choice = allowed.choose(found)
    gpus = tuple(
        dataclasses.replace(gpu, index=index)
        for index, gpu in zip(choice.indexes, choice.gpus, strict=True)
    )
    ready = isinstance(wanted.gpu, GpuPlan)
    return Settings(
        unit=found.unit,
        vendor=options.gpu_vendor,
        gpus=gpus if ready or not earlier else earlier.gpus,
        allocation=options.gpu_allocation,
        min_gpu_memory_gib=options.minimums.gpu_memory_gib,
        min_compute_capability=options.minimums.compute_capability,
        min_driver_version=options.minimums.driver_version,
        files=wrapper.installed() if ready or not earlier else earlier.files,
        wheels=found.wheels,
    )


def _due(subject: str, *, repaired: bool) -> Level | None:
    """Which level is to be tested now; None if nothing is due."""
    last = results.read()
    if last is None or last.subject != subject or not proof.is_tested():
        return Level.ISOLATION
    whole = not last.gpu and last.level.includes(Level.ISOLATION)
    # What failed stays out of use until the operator, or a change, has it tested again.
    anew = repaired if whole and last.outcome != "passed" else proof.kept() != subject
    if anew:
        return Level.ISOLATION
    started = datetime.datetime.fromisoformat(last.started).timestamp()
    if time.time() - started <= _TRY_AGAIN:
        return None
    if whole and _left_out(last):
        return Level.ISOLATION
    if not any(map(_may_be_over, last.results)):
        return None
    return Level.QUICK if proof.kept() == subject else Level.ISOLATION


def _may_be_over(result: Result) -> bool:
    """Whether it failed of what a job may have brought about, and the quick test shows."""
    failed = result.outcome is Outcome.FAILED and not result.condemns
    return failed and result.level is Level.QUICK


def _left_out(report: results.Report) -> bool:
    """Whether a report lacks checks of GPUs that have not failed, as where a job had them."""
    failed = {result.gpu for result in filter(results.condemns, report.results)}
    prevented = {result.gpu for result in report.results if result.outcome is Outcome.PREVENTED}
    if not failed or "" in failed:
        return bool(prevented) and not failed
    return not prevented <= failed | {""}
