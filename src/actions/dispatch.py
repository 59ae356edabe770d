# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The operator's actions.

Each action reads only its own inputs, so a fault in another part of the unit does not stop it. It
changes only its own subject.
"""

import collections.abc
import dataclasses
import datetime
import json
import math
import typing

from actions import driver_upgrade, since
from actions import gpu_explain as gpu_explanation
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
from options import readers
from options.table import gpu_vendor
from options.values import OptionError
from plan import messages
from relations.peers import WebKeys

# How long the action follows a self-test, in seconds: meanwhile it holds Juju's machine lock.
_FOLLOWED: typing.Final = 600

# The length at which juju run folds a line, in characters, less the result's name (juju 4.0.15).
_FOLDED: typing.Final = 80 - len("next: ")

Results = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of an action, with its access to Juju.

    Attributes:
        unit: Juju's name of this unit, such as `worker/0`.
        params: the parameters, as actions.yaml declares them.
        log: shows the operator a line of progress.
        options: the application's options as Juju has them, unchecked.
        web_keys: the keys of web, shared by all units of the application.
    """

    unit: str
    params: collections.abc.Mapping[str, typing.Any]
    log: collections.abc.Callable[[str], None]
    options: collections.abc.Mapping[str, object]
    web_keys: WebKeys

    @property
    def for_program(self) -> bool:
        """Whether the results are for a program."""
        return self.params.get("format") == "json"

    @property
    def reason(self) -> str:
        """The operator's reason; actions.yaml has the default."""
        return self.params.get("reason", "no reason given")

    @property
    def application(self) -> str:
        """This unit's application, as the operator's next command names it."""
        return self.unit.partition("/")[0]


class ActionError(Exception):
    """An action failed; the text says why and what to do instead.

    Attributes:
        results: what the action reports although it failed.
    """

    def __init__(self, text: str, results: Results | None = None) -> None:
        super().__init__(text)
        self.results = results or {}


