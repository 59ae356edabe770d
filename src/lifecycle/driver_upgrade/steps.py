# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The steps from one NVIDIA driver to another, and back if the new one fails.

The record names the step before the step begins, and each step can be repeated: after a reboot or
a kill, the next hook continues there. Meanwhile all GPUs are quarantined, also over reboots. A
self-test of level isolation that passes returns them to use, no matter who starts it.
"""

import collections.abc
import dataclasses
import logging
import pathlib
import typing

from gpu_agent.model import errors
from gpu_selftest import results, service
from gpu_selftest.check import Level, Progress, Result
from gpu_selftest.settings import Settings
from lifecycle import drain
from lifecycle.driver_upgrade import gpu_pool as pool
from lifecycle.driver_upgrade import record as driver_record
from lifecycle.driver_upgrade.machine import HERE, Machine
from lifecycle.driver_upgrade.record import Record, Step
from machine.packages import PackageError
from plan.draining import Purpose

STEPS: typing.Final = 6

# In seconds. A self-test of level isolation takes 60; systemd ends it after 600
# (gpu_selftest.service).
_TESTED: typing.Final = 620
_COURTESY: typing.Final = 30

_log = logging.getLogger(__name__)


class _NoVerdictError(Exception):
    """A self-test ended without a verdict; the text says why."""


@dataclasses.dataclass(frozen=True)
class Upgrade:
    """The upgrade of one unit's driver.

    Attributes:
        drainer: drains the unit.
        machine: the unit's machine.
    """

    drainer: drain.Drainer
    machine: Machine = HERE

    def settle(self, progress: Progress) -> bool:
        """Continue an upgrade that a reboot, a kill or an error has interrupted.

        Args:
            progress: reports each step.

        Returns:
            Whether anything changed.

        Raises:
            machine.packages.PackageError: the upgrade cannot continue now.
            gpu_selftest.service.SelftestError: the same.
            gpu_agent.model.errors.UnknownError: the same.
        """
        try:
            record = driver_record.read()
            if record is None or record.step is Step.ENDED:
                return False
            before = record
            if record.step is Step.WAIT:
                drained = self.drainer.go_on(Purpose.DRIVER, progress)
                if drained is None:  # killed before the drain began, or cancelled by resume
                    self.give_up()
                if not drained:
                    return drained is None
                pool.wait(0, progress)
                record = dataclasses.replace(record, step=Step.INSTALL)
            after = self.go_on(record, lambda line: progress(f"Driver upgrade, {line}"))
            self.drainer.finish(Purpose.DRIVER)
            return after != before
        except OSError as error:
            raise errors.unknown(error) from error

    def give_up(self) -> None:
        """Cancel an upgrade that has changed nothing yet."""
        self.drainer.cancel(Purpose.DRIVER)
        pool.bring_back()
        driver_record.remove()

    def go_on(self, record: Record, progress: Progress) -> Record:
        """Make all steps that are left, also those of the rollback; stop if one has to wait.

        Returns:
            The record after the last step.

        Raises:
            machine.packages.PackageError: the driver cannot be loaded, or not be restored, now.
            gpu_selftest.service.SelftestError: the self-test cannot start.
            gpu_agent.model.errors.UnknownError: the driver's state cannot be read now.
            OSError: the GPUs or leases cannot be read.
        """
        driver_record.write(record)
        steps: dict[Step, collections.abc.Callable[[Record, Progress], Record]] = {
            Step.INSTALL: self._install,
            Step.LOAD: self._load,
            Step.TEST: self._test,
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

    def _install(self, record: Record, progress: Progress) -> Record:
        told = _numbered(record, 3, progress)
        if kept := self.machine.settings():
            # An operator's self-test may have returned a GPU to use.
            pool.take_out(kept, f"driver upgrade: from {record.before} to {record.after}")
        told(f"installing NVIDIA driver {record.target}")
        try:
            self.machine.install(record.target, record.other, told)
        except PackageError as error:
            if record.back and error.passes:
                raise
            return _failed(record, str(error))
        return dataclasses.replace(record, step=Step.LOAD)

    def _load(self, record: Record, progress: Progress) -> Record:
        """Load the installed driver's modules; return the same record if that needs a reboot."""
        told, target = _numbered(record, 4, progress), record.target.version
        try:
            # If a process uses the modules, a reload would only stop services at each event.
            due = self.machine.look().loaded != target
            if due and (self.machine.users() or not self.machine.reload(told)):
                return record
            loaded = self.machine.look().loaded
        except PackageError as error:
            if error.passes:
                raise
            return _failed(record, str(error))
        if loaded != target:
            return _failed(record, f"{loaded or 'no module'} is loaded in place of {target}")
        return dataclasses.replace(record, step=Step.TEST, seen=None)

    def _test(self, record: Record, progress: Progress) -> Record:
        """Judge the loaded driver by a self-test; return the same record without a verdict."""
        kept = self.machine.settings()
        if kept is None:  # Tasks no longer get GPUs. The quarantined ones wait for a self-test.
            return dataclasses.replace(record, step=Step.ENDED)
        if record.seen is None:
            return self._note_last(record)
        try:
            report = self._report(record, kept, _numbered(record, 5, progress))
        except _NoVerdictError as error:
            return _failed(record, str(error))
        blamed = [one for one in report.results if _blames(one, record, kept)] if report else []
        if blamed:
            return _failed(record, f"{blamed[0].check} failed: {blamed[0].text}")
        # A GPU that the settings no longer name is not tested: the upgrade does not wait for it.
        if report is None or {gpu.uuid for gpu in kept.gpus}.intersection(pool.out()):
            return record
        _numbered(record, 6, progress)("the GPUs that passed are available")
        return dataclasses.replace(record, step=Step.ENDED)

    def _note_last(self, record: Record) -> Record:
        """Note the last self-test of the old driver; return the same record while a test runs."""
        if self._is_another_at_work():
            return record
        last = self.machine.report()
        return dataclasses.replace(record, seen=last.run if last else "")

    def _report(self, record: Record, kept: Settings, told: Progress) -> results.Report | None:
        """Return the report of a self-test of the loaded driver.

        Return None while another self-test runs, or if the runc that the test needs is not
        installed.

        Raises:
            _NoVerdictError: the test ended without a verdict, such as when the driver hangs.
        """
        report = self.machine.report()
        if report and _is_of(report, record):
            return report
        if not pathlib.Path(kept.runc_path()).exists() or self._is_another_at_work():
            return None
        told(f"self-test of {record.target}")
        run = self.machine.start(Level.ISOLATION)
        try:
            return self.machine.follow(run, _TESTED, told)
        except service.SelftestError as error:
            raise _NoVerdictError(str(error)) from error

    def _is_another_at_work(self) -> bool:
        """Return whether a self-test runs; wait a moment for one that the charm did not start."""
        return self.machine.running() is not None or self.machine.wait_for_others(_COURTESY) != ""


