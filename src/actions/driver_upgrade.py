# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the operator asks of a driver's upgrade, what is refused, and what came of it."""

import dataclasses

from ci.concourse import release
from gpu_agent.gpu.vendors.nvidia import driver_state
from gpu_agent.model import errors
from gpu_agent.model.host import Driver
from gpu_selftest import results, service, settings
from gpu_selftest.check import Outcome, Progress
from gpu_selftest.settings import Settings
from host import nvidia_driver_change as driver_change
from host.nvidia_driver_change import Choice
from lifecycle import drain
from lifecycle.driver_upgrade import gpu_pool as pool
from lifecycle.driver_upgrade import record as driver_record
from lifecycle.driver_upgrade import steps as walk
from lifecycle.driver_upgrade.record import Record, Step
from machine import locks
from machine.packages import PackageError
from plan import draining
from plan.draining import Purpose, Rules

Results = dict[str, str]
_UNUSABLE = (PackageError, service.SelftestError, errors.UnknownError, OSError)


class UpgradeError(Exception):
    """The driver is not the new one. The text says why, where it stands and what to do.

    Attributes:
        results: what is to be told all the same.
    """

    def __init__(self, text: str, results: Results | None = None) -> None:
        super().__init__(text)
        self.results = results or {}


@dataclasses.dataclass(frozen=True)
class Wish:
    """What the operator asks for.

    Attributes:
        unit: Juju's name of this unit, such as `worker/0`.
        option: what gpu-driver says.
        branch: such as `595-server`; empty: that of gpu-driver, or the one that is here.
        minutes: how long the action itself waits for jobs.
        timeout: how long they are waited for all in all, in seconds, while the worker is drained;
            0: it is not, and the upgrade ends where the action does.
    """

    unit: str
    option: str = "auto"
    branch: str = ""
    minutes: int = 10
    timeout: int = 0

    @property
    def application(self) -> str:
        """This unit's application, as the operator's next command names it."""
        return self.unit.partition("/")[0]

    def branch_of(self, found: Driver) -> str:
        """The branch that is meant."""
        chosen = "" if self.option == "auto" else self.option
        return self.branch or chosen or found.branch


def preview(wish: Wish) -> Results:
    """What `upgrade` would do; nothing is changed but apt's lists.

    Raises:
        UpgradeError: it would be refused.
    """
    try:
        _, before, after = _check(wish)
        shown = _shown(before, after) | {"packages": driver_change.preview(after)}
        users, lost = driver_change.users(), driver_change.lost(before)
    except _UNUSABLE as error:
        raise UpgradeError(str(error)) from error
    shown["jobs"] = pool.few(pool.occupants().values()) or "none"
    shown["modules"] = "nothing has them in use: no reboot is needed"
    if users:
        shown["modules"] = f"in use by {pool.few(users)}: if that stays, a reboot is needed"
    shown["way-back"] = "the archives have the packages that are here now"
    if lost:
        shown["way-back"] = f"none: the archives have {lost} no more"
    return shown | ({"last": last} if (last := walk.said()) else {})


def upgrade(wish: Wish, log: Progress) -> Results:
    """Bring the newest driver of a branch, test it, and go back to the one before if it fails.

    Args:
        wish: which, and how long jobs are waited for.
        log: told each step.

    Returns:
        What came of it, which may be that a reboot is needed.

    Raises:
        UpgradeError: it was refused, jobs did not end, or the new driver failed.
    """
    try:
        kept, before, after = _check(wish)
    except _UNUSABLE as error:
        raise UpgradeError(f"{error}: nothing was changed") from error
    try:
        record = Record(before, after, failed=pool.failed(kept))
        driver_record.write(record)
        log(f"1 of {walk.STEPS}: taking {len(kept.gpus)} GPUs out of use")
        pool.take_out(kept, f"driver upgrade: from {before} to {after}")
        log(f"2 of {walk.STEPS}: waiting for jobs, {wish.minutes} minutes at most")
        if why := _wait(wish, after, lambda line: log(f"2 of {walk.STEPS}: {line}")):
            return _shown(before, after) | {"draining": why, "next": _later(wish)}
        record = walk.go_on(dataclasses.replace(record, step=Step.INSTALL), log)
        drain.finish(Purpose.DRIVER)
        return _told(record, wish)
    except _UNUSABLE as error:
        raise UpgradeError(f"{error}: {_broken_off()}", _shown(before, after)) from error


def _wait(wish: Wish, after: Choice, told: Progress) -> str:
    """Wait for jobs; while the worker is drained, and all its builds.

    Returns:
        Who is left where the charm's later hooks go on; empty: it is time.

    Raises:
        UpgradeError: jobs are left, and nothing was begun.
    """
    rules = Rules(wish.unit, wish.timeout)
    drained = drain.ready(Purpose.DRIVER, f"NVIDIA driver {after}", rules, told)
    why = pool.wait(wish.minutes, told, None if drained else drain.is_free)
    if why and drained:
        walk.give_up()
        raise UpgradeError(_not_ended(wish, why))
    return why


