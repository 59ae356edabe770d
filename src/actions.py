# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The operator's actions, each a function of what was found, the plan and its parameters."""

import collections.abc
import typing

import plan
from ci import concourse_web
from found import Found
from gpu import detect, report
from oci import leases

Params = collections.abc.Mapping[str, typing.Any]
Results = dict[str, str]
Action = collections.abc.Callable[[Found, plan.Plan, Params], Results]


class ActionError(Exception):
    """An action can't do what it was asked for; the text says why and what to do instead."""


def gpu_inventory(found: Found, wanted: plan.Plan, _params: Params) -> Results:
    """All GPUs of this machine, looked for now, even where tasks get none."""
    inventory = found.inventory or detect.detect(found.options.gpu_vendor)
    allowed = wanted.gpu.gpus if isinstance(wanted.gpu, plan.GpuPlan) else ()
    out = dict(found.cordoned)
    return report.as_results(inventory, tuple(gpu.uuid for gpu in allowed if gpu.uuid not in out))


def gpu_leases(_found: Found, _wanted: plan.Plan, _params: Params) -> Results:
    """Who has which GPU now, and who waits.

    Raises:
        ActionError: if that can't be read.
    """
    try:
        return leases.report()
    except leases.LeaseError as error:
        raise ActionError(str(error)) from error


def gpu_release(_found: Found, _wanted: plan.Plan, params: Params) -> Results:
    """Take a GPU back from the containers that hold it.

    Raises:
        ActionError: if it is in use and force was not asked for, or is no GPU of this unit's.
    """
    try:
        return leases.release(params["gpu"], params["reason"], force=params.get("force", False))
    except leases.LeaseError as error:
        raise ActionError(str(error)) from error


def get_admin_password(_found: Found, wanted: plan.Plan, _params: Params) -> Results:
    """How to log in to the web UI.

    Raises:
        ActionError: if this unit runs no web.
    """
    if not isinstance(wanted.web, plan.WebPlan):
        raise ActionError("This unit runs no web: ask a unit of the web application that is ready")
    return {
        "username": concourse_web.ADMIN,
        "password": wanted.web.secrets.admin_password,
        "url": wanted.web.external_url,
    }


ALL: typing.Final[collections.abc.Mapping[str, Action]] = {
    "gpu-inventory": gpu_inventory,
    "gpu-leases": gpu_leases,
    "gpu-release": gpu_release,
    "get-admin-password": get_admin_password,
}
