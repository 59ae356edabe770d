# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The operator's actions.

Each reads what it needs and nothing else, so that nothing else that is wrong here stands in its
way, and changes nothing but what it is asked to.
"""

import collections.abc
import dataclasses
import datetime
import json
import typing

from actions import driver_upgrade
from actions import gpu_report as gpu_reports
from ci.concourse import key_rotation as rotation
from ci.concourse.backup import backup as backups
from ci.concourse.options import worker as worker_options
from ci.concourse.web import local_postgresql, web
from gpu_agent.availability import lease_report as leases
from gpu_agent.availability import operator as cordon
from gpu_agent.gpu.vendors import detect, report
from gpu_agent.model.inventory import Gpu, Inventory
from gpu_selftest import report as selftest_report
from gpu_selftest import results, service, settings
from gpu_selftest.check import Level
from lifecycle import drain
from lifecycle import part_runner as attempts
from machine import process
from options.table import gpu_vendor
from options.values import OptionError
from plan import messages as problem_texts
from relations.peers import WebKeys

# How long the action follows a self-test, in seconds: it holds Juju's lock on the machine.
_FOLLOWED: typing.Final = 600

# From where on juju run folds a line, in characters, less the name of the result (juju 4.0.15).
_FOLDED: typing.Final = 80 - len("next: ")

Results = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of an action, with what it may ask Juju for.

    Attributes:
        unit: Juju's name of this unit, such as `worker/0`.
        params: as actions.yaml declares them.
        log: tells the operator how it goes on, a line each.
        options: as Juju has them, none of them checked.
        web_keys: the web's, for all units of the application.
    """

    unit: str
    params: collections.abc.Mapping[str, typing.Any]
    log: collections.abc.Callable[[str], None]
    options: collections.abc.Mapping[str, object]
    web_keys: WebKeys

    @property
    def for_program(self) -> bool:
        """Whether a program is to read the results."""
        return self.params.get("format") == "json"

    @property
    def reason(self) -> str:
        """Why, in the operator's words; actions.yaml has the default."""
        return self.params.get("reason", "no reason given")

    @property
    def application(self) -> str:
        """This unit's application, as the operator's next command names it."""
        return self.unit.partition("/")[0]


class ActionError(Exception):
    """An action can't do what it was asked for; the text says why and what to do instead.

    Attributes:
        results: what it found out all the same.
    """

    def __init__(self, text: str, results: Results | None = None) -> None:
        super().__init__(text)
        self.results = results or {}


def gpu_inventory(call: Call) -> Results:
    """All GPUs of this machine, looked for now, even where tasks get none.

    Raises:
        ActionError: if gpu-vendor can't be used, or it can't be told which of them tasks may get.
    """
    inventory = _gpus(call)
    try:
        allowed, out = leases.for_tasks()
    except leases.LeaseError as error:
        raise ActionError(str(error)) from error
    if call.for_program:
        return {"json": report.as_json(inventory, allowed, out)}
    return report.as_results(inventory, allowed, out)


def _gpus(call: Call) -> Inventory:
    try:
        return detect.in_time(gpu_vendor(call.options))
    except OptionError as error:
        raise ActionError(str(error)) from error
    except OSError as error:
        raise ActionError(f"this machine's GPUs can't be looked at: {error}") from error


def gpu_leases(call: Call) -> Results:
    """Who has which GPU now, and who waits.

    Raises:
        ActionError: if that can't be read.
    """
    try:
        return {"json": leases.as_json()} if call.for_program else leases.report()
    except leases.LeaseError as error:
        raise ActionError(str(error)) from error


def gpu_release(call: Call) -> Results:
    """Take a GPU back from the containers that hold it.

    Raises:
        ActionError: if it is in use and force was not asked for, or is no GPU of this unit's.
    """
    params = call.params
    try:
        return leases.release(params["gpu"], call.reason, force=params.get("force", False))
    except leases.LeaseError as error:
        raise ActionError(str(error)) from error


def gpu_report(call: Call) -> Results:
    """What the leases that are over had, used and waited for.

    Raises:
        ActionError: if a parameter can't be used, or that can't be read.
    """
    try:
        return gpu_reports.run(call.params, datetime.datetime.now(datetime.timezone.utc))
    except gpu_reports.ReportError as error:
        raise ActionError(str(error)) from error


def gpu_cordon(call: Call) -> Results:
    """Take a GPU out of use by hand.

    Raises:
        ActionError: if it is no GPU that tasks get here.
    """
    try:
        return cordon.cordon(call.params["gpu"], call.reason)
    except leases.LeaseError as error:
        raise ActionError(str(error)) from error


