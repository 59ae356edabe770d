# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The action upgrade-driver: its request, its refusals, and its results."""

import dataclasses
import pathlib

from gpu_agent.model import errors
from gpu_agent.model.host import Driver
from gpu_selftest import service
from gpu_selftest.check import Outcome, Progress
from gpu_selftest.settings import Settings
from host import nvidia_driver_change as driver_change
from host.nvidia_driver_change import Choice
from lifecycle.drain import Drainer
from lifecycle.driver_upgrade import gpu_pool as pool
from lifecycle.driver_upgrade import record as driver_record
from lifecycle.driver_upgrade import steps as walk
from lifecycle.driver_upgrade.machine import HERE, Machine
from lifecycle.driver_upgrade.record import Record, Step
from machine.packages import PackageError
from plan import draining
from plan.draining import Purpose, Rules

Results = dict[str, str]
_UNUSABLE = (PackageError, service.SelftestError, errors.UnknownError, OSError)


class UpgradeError(Exception):
    """The new driver is not in use. The text says why, the present state and what to do.

    Attributes:
        results: what the action reports although it failed.
    """

    def __init__(self, text: str, results: Results | None = None) -> None:
        super().__init__(text)
        self.results = results or {}


@dataclasses.dataclass(frozen=True)
class Request:
    """The operator's request.

    Attributes:
        unit: Juju's name of this unit, such as `worker/0`.
        option: the value of gpu-driver.
        branch: such as `595-server`; empty: the branch of gpu-driver, or the installed one.
        wait: how long the action itself waits for builds, in seconds.
        timeout: how long the worker is drained in total, in seconds; 0: it is not drained, and
            the upgrade ends with the action.
    """

    unit: str
    option: str = "auto"
    branch: str = ""
    wait: int = 600
    timeout: int = 0

    @property
    def application(self) -> str:
        """This unit's application, as the operator's next command names it."""
        return self.unit.partition("/")[0]

    def branch_of(self, found: Driver) -> str:
        """Return the requested branch."""
        chosen = "" if self.option == "auto" else self.option
        return self.branch or chosen or found.branch


def preview(request: Request, machine: Machine = HERE) -> Results:
    """Show the changes of `upgrade`; only apt's package lists are updated.

    Args:
        request: the branch.
        machine: the unit's machine.

    Raises:
        UpgradeError: the upgrade would be refused.
    """
    try:
        _, before, after = _check(request, machine)
        shown = _shown(before, after) | {"packages": machine.preview(after)}
        users, lost = machine.users(), machine.lost(before)
    except _UNUSABLE as error:
        raise UpgradeError(str(error)) from error
    shown["jobs"] = pool.few(pool.occupants().values()) or "none"
    shown["modules"] = "not in use: no reboot is needed"
    if users:
        shown["modules"] = f"in use by {pool.few(users)}: a reboot is needed unless they end"
    shown["way-back"] = "the archives have the installed packages"
    if lost:
        shown["way-back"] = f"none: the archives no longer have {lost}"
    return shown | ({"last": last} if (last := walk.said()) else {})


def upgrade(request: Request, drainer: Drainer, log: Progress, machine: Machine = HERE) -> Results:
    """Install the newest driver of a branch, test it, and roll back if it fails.

    Args:
        request: the branch, and how long to wait for builds.
        drainer: drains the unit.
        log: shows the operator each step.
        machine: the unit's machine.

    Returns:
        The results of the action; a reboot may be needed.

    Raises:
        UpgradeError: the upgrade was refused, builds did not end, or the new driver failed.
    """
    try:
        kept, before, after = _check(request, machine)
    except _UNUSABLE as error:
        raise UpgradeError(f"{error}: nothing was changed") from error
    steps = walk.Upgrade(drainer, machine)
    try:
        record = Record(before, after, failed=pool.failed(kept, machine.report()))
        driver_record.write(record)
        log(f"1 of {walk.STEPS}: taking {len(kept.gpus)} GPUs out of use")
        pool.take_out(kept, f"driver upgrade: from {before} to {after}")
        log(f"2 of {walk.STEPS}: waiting for builds, up to {draining.duration(request.wait)}")
        if why := _wait(request, steps, after, lambda line: log(f"2 of {walk.STEPS}: {line}")):
            waits = {"state": f"waiting for {why}", "next": _later(request)}
            return _shown(before, after) | waits
        record = steps.go_on(dataclasses.replace(record, step=Step.INSTALL), log)
        drainer.finish(Purpose.DRIVER)
        return _told(record, request, machine)
    except _UNUSABLE as error:
        raise UpgradeError(f"{error}: {_broken_off()}", _shown(before, after)) from error


def _wait(request: Request, steps: walk.Upgrade, after: Choice, told: Progress) -> str:
    """Wait until no lease is left, and if the worker is drained until no build is left.

    Returns:
        What is left, if later hooks of the charm continue; empty: nothing is left.

    Raises:
        UpgradeError: leases are left and the worker is not drained; nothing was changed.
    """
    drainer, rules = steps.drainer, Rules(request.unit, request.timeout)
    drained = drainer.ready(Purpose.DRIVER, f"NVIDIA driver {after}", rules, told)
    why = pool.wait(request.wait, told, None if drained else drainer.is_free)
    if why and drained:
        steps.give_up()
        raise UpgradeError(_not_ended(request, why))
    return why


