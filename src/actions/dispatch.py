# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The operator's actions.

Each action reads only its own inputs, so a fault in another part of the unit does not stop it. It
changes only its own subject.
"""

import collections.abc
import datetime
import json
import math
import typing

from actions import driver_upgrade, since
from actions import gpu_explain as gpu_explanation
from actions import gpu_report as gpu_reports
from gpu_agent.availability import lease_report as leases
from gpu_agent.availability import operator as cordon
from gpu_agent.gpu.vendors import report
from gpu_agent.model.inventory import Gpu, Inventory
from gpu_selftest import report as selftest_report
from gpu_selftest import results, service, settings
from gpu_selftest.check import Level
from lifecycle import drain
from lifecycle import part_runner as attempts
from lifecycle.action_call import Action, ActionError, Call, Results
from machine import process
from options import readers
from options.table import drain_timeout, gpu_vendor
from options.values import OptionError

# How long the action follows a self-test, in seconds: meanwhile it holds Juju's machine lock.
_FOLLOWED: typing.Final = 600

# The length at which juju run folds a line, in characters, less the result's name (juju 4.0.15).
_FOLDED: typing.Final = 80 - len("next: ")


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
        return call.gpus(gpu_vendor(call.options))
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
        timeout = drain_timeout(call.options)
        request = driver_upgrade.Request(call.unit, option, branch, wait, timeout)
        if params.get("dry-run", False):
            return driver_upgrade.preview(request)
        return driver_upgrade.upgrade(request, call.drainer, call.log)
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
        return call.drainer.pause(call.unit, call.reason)
    except drain.DrainError as error:
        raise ActionError(str(error)) from error


def resume(call: Call) -> Results:
    """Start steps on this unit's worker again.

    Raises:
        ActionError: the worker is not paused.
    """
    try:
        return call.drainer.resume(call.unit)
    except drain.DrainError as error:
        raise ActionError(str(error)) from error


ALL: typing.Final[collections.abc.Mapping[str, Action]] = {
    one.__name__.replace("_", "-"): one
    for one in (
        *(gpu_inventory, gpu_leases, gpu_explain, gpu_reclaim, gpu_report),
        *(gpu_cordon, gpu_uncordon, gpu_selftest, upgrade_driver),
        *(pause, resume),
    )
}


def run(name: str, call: Call, others: collections.abc.Mapping[str, Action]) -> Results:
    """Run an action by its name.

    Args:
        name: as actions.yaml has it.
        call: the call.
        others: the actions of CI systems, by name.

    Raises:
        ActionError: the action failed.
    """
    try:
        return _pasteable({**others, **ALL}[name](call))
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
})  # fmt: skip
"""The actions after which the charm updates the worker's tags and the status."""