def gpu_uncordon(call: Call) -> Results:
    """Bring a GPU back that the operator or a self-test took out of use, or forget a lost one.

    Raises:
        ActionError: if it is not out of use, or gpu-vendor can't be used.
    """
    inventory = _gpus(call)
    try:
        return cordon.uncordon(call.params["gpu"], call.reason, inventory)
    except leases.LeaseError as error:
        raise ActionError(str(error)) from error


def gpu_selftest(call: Call) -> Results:
    """Test whether this worker's GPUs can be trusted, and follow that for ten minutes.

    Raises:
        ActionError: if it can't be started, ends without a verdict, or fails.
    """
    kept = settings.read()
    if kept is None and call.options.get("deployment-mode") == "web":
        raise ActionError("This unit runs no worker: test a unit of the worker application")
    if kept is None:
        raise ActionError(
            f"Tasks get no GPU on this unit: juju config {call.application} enable-gpu=true"
        )
    level = Level(call.params["level"])
    wish, minutes = str(call.params.get("gpu", "")), call.params.get("duration", 0)
    if minutes and level is not Level.BURN_IN:
        raise ActionError(f"duration '{minutes}' is for level=burn-in only, not for {level.value}")
    try:
        run = service.start(level, gpu=wish, minutes=minutes)
        found = service.follow(run, _FOLLOWED, call.log)
    except service.SelftestError as error:
        raise ActionError(str(error)) from error
    shown = _of_selftest(call, run, found, kept.gpus)
    if found and found.outcome == "failed":
        raise ActionError(f"Self-test {selftest_report.headline(found)}", shown)
    return shown


def _of_selftest(
    call: Call, run: str, found: results.Report | None, gpus: collections.abc.Sequence[Gpu]
) -> Results:
    if found is None:
        going_on = {
            "verdict": "running",
            "level": call.params["level"],
            "log": str(service.LOG),
            "result": f"{results.path(run)} once it is done; juju status shows the verdict then",
        }
        return {"json": json.dumps(going_on)} if call.for_program else going_on
    if call.for_program:
        return selftest_report.as_json(found)
    return selftest_report.as_results(found, gpus)


def upgrade_driver(call: Call) -> Results:
    """Bring another NVIDIA driver, or tell what that would do.

    Raises:
        ActionError: if it is refused, jobs do not end, or it was taken back.
    """
    params = call.params
    option = str(call.options.get("gpu-driver", "auto"))
    branch, minutes = params.get("branch", ""), params.get("wait", 10)
    try:
        timeout = worker_options.drain_timeout(call.options)
        wish = driver_upgrade.Wish(call.unit, option, branch, minutes, timeout)
        if params.get("dry-run", False):
            return driver_upgrade.preview(wish)
        return driver_upgrade.upgrade(wish, call.log)
    except OptionError as error:
        raise ActionError(str(error)) from error
    except driver_upgrade.UpgradeError as error:
        raise ActionError(str(error), error.results) from error


def pause(call: Call) -> Results:
    """Let no step begin on this unit's worker.

    Raises:
        ActionError: if there is no worker, or it can't be noted.
    """
    try:
        return drain.pause(call.unit, call.reason)
    except drain.DrainError as error:
        raise ActionError(str(error)) from error


def resume(call: Call) -> Results:
    """Have this unit's worker take steps again.

    Raises:
        ActionError: if it is not paused.
    """
    try:
        return drain.resume(call.unit)
    except drain.DrainError as error:
        raise ActionError(str(error)) from error


def get_admin_password(call: Call) -> Results:
    """How to log in to the web UI that runs here, whatever keeps it from being changed now.

    Raises:
        ActionError: if this unit runs no web, or the password is lost.
    """
    url, (secrets, lost) = web.url(), call.web_keys.read()
    if lost:
        raise ActionError(problem_texts.WEB_KEYS_LOST.format(application=call.application))
    if url is None or secrets is None:
        raise ActionError("This unit runs no web: ask a unit of the web application that is ready")
    return {"username": web.ADMIN, "password": secrets.admin_password, "url": url}


