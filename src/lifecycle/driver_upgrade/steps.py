# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The steps from one NVIDIA driver to another, and back where the new one fails.

Where it stands is written down before each step, and each step can be made again: the next hook
goes on where a reboot or a kill has ended it. All GPUs are out of use meanwhile, over reboots too,
and a self-test of isolation that passes brings them back, whoever starts it.
"""

import collections.abc
import dataclasses
import logging
import typing

from ci.concourse import release
from gpu_agent.gpu.vendors.nvidia import driver_state
from gpu_agent.model import errors
from gpu_selftest import results, service, settings
from gpu_selftest.check import Level, Progress, Result
from gpu_selftest.settings import Settings
from host import nvidia_driver as driver
from host import nvidia_driver_change as driver_change
from lifecycle import drain
from lifecycle.driver_upgrade import gpu_pool as pool
from lifecycle.driver_upgrade import record as driver_record
from lifecycle.driver_upgrade.record import Record, Step
from machine.packages import PackageError
from plan.draining import Purpose

STEPS: typing.Final = 6

# In seconds. A test of isolation takes 60, and systemd ends one after 600 (gpu_selftest.service).
_TESTED: typing.Final = 620
_COURTESY: typing.Final = 30

_log = logging.getLogger(__name__)


class _NoVerdictError(Exception):
    """A self-test came to no verdict; the text says why."""


def settle(progress: Progress) -> bool:
    """Go on with an upgrade that a reboot, a kill or an error has ended.

    Returns:
        Whether anything changed.

    Raises:
        machine.packages.PackageError: it can't be gone on with now.
        gpu_selftest.service.SelftestError: the same.
        gpu_agent.model.errors.UnknownError: the same.
    """
    try:
        record = driver_record.read()
        if record is None or record.step is Step.ENDED:
            return False
        before = record
        if record.step is Step.WAIT:
            drained = drain.go_on(Purpose.DRIVER, progress)
            if drained is None:  # killed before it was begun, or given up by resume
                give_up()
            if not drained:
                return drained is None
            pool.wait(0, progress)
            record = dataclasses.replace(record, step=Step.INSTALL)
        after = go_on(record, lambda line: progress(f"Driver upgrade, {line}"))
        drain.finish(Purpose.DRIVER)
        return after != before
    except OSError as error:
        raise errors.unknown(error) from error


def give_up() -> None:
    """End an upgrade that has changed nothing yet."""
    drain.cancel(Purpose.DRIVER)
    pool.bring_back()
    driver_record.remove()


def said() -> str:
    """What there is to know of the last upgrade: why it was taken back, or what it waits for."""
    record = driver_record.read()
    if record is None:
        return ""
    text = f"driver upgrade from {record.before} to {record.after}"
    if record.step is Step.ENDED:
        return f"{text} taken back: {record.why}" + (f"; {record.stuck}" if record.stuck else "")
    return f"{text}{', going back' if record.back else ''}: {record.step.value}"


def go_on(record: Record, progress: Progress) -> Record:
    """Make all steps that are left, the way back too; stop where something is waited for.

    Returns:
        Where it stands then.

    Raises:
        machine.packages.PackageError: the driver can't be loaded, or the old one be had back, now.
        gpu_selftest.service.SelftestError: the self-test can't be started.
        gpu_agent.model.errors.UnknownError: the driver can't be looked at now.
        OSError: GPUs or leases can't.
    """
    driver_record.write(record)
    steps: dict[Step, collections.abc.Callable[[Record, Progress], Record]] = {
        Step.INSTALL: _install,
        Step.LOAD: _load,
        Step.TEST: _test,
    }
    while record.step in steps:
        after = steps[record.step](record, progress)
        if after == record:
            return record
        record = after
        driver_record.write(record)
    if record.why:
        _log.warning("%s", said())
    else:
        driver_record.remove()
    return record


def _install(record: Record, progress: Progress) -> Record:
    told = _numbered(record, 3, progress)
    if kept := settings.read():
        # A self-test by hand may have brought one back.
        pool.take_out(kept, f"driver upgrade: from {record.before} to {record.after}")
    told(f"installing NVIDIA driver {record.target}")
    try:
        driver_change.install(record.target, record.other, told)
    except PackageError as error:
        if record.back and error.passes:
            raise
        return _failed(record, str(error))
    return dataclasses.replace(record, step=Step.LOAD)


def _load(record: Record, progress: Progress) -> Record:
    """Load the modules of the driver that is installed; the same record if that needs a reboot."""
    told, target = _numbered(record, 4, progress), record.target.version
    try:
        # Where a process has it in use, services would be stopped at each event for nothing.
        due = driver_state.look().loaded != target
        if due and (driver_change.users() or not driver.reload(told)):
            return record
        loaded = driver_state.look().loaded
    except PackageError as error:
        if error.passes:
            raise
        return _failed(record, str(error))
    if loaded != target:
        return _failed(record, f"{loaded or 'no module'} is loaded in place of {target}")
    return dataclasses.replace(record, step=Step.TEST, seen=None)


def _test(record: Record, progress: Progress) -> Record:
    """Judge the driver by a self-test since it was loaded; the same record without a verdict."""
    kept = settings.read()
    if kept is None:  # Tasks get no GPU any more, and those that were out stay so until a test.
        return dataclasses.replace(record, step=Step.ENDED)
    if record.seen is None:
        return _note_last(record)
    try:
        report = _report(record, _numbered(record, 5, progress))
    except _NoVerdictError as error:
        return _failed(record, str(error))
    blamed = [one for one in report.results if _blames(one, record, kept)] if report else []
    if blamed:
        return _failed(record, f"{blamed[0].check} failed: {blamed[0].text}")
    # One that the settings no longer have is not tested, and waits for nothing here.
    if report is None or {gpu.uuid for gpu in kept.gpus}.intersection(pool.out()):
        return record
    _numbered(record, 6, progress)("the GPUs that passed are in use again")
    return dataclasses.replace(record, step=Step.ENDED)


def _note_last(record: Record) -> Record:
    """Note the last self-test that may be of the driver before; the same record while one runs."""
    if _is_another_at_work():
        return record
    last = results.read()
    return dataclasses.replace(record, seen=last.run if last else "")


def _report(record: Record, told: Progress) -> results.Report | None:
    """A self-test of the driver that is loaded now.

    None where another one is in its way, or Concourse's runc is not here, which it needs.

    Raises:
        _NoVerdictError: it began and came to no verdict, as where the driver hangs.
    """
    report = results.read()
    if report and _is_of(report, record):
        return report
    if not release.CURRENT.exists() or _is_another_at_work():
        return None
    told(f"self-test of {record.target}")
    run = service.start(Level.ISOLATION)
    try:
        return service.follow(run, _TESTED, told)
    except service.SelftestError as error:
        raise _NoVerdictError(str(error)) from error


def _is_another_at_work() -> bool:
    """Whether a self-test runs; one that the charm has not started gets some time to end."""
    return service.running() is not None or service.wait_for_others(_COURTESY) != ""


def _is_of(report: results.Report, record: Record) -> bool:
    """Whether a self-test is of the driver that is loaded now, and of all GPUs."""
    whole = not report.gpu and report.level.includes(Level.ISOLATION)
    return whole and report.run != record.seen


def _blames(result: Result, record: Record, kept: Settings) -> bool:
    """Whether a GPU failed that was well before, or all did."""
    concerned = {result.gpu} if result.gpu else {gpu.uuid for gpu in kept.gpus} or {""}
    return results.condemns(result) and not concerned <= record.failed


def _failed(record: Record, why: str) -> Record:
    """Go back; from the way back there is none."""
    if not record.back:
        return dataclasses.replace(record, step=Step.INSTALL, back=True, why=why)
    return dataclasses.replace(record, step=Step.ENDED, stuck=f"with {record.before} again, {why}")


def _numbered(record: Record, number: int, progress: Progress) -> Progress:
    way = ", going back" if record.back else ""
    return lambda line: progress(f"{number} of {STEPS}{way}: {line}")
