# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The GPUs of a worker during a driver upgrade: quarantine, wait for leases, return to use."""

import collections.abc
import typing

from gpu_agent import paths as wrapper
from gpu_agent.availability import lease_report as leases
from gpu_agent.availability import quarantine
from gpu_runtime.lease_store import Store
from gpu_runtime.refusal import Refused
from gpu_selftest import results
from gpu_selftest.check import Level, Progress
from gpu_selftest.results import Report
from gpu_selftest.settings import Settings
from machine import polling as waiting

CHECK: typing.Final = "driver-upgrade"
"""The check in the quarantine records of GPUs that only the upgrade took out of use."""

_REMEDY: typing.Final = (
    "wait until the upgrade, or its reboot, ends: the self-test then returns the GPU. Or run juju "
    "run {unit} gpu-selftest level=isolation"
)
# In seconds.
_POLL: typing.Final = 2.0
# How many of the holders or processes that are in the way are named.
_NAMED: typing.Final = 3


def failed(kept: Settings, last: Report | None) -> frozenset[str]:
    """Return the GPUs that failed before the upgrade; the new driver is not to blame for them.

    Args:
        kept: the settings of the self-test.
        last: the report of the last self-test.
    """
    found = {one.gpu for one in filter(results.condemns, last.results if last else ())}
    found |= {entry.uuid for entry in quarantine.read() if entry.by != quarantine.OPERATOR}
    # A failure of the worker as a whole concerns all.
    return frozenset(gpu.uuid for gpu in kept.gpus if not found.isdisjoint({gpu.uuid, ""}))


def take_out(kept: Settings, reason: str) -> None:
    """Quarantine all GPUs; a GPU that is already out of use keeps its record."""
    out = {entry.uuid for entry in quarantine.read()}
    for gpu in kept.gpus:
        if gpu.uuid not in out:
            remedy = _REMEDY.format(unit=kept.unit)
            quarantine.put(gpu.uuid, reason, CHECK, Level.ISOLATION.value, remedy)


def out() -> list[str]:
    """Return the GPUs that only the upgrade keeps out of use."""
    return [entry.uuid for entry in quarantine.read() if entry.check == CHECK]


def bring_back() -> None:
    """Return those GPUs to use without a test, since nothing was changed."""
    for uuid in out():
        quarantine.lift(uuid)


def wait(
    seconds: float, progress: Progress, is_free: collections.abc.Callable[[], bool] | None = None
) -> str:
    """Wait until no holder uses a GPU, and end their leftovers, as the next request would.

    Args:
        seconds: the longest wait.
        progress: shows the operator which holders are waited for.
        is_free: whether the worker has no builds either; None: builds do not matter.

    Returns:
        The holders that still use a GPU; empty if there are none.
    """
    shown = frozenset[str]()

    def is_over() -> bool:
        nonlocal shown
        now = occupants()
        if now.keys() - shown:
            progress(f"waiting for {few(now.values())}")
            shown |= now.keys()
        return not now and (is_free is None or is_free())

    if not waiting.until(is_over, seconds, _POLL):
        return few(occupants().values()) or "builds that use this worker"
    try:
        for device in _held():
            leases.reclaim(device, "driver upgrade", force=False)
    except (leases.LeaseError, OSError, ValueError, Refused) as error:
        return str(error)
    return ""


def occupants() -> dict[str, str]:
    """Return the holders that use GPUs: their names, and a description of each."""
    try:
        return leases.occupants(wrapper.STORE)
    except (OSError, ValueError, Refused) as error:
        return {"": f"unknown holders, since the leases cannot be read: {error}"}


def few(names: collections.abc.Iterable[str]) -> str:
    """Return the first of these names, and the number of the others."""
    every = [*names]
    more = f" and {len(every) - _NAMED} more" if every[_NAMED:] else ""
    return ", ".join(every[:_NAMED]) + more


def _held() -> list[str]:
    """Return the devices that have a lease, in use or not."""
    holders = Store(str(wrapper.STORE)).read().holders.values()
    return sorted({device for holder in holders for device in holder.gpus})