def replace_web_keys(call: Call) -> Results:
    """New keys and a new password for the web where Juju doesn't give those that it had.

    Raises:
        ActionError: if there are none yet or they are not lost, or another unit is the leader.
    """
    if not call.web_keys.read()[1]:
        raise ActionError("Web's keys and password are not lost: there is nothing to replace")
    if not call.web_keys.make(anew=True):
        command = f"juju run {call.application}/leader replace-web-keys"
        raise ActionError(f"The leader alone can do that: {command}")
    return {"next": f"juju run {call.application}/leader get-admin-password"}


def rotate_worker_key(call: Call) -> Results:
    """Another key for this unit's worker, which web takes before the worker shows it.

    Raises:
        ActionError: if the key is not this unit's to change.
    """
    try:
        return rotation.begin_worker_key(call.web_keys.model)
    except rotation.RotationError as error:
        raise ActionError(str(error)) from error


def rotate_tsa_key(call: Call) -> Results:
    """Another host key for the TSA of all webs, which workers know before it is shown.

    Raises:
        ActionError: if this unit is not the leader, or has no keys of a web.
    """
    try:
        return rotation.begin_host_key(call.web_keys, force=call.params["force"])
    except rotation.RotationError as error:
        raise ActionError(str(error)) from error


def backup(call: Call) -> Results:
    """Save web's database and keys into a file that only root reads.

    Raises:
        ActionError: if that fails; no file is left.
    """
    try:
        return backups.backup(call.unit, call.params.get("path", ""), call.web_keys, call.log)
    except backups.BackupError as error:
        raise ActionError(str(error)) from error


def restore(call: Call) -> Results:
    """Have what such a file has in place of what web has.

    Raises:
        ActionError: if that fails; all is as it was.
    """
    path, name = call.params["path"], call.params["name"]
    try:
        return backups.restore(call.unit, path, name, call.web_keys, call.log)
    except backups.BackupError as error:
        raise ActionError(str(error)) from error


def remove_local_database(call: Call) -> Results:
    """Drop the database on this machine that no web uses any more.

    Raises:
        ActionError: if it is not named, is not there, or is in use.
    """
    kept, name = local_postgresql.kept(), call.params["name"]
    if not kept:
        raise ActionError("This machine has no database of a web: nothing was removed")
    if name in local_postgresql.aside():
        local_postgresql.remove_aside(name)
        return {"removed": f"database {name}"}
    if name != local_postgresql.DATABASE:
        raise ActionError(
            f"name '{name}' is not the database on this machine, "
            f"{', '.join((kept, *local_postgresql.aside()))}: nothing was removed. "
            f"With name={local_postgresql.DATABASE} it is dropped, with all pipelines and builds"
        )
    if web.uses_local_database():
        raise ActionError(
            f"The database {kept} is in use by this unit's web: nothing was removed. Set "
            "deployment-mode=worker, or integrate with another database, before"
        )
    if beside := local_postgresql.aside():
        raise ActionError(
            f"Beside the database {kept} is what made place for a backup, which would go with it: "
            f"remove {', '.join(beside)} by name before. Nothing was removed"
        )
    local_postgresql.remove()
    return {"removed": f"database {kept}"}


ALL: typing.Final[collections.abc.Mapping[str, collections.abc.Callable[[Call], Results]]] = {
    one.__name__.replace("_", "-"): one
    for one in (
        *(gpu_inventory, gpu_leases, gpu_release, gpu_report, gpu_cordon, gpu_uncordon),
        *(gpu_selftest, upgrade_driver, pause, resume, get_admin_password, remove_local_database),
        *(backup, restore, replace_web_keys, rotate_worker_key, rotate_tsa_key),
    )
}


def run(name: str, call: Call) -> Results:
    """Run an action by its name.

    Raises:
        ActionError: if it can't do what it was asked for.
    """
    try:
        return _pasteable(ALL[name](call))
    except ActionError as error:
        error.results = _pasteable(error.results)
        raise
    except (process.CommandError, OSError) as error:
        raise ActionError(f"{error}: {attempts.where(error, call.unit)}") from error


def _pasteable(results: Results) -> Results:
    """Results whose next command Juju shows in one line.

    It folds a longer one at a space, but leaves the lines of a text as they are.
    """
    command = results.get("next", "")
    return results | {"next": f"{command}\n"} if len(command) > _FOLDED else results


CHANGING: typing.Final = frozenset({
    *("gpu-cordon", "gpu-uncordon", "gpu-selftest", "upgrade-driver", "pause", "resume"),
    *("remove-local-database", "replace-web-keys", "rotate-worker-key", "rotate-tsa-key"),
    "restore",
})  # fmt: skip
"""Those after which tags and status may have to be others."""