def said() -> str:
    """Describe the last upgrade: its step, or why it was rolled back; empty if there is none."""
    record = driver_record.read()
    if record is None:
        return ""
    text = f"driver upgrade from {record.before} to {record.after}"
    if record.step is Step.ENDED:
        return f"{text} rolled back: {record.why}" + (f"; {record.stuck}" if record.stuck else "")
    # The record has older words for it.
    step = "waiting for builds" if record.step is Step.WAIT else record.step.value
    return f"{text}{', rolling back' if record.back else ''}: {step}"


def _is_of(report: results.Report, record: Record) -> bool:
    """Return whether a report is about the loaded driver, and about all GPUs."""
    whole = not report.gpu and report.level.includes(Level.ISOLATION)
    return whole and report.run != record.seen


def _blames(result: Result, record: Record, kept: Settings) -> bool:
    """Return whether a GPU failed that had not failed before, or the whole worker did."""
    concerned = {result.gpu} if result.gpu else {gpu.uuid for gpu in kept.gpus} or {""}
    return results.condemns(result) and not concerned <= record.failed


def _failed(record: Record, why: str) -> Record:
    """Begin the rollback; if the rollback itself failed, end the upgrade."""
    if not record.back:
        return dataclasses.replace(record, step=Step.INSTALL, back=True, why=why)
    return dataclasses.replace(
        record, step=Step.ENDED, stuck=f"with {record.before} restored, {why}"
    )


def _numbered(record: Record, number: int, progress: Progress) -> Progress:
    way = ", rolling back" if record.back else ""
    return lambda line: progress(f"{number} of {STEPS}{way}: {line}")