def _later(request: Request) -> str:
    return (
        "the upgrade continues when no build is left, or after drain-timeout "
        f"({draining.duration(request.timeout)}): see juju status. To cancel it: "
        f"juju run {request.unit} resume"
    )


def _check(request: Request, machine: Machine) -> tuple[Settings, Choice, Choice]:
    """Return the self-test's settings, the installed driver and the new one."""
    kept, found = machine.settings(), machine.look()
    if refused := _refused(request, found):
        raise UpgradeError(refused)
    if kept is None:
        application = request.application
        raise UpgradeError(
            f"Tasks get no GPU on this unit: juju config {application} enable-gpu=true"
        )
    record = driver_record.read()
    if record and record.step is not Step.ENDED:
        raise UpgradeError(
            f"Another upgrade is not finished: {walk.said()}. It continues at the charm's next "
            "event. If juju status asks for a reboot, reboot first"
        )
    if running := machine.wait_for_others(0):
        raise UpgradeError(f"A self-test runs ({running}): wait until it ends")
    before = machine.present(found)
    after = machine.newest(request.branch_of(found), found)
    if after.branch == before.branch and not driver_change.is_newer(after, before):
        raise UpgradeError(f"{before} is the newest driver: nothing was changed")
    return kept, before, after


def _refused(request: Request, found: Driver) -> str:
    """Return why this charm must not change the driver; empty if it may."""
    if found.container:
        return (
            "This unit is in a container and uses the driver of its LXD host: upgrade the driver "
            "there, and the charm follows"
        )
    if request.option == "none":
        return (
            "gpu-driver is none, so the charm does not change the driver: juju config "
            f"{request.application} gpu-driver=auto"
        )
    if found.ours:
        return ""
    if version := found.version or found.loaded or found.library:
        return (
            f"The charm did not install NVIDIA driver {version} and never replaces it: upgrade it "
            "the way it was installed, and the charm follows"
        )
    return "This machine has no NVIDIA driver to upgrade: see juju status"


def _not_ended(request: Request, why: str) -> str:
    return (
        f"Builds did not end within {draining.duration(request.wait)}: {why}. Nothing was "
        "changed, and the GPUs are available again. Try again with wait=1h, or end the builds "
        f"(juju run {request.unit} gpu-reclaim gpu=... force=true)"
    )


def _broken_off() -> str:
    """Describe the state of an upgrade that an error has ended."""
    record = driver_record.read()
    if record is None or record.step in (Step.WAIT, Step.ENDED):
        return "nothing was changed, and the GPUs are available after the charm's next event"
    return f"the {walk.said()} continues at the charm's next event"


def _told(record: Record, request: Request, machine: Machine) -> Results:
    """Return the results for the operator.

    Raises:
        UpgradeError: the new driver failed.
    """
    shown = _shown(record.before, record.after)
    if record.step is Step.LOAD:
        seen, users = machine.look(), machine.users()
        shown["state"] = (
            f"reboot needed: driver {seen.version} is installed, {seen.loaded or 'none'} is loaded"
        )
        shown["next"] = (
            "reboot the machine; the GPUs stay quarantined until the self-test after it passes"
        )
        if users:
            shown["in-use-by"] = pool.few(users)
    elif record.step is Step.TEST:
        shown["state"] = f"self-test incomplete: {_untested(machine)}"
        shown["next"] = f"juju run {request.unit} gpu-selftest level=isolation"
    elif not record.stuck:
        shown["state"] = "self-test passed, the GPUs are available"
    if record.back:
        raise UpgradeError(_rolled_back(record, request), shown)
    if record.step is Step.ENDED and request.option not in ("auto", record.after.branch):
        shown["next"] = (
            f"gpu-driver is {request.option}, which new units get: juju config "
            f"{request.application} gpu-driver={record.after.branch}"
        )
    return shown


def _rolled_back(record: Record, request: Request) -> str:
    """Describe why the new driver was rolled back, and the state of the old one."""
    text = f"The new driver, {record.after}, failed: {record.why}. "
    if record.stuck:
        return text + (
            f"The rollback failed too: {record.stuck}. GPUs that failed are quarantined: run juju "
            f"run {request.unit} gpu-selftest, or upgrade-driver branch=... for another driver"
        )
    if record.step is Step.ENDED:
        return (
            f"{text}Rolled back to {record.before}, which passed the self-test; the GPUs are "
            "available"
        )
    if record.step is Step.LOAD:
        return f"{text}Rolled back to {record.before}; its modules need a reboot, see next"
    return f"{text}Rolled back to {record.before}, which is not tested yet, see next"


def _shown(before: Choice, after: Choice) -> Results:
    return {"from": str(before), "to": str(after)}


def _untested(machine: Machine) -> str:
    """Return why the last self-test has no verdict on a GPU."""
    kept = machine.settings()
    if kept and not pathlib.Path(kept.runc_path()).exists():
        return f"the self-test needs {kept.runc_path()}, which is not there yet"
    report = machine.report()
    found = report.results if report else ()
    not_run = [one.text for one in found if one.outcome is Outcome.NOT_RUN]
    return not_run[0] if not_run else "a self-test still runs"