def _later(wish: Wish) -> str:
    return (
        "it goes on once no build is left, or after drain-timeout "
        f"({draining.duration(wish.timeout)}): juju status; juju run {wish.unit} resume ends it"
    )


def _check(wish: Wish) -> tuple[Settings, Choice, Choice]:
    """What tasks get, the driver that is here, and the one that is to come."""
    kept, found = settings.read(), driver_state.look()
    if refused := _refused(wish, found):
        raise UpgradeError(refused)
    if kept is None:
        application = wish.application
        raise UpgradeError(
            f"Tasks get no GPU on this unit: juju config {application} enable-gpu=true"
        )
    record = driver_record.read()
    if record and record.step is not Step.ENDED:
        raise UpgradeError(
            f"There is a {walk.said()}: it goes on at the charm's next event; if a reboot is "
            "needed, as juju status then says, after that"
        )
    if running := locks.holder(service.LOCK):
        raise UpgradeError(f"A self-test runs ({running}): wait for its end")
    before = driver_change.present(found)
    after = driver_change.newest(wish.branch_of(found), found)
    if after.branch == before.branch and not driver_change.is_newer(after, before):
        raise UpgradeError(f"{before} is the newest: nothing was changed")
    return kept, before, after


def _refused(wish: Wish, found: Driver) -> str:
    """Why the driver is none that this charm may change; empty if it is one."""
    if found.container:
        return (
            "This unit is in a container, whose driver is its host's: upgrade it there, and the "
            "charm follows"
        )
    if wish.option == "none":
        return (
            "gpu-driver is none, so that the charm touches no driver: juju config "
            f"{wish.application} gpu-driver=auto"
        )
    if found.ours:
        return ""
    if version := found.version or found.loaded or found.library:
        return (
            f"NVIDIA's driver {version} did not come by this charm, which never replaces it: "
            "upgrade it the way it came, and the charm follows"
        )
    return "There is no driver of NVIDIA's on this machine to upgrade: juju status says what is"


def _not_ended(wish: Wish, why: str) -> str:
    return (
        f"Jobs did not end in {wish.minutes} minutes: {why}. Nothing was changed and the GPUs are "
        f"in use again: try with wait=60, or end them (juju run {wish.unit} gpu-release gpu=... "
        "force=true)"
    )


def _broken_off() -> str:
    """What comes of an upgrade that an error has ended."""
    record = driver_record.read()
    if record is None or record.step in (Step.WAIT, Step.ENDED):
        return "nothing was changed, and the GPUs are in use again after the charm's next event"
    return f"this {walk.said()}, which the charm's next event goes on with"


def _told(record: Record, wish: Wish) -> Results:
    """What came of it, for the operator."""
    shown = _shown(record.before, record.after)
    if record.step is Step.LOAD:
        seen, users = driver_state.look(), driver_change.users()
        versions = f"driver {seen.version} installed, {seen.loaded or 'none'} loaded"
        shown["next"] = (
            f"reboot needed ({versions}): the GPUs are out of use until the self-test has passed "
            "after it"
        )
        if users:
            shown["in-use-by"] = pool.few(users)
    elif record.step is Step.TEST:
        shown["self-test"] = f"incomplete: {_untested()}"
        shown["next"] = f"juju run {wish.unit} gpu-selftest level=isolation brings the GPUs back"
    elif not record.stuck:
        shown["self-test"] = "passed"
    if record.back:
        raise UpgradeError(_taken_back(record, wish), shown)
    if record.step is Step.ENDED and wish.option not in ("auto", record.after.branch):
        shown["next"] = (
            f"gpu-driver is {wish.option}, which new units get: juju config {wish.application} "
            f"gpu-driver={record.after.branch}"
        )
    return shown


def _taken_back(record: Record, wish: Wish) -> str:
    """Why the new driver went, and where the old one stands."""
    text = f"The new driver, {record.after}, failed: {record.why}. "
    if record.stuck:
        return text + (
            f"Going back failed too: {record.stuck}. What failed is out of use: see juju run "
            f"{wish.unit} gpu-selftest, or bring another driver by upgrade-driver branch=..."
        )
    if record.step is Step.ENDED:
        return f"{text}{record.before} is back and passed the self-test; the GPUs are in use again"
    if record.step is Step.LOAD:
        return f"{text}{record.before} is installed again; its modules need a reboot, see next"
    return f"{text}{record.before} is back, but not yet tested, see next"


def _shown(before: Choice, after: Choice) -> Results:
    return {"from": str(before), "to": str(after)}


def _untested() -> str:
    """Why the last self-test proves nothing of some GPU."""
    if not release.CURRENT.exists():
        return "the self-test needs Concourse's runc, and there is no release of Concourse yet"
    report = results.read()
    found = report.results if report else ()
    prevented = [one.text for one in found if one.outcome is Outcome.PREVENTED]
    return prevented[0] if prevented else "another self-test runs, or this one still does"