def gpu_inventory(call: Call) -> Results:
    """Show the GPUs of this machine, even if tasks get none of them.

    Raises:
        ActionError: gpu-vendor is invalid, or the GPUs or the policy cannot be read.
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
        raise ActionError(f"the GPUs of this machine cannot be read: {error}") from error


def gpu_leases(call: Call) -> Results:
    """Show the holder of each GPU, and the queue.

    Raises:
        ActionError: the policy or the leases cannot be read.
    """
    try:
        return {"json": leases.as_json()} if call.for_program else leases.report()
    except leases.LeaseError as error:
        raise ActionError(str(error)) from error


def gpu_explain(call: Call) -> Results:
    """Explain what was decided about the GPUs of a build, container, unit or job.

    Raises:
        ActionError: a parameter is invalid.
    """
    try:
        return gpu_explanation.run(call.unit, call.params)
    except since.SinceError as error:
        raise ActionError(str(error)) from error


def gpu_reclaim(call: Call) -> Results:
    """Take a GPU back from the containers that hold it.

    Raises:
        ActionError: the GPU is in use and `force` is false, or this unit has no such GPU.
    """
    params = call.params
    try:
        return leases.reclaim(params["gpu"], call.reason, force=params.get("force", False))
    except leases.LeaseError as error:
        raise ActionError(str(error)) from error


def gpu_report(call: Call) -> Results:
    """Add up the usage records of finished leases.

    Raises:
        ActionError: a parameter is invalid, or the records cannot be read.
    """
    try:
        return gpu_reports.run(call.params, datetime.datetime.now(datetime.timezone.utc))
    except (gpu_reports.ReportError, since.SinceError) as error:
        raise ActionError(str(error)) from error


def gpu_cordon(call: Call) -> Results:
    """Cordon a GPU.

    Raises:
        ActionError: tasks on this unit do not get such a GPU.
    """
    try:
        return cordon.cordon(call.params["gpu"], call.reason)
    except leases.LeaseError as error:
        raise ActionError(str(error)) from error


def gpu_uncordon(call: Call) -> Results:
    """Return a cordoned or quarantined GPU to use, or forget a removed card.

    Raises:
        ActionError: the GPU is not cordoned or quarantined, or gpu-vendor is invalid.
    """
    inventory = _gpus(call)
    try:
        return cordon.uncordon(call.params["gpu"], call.reason, inventory)
    except leases.LeaseError as error:
        raise ActionError(str(error)) from error


def gpu_selftest(call: Call) -> Results:
    """Test the GPUs of this worker, and follow the test for ten minutes.

    Raises:
        ActionError: the test cannot start, ends without a verdict, or fails.
    """
    kept = settings.read()
    if kept is None and call.options.get("deployment-mode") == "web":
        raise ActionError("This unit runs no worker: run it on a unit of the worker application")
    if kept is None:
        raise ActionError(
            f"Tasks get no GPU on this unit: juju config {call.application} enable-gpu=true"
        )
    level = Level(call.params["level"])
    gpu, duration = str(call.params.get("gpu", "")), call.params.get("duration", "")
    if duration and level is not Level.BURN_IN:
        raise ActionError(
            f"duration '{duration}' is for level=burn-in only, not for {level.value}"
        )
    seconds = _seconds("duration", duration, "1m", "24h") if duration else 0
    try:
        run = service.start(level, gpu=gpu, minutes=math.ceil(seconds / 60))
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
        shown = {
            "verdict": "running",
            "level": call.params["level"],
            "log": str(service.LOG),
            "next": f"juju status shows the verdict at the end; report: {results.path(run)}",
        }
        return {"json": json.dumps(shown)} if call.for_program else shown
    if call.for_program:
        return selftest_report.as_json(found)
    return selftest_report.as_results(found, gpus)


def _seconds(name: str, value: str, least: str, most: str) -> int:
    """Read a parameter that is a duration."""
    try:
        return readers.seconds(value, least, most)
    except ValueError as error:
        raise ActionError(f"{name} '{value}' {error}") from error


def upgrade_driver(call: Call) -> Results:
    """Install another NVIDIA driver, or show what that would change.

    Raises:
        ActionError: the upgrade is refused, builds do not end, or the driver was rolled back.
    """
    params = call.params
    option = str(call.options.get("gpu-driver", "auto"))
    branch = params.get("branch", "")
    wait = _seconds("wait", params.get("wait", "10m"), "0s", "1h")
    try:
        timeout = worker_options.drain_timeout(call.options)
        request = driver_upgrade.Request(call.unit, option, branch, wait, timeout)
        if params.get("dry-run", False):
            return driver_upgrade.preview(request)
        return driver_upgrade.upgrade(request, call.log)
    except OptionError as error:
        raise ActionError(str(error)) from error
    except driver_upgrade.UpgradeError as error:
        raise ActionError(str(error), error.results) from error


def pause(call: Call) -> Results:
    """Stop starting steps on this unit's worker.

    Raises:
        ActionError: this unit runs no worker, or the pause cannot be recorded.
    """
    try:
        return drain.pause(call.unit, call.reason)
    except drain.DrainError as error:
        raise ActionError(str(error)) from error


def resume(call: Call) -> Results:
    """Start steps on this unit's worker again.

    Raises:
        ActionError: the worker is not paused.
    """
    try:
        return drain.resume(call.unit)
    except drain.DrainError as error:
        raise ActionError(str(error)) from error


def get_admin_password(call: Call) -> Results:
    """Show how to log in to the web UI, even if web cannot be changed now.

    Raises:
        ActionError: this unit runs no web, or the password is lost.
    """
    url, (secrets, lost) = web.url(), call.web_keys.read()
    if lost:
        raise ActionError(messages.text("web-keys-lost", application=call.application))
    if url is None or secrets is None:
        raise ActionError(
            "This unit runs no web: run the action on a unit of the web application that is ready"
        )
    return {"username": web.ADMIN, "password": secrets.admin_password, "url": url}


def replace_web_keys(call: Call) -> Results:
    """Create new keys and a new password for web if Juju has lost the old ones.

    Raises:
        ActionError: the keys are not lost, or another unit is the leader.
    """
    if not call.web_keys.read()[1]:
        raise ActionError("Web's keys and password are not lost: there is nothing to replace")
    if not call.web_keys.make(anew=True):
        command = f"juju run {call.application}/leader replace-web-keys"
        raise ActionError(f"Only the leader can do that: {command}")
    return {
        "state": "new keys and password created",
        "next": f"juju run {call.application}/leader get-admin-password",
    }


def rotate_worker_key(call: Call) -> Results:
    """Begin to replace the key of this unit's worker.

    Raises:
        ActionError: this unit does not manage the key.
    """
    try:
        return rotation.begin_worker_key(call.web_keys.model)
    except rotation.RotationError as error:
        raise ActionError(str(error)) from error


def rotate_tsa_key(call: Call) -> Results:
    """Begin to replace the host key of web's TSA on all units.

    Raises:
        ActionError: this unit is not the leader, or has no keys of web.
    """
    try:
        return rotation.begin_host_key(call.web_keys, force=call.params["force"])
    except rotation.RotationError as error:
        raise ActionError(str(error)) from error


def backup(call: Call) -> Results:
    """Save the database and keys of web to a file that only root can read.

    Raises:
        ActionError: the backup failed, and no file is left.
    """
    try:
        return backups.backup(call.unit, call.params.get("path", ""), call.web_keys, call.log)
    except backups.BackupError as error:
        raise ActionError(str(error)) from error


def restore(call: Call) -> Results:
    """Replace the database and keys of web by those of a backup.

    Raises:
        ActionError: the restore failed, and nothing was changed.
    """
    path, confirm = call.params["path"], call.params["confirm"]
    try:
        return backups.restore(call.unit, path, confirm, call.web_keys, call.log)
    except backups.BackupError as error:
        raise ActionError(str(error)) from error


def remove_local_database(call: Call) -> Results:
    """Drop a database on this machine that web no longer uses.

    Raises:
        ActionError: `confirm` does not name it, it does not exist, or it is in use.
    """
    kept, confirm = local_postgresql.kept(), call.params["confirm"]
    if not kept:
        raise ActionError("This machine has no database of web: nothing was removed")
    aside = local_postgresql.aside()
    if confirm in aside:
        local_postgresql.remove_aside(confirm)
        return {"was": f"database {confirm}", "state": "removed"}
    if confirm != local_postgresql.DATABASE:
        raise ActionError(
            f"confirm '{confirm}' does not name a database on this machine; it has "
            f"{', '.join((kept, *aside))}. Nothing was removed. "
            f"confirm={local_postgresql.DATABASE} deletes it with all pipelines and builds"
        )
    if web.uses_local_database():
        raise ActionError(
            f"The web of this unit uses the database {kept}: nothing was removed. First set "
            "deployment-mode=worker, or integrate with another database"
        )
    if aside:
        raise ActionError(
            f"The data that restore kept aside would be removed with the database {kept}: first "
            f"remove {', '.join(aside)} with confirm=<name>. Nothing was removed"
        )
    local_postgresql.remove()
    return {"was": f"database {kept}", "state": "removed"}


ALL: typing.Final[collections.abc.Mapping[str, collections.abc.Callable[[Call], Results]]] = {
    one.__name__.replace("_", "-"): one
    for one in (
        *(gpu_inventory, gpu_leases, gpu_explain, gpu_reclaim, gpu_report),
        *(gpu_cordon, gpu_uncordon, gpu_selftest, upgrade_driver),
        *(pause, resume, get_admin_password, remove_local_database),
        *(backup, restore, replace_web_keys, rotate_worker_key, rotate_tsa_key),
    )
}


def run(name: str, call: Call) -> Results:
    """Run an action by its name.

    Raises:
        ActionError: the action failed.
    """
    try:
        return _pasteable(ALL[name](call))
    except ActionError as error:
        error.results = _pasteable(error.results)
        raise
    except (process.CommandError, OSError) as error:
        raise ActionError(f"{error}: {attempts.where(error, call.unit)}") from error


def _pasteable(results: Results) -> Results:
    """Return results whose `next` command Juju prints on one line.

    Juju folds a long single line at a space, but prints the lines of a longer text unchanged.
    """
    command = results.get("next", "")
    return results | {"next": f"{command}\n"} if len(command) > _FOLDED else results


CHANGING: typing.Final = frozenset({
    *("gpu-cordon", "gpu-uncordon", "gpu-selftest", "upgrade-driver", "pause", "resume"),
    *("remove-local-database", "replace-web-keys", "rotate-worker-key", "rotate-tsa-key"),
    "restore",
})  # fmt: skip
"""The actions after which the charm updates the worker's tags and the status."""
