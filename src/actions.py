# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The operator's actions, each a function of what was found, the plan and its parameters."""

import collections.abc
import dataclasses
import typing

import plan
from ci import concourse_web
from found import Found
from gpu import detect, report
from oci import leases
from selftest import pool, results, settings, unit
from selftest import report as selftest_report
from selftest.check import Level

# How long the action follows a self-test, in seconds: it holds Juju's lock on the machine.
_FOLLOWED: typing.Final = 600

Results = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of an action.

    Attributes:
        found: what this unit is decided on.
        wanted: what it is to be.
        params: as actions.yaml declares them.
        log: tells the operator how it goes on, a line each.
    """

    found: Found
    wanted: plan.Plan
    params: collections.abc.Mapping[str, typing.Any]
    log: collections.abc.Callable[[str], None]


class ActionError(Exception):
    """An action can't do what it was asked for; the text says why and what to do instead.

    Attributes:
        results: what it found out all the same.
    """

    def __init__(self, text: str, results: Results | None = None) -> None:
        super().__init__(text)
        self.results = results or {}


def gpu_inventory(call: Call) -> Results:
    """All GPUs of this machine, looked for now, even where tasks get none."""
    found, wanted = call.found, call.wanted
    inventory = found.inventory or detect.detect(found.options.gpu_vendor)
    allowed = wanted.gpu.gpus if isinstance(wanted.gpu, plan.GpuPlan) else ()
    out = dict(found.cordoned)
    out |= {entry.uuid: pool.words(entry) for entry in found.quarantined}
    free = tuple(gpu.uuid for gpu in allowed if gpu.uuid not in out)
    return report.as_results(inventory, free, tuple(out.items()))


def gpu_leases(_call: Call) -> Results:
    """Who has which GPU now, and who waits.

    Raises:
        ActionError: if that can't be read.
    """
    try:
        return leases.report()
    except leases.LeaseError as error:
        raise ActionError(str(error)) from error


def gpu_release(call: Call) -> Results:
    """Take a GPU back from the containers that hold it.

    Raises:
        ActionError: if it is in use and force was not asked for, or is no GPU of this unit's.
    """
    params = call.params
    try:
        return leases.release(params["gpu"], params["reason"], force=params.get("force", False))
    except leases.LeaseError as error:
        raise ActionError(str(error)) from error


def gpu_cordon(call: Call) -> Results:
    """Take a GPU out of use by hand.

    Raises:
        ActionError: if it is no GPU that tasks get here.
    """
    try:
        return pool.cordon(call.params["gpu"], call.params["reason"])
    except leases.LeaseError as error:
        raise ActionError(str(error)) from error


def gpu_uncordon(call: Call) -> Results:
    """Bring a GPU back that the operator or a self-test took out of use, or forget a lost one.

    Raises:
        ActionError: if it is not out of use.
    """
    found = call.found
    inventory = found.inventory or detect.detect(found.options.gpu_vendor)
    try:
        return pool.uncordon(call.params["gpu"], call.params["reason"], inventory)
    except leases.LeaseError as error:
        raise ActionError(str(error)) from error


def gpu_selftest(call: Call) -> Results:
    """Test whether this worker's GPUs can be trusted, and follow that for ten minutes.

    Raises:
        ActionError: if it can't be started, ends without a verdict, or fails.
    """
    kept = settings.read()
    if kept is None:
        application = call.found.application
        raise ActionError(
            f"Tasks get no GPU on this unit: juju config {application} enable-gpu=true"
        )
    level = Level(call.params["level"])
    wish, minutes = str(call.params.get("gpu", "")), call.params.get("duration", 0)
    if minutes and level is not Level.BURN_IN:
        raise ActionError(f"duration '{minutes}' is for level=burn-in only, not for {level.value}")
    try:
        run = unit.start(level, gpu=wish, minutes=minutes)
        found = unit.follow(run, _FOLLOWED, call.log)
    except unit.SelftestError as error:
        raise ActionError(str(error)) from error
    if found is None:
        return {
            "verdict": "running",
            "level": level.value,
            "log": str(unit.LOG),
            "result": f"{results.path(run)} once it is done; juju status shows the verdict then",
        }
    shown = selftest_report.as_results(found, kept.gpus)
    if found.outcome == "failed":
        raise ActionError(f"Self-test {selftest_report.headline(found)}", shown)
    return shown


def get_admin_password(call: Call) -> Results:
    """How to log in to the web UI.

    Raises:
        ActionError: if this unit runs no web.
    """
    wanted = call.wanted
    if not isinstance(wanted.web, plan.WebPlan):
        raise ActionError("This unit runs no web: ask a unit of the web application that is ready")
    return {
        "username": concourse_web.ADMIN,
        "password": wanted.web.secrets.admin_password,
        "url": wanted.web.external_url,
    }


ALL: typing.Final[collections.abc.Mapping[str, collections.abc.Callable[[Call], Results]]] = {
    "gpu-inventory": gpu_inventory,
    "gpu-leases": gpu_leases,
    "gpu-release": gpu_release,
    "gpu-cordon": gpu_cordon,
    "gpu-uncordon": gpu_uncordon,
    "gpu-selftest": gpu_selftest,
    "get-admin-password": get_admin_password,
}

CHANGING: typing.Final = frozenset({"gpu-cordon", "gpu-uncordon", "gpu-selftest"})
"""Those after which tags and status may have to be others."""
