# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The GPUs of a worker whose driver changes: out of use, free of jobs, and in use again."""

import collections.abc
import typing

from gpu_agent import paths as wrapper
from gpu_agent.availability import lease_report as leases
from gpu_agent.availability import quarantine
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.refusal import Refused
from gpu_selftest import results
from gpu_selftest.check import Level, Progress
from gpu_selftest.settings import Settings
from machine import polling as waiting

CHECK: typing.Final = "driver-upgrade"
"""What quarantine says that GPUs failed which are out of use for the upgrade alone."""

_REMEDY: typing.Final = (
    "wait for its end, or for its reboot; then the self-test brings it back, or "
    "juju run {unit} gpu-selftest level=isolation"
)
# In seconds.
_POLL: typing.Final = 2.0
# Of the jobs or processes that are in the way, so many are named.
_NAMED: typing.Final = 3


def failed(kept: Settings) -> frozenset[str]:
    """The GPUs that have failed already, which no new driver is to blame for."""
    last = results.read()
    found = {one.gpu for one in filter(results.condemns, last.results if last else ())}
    found |= {entry.uuid for entry in quarantine.read() if entry.by != quarantine.OPERATOR}
    # A failure of the worker as a whole concerns all.
    return frozenset(gpu.uuid for gpu in kept.gpus if not found.isdisjoint({gpu.uuid, ""}))


def take_out(kept: Settings, reason: str) -> None:
    """Have all GPUs out of use; what else keeps one out stays as it is."""
    out = {entry.uuid for entry in quarantine.read()}
    for gpu in kept.gpus:
        if gpu.uuid not in out:
            remedy = _REMEDY.format(unit=kept.unit)
            quarantine.put(gpu.uuid, reason, CHECK, Level.ISOLATION.value, remedy)


def out() -> list[str]:
    """The GPUs that nothing but the upgrade keeps out of use."""
    return [entry.uuid for entry in quarantine.read() if entry.check == CHECK]


def bring_back() -> None:
    """Have those in use again without a test: nothing has changed for them."""
    for uuid in out():
        quarantine.lift(uuid)


def wait(
    minutes: int, progress: Progress, is_free: collections.abc.Callable[[], bool] | None = None
) -> str:
    """Wait until no job has a GPU, and end what jobs have left, as the next one would.

    Args:
        minutes: for so long at most.
        progress: told who is waited for.
        is_free: whether the worker has no builds either; None: that is not asked.

    Returns:
        Who has one still; empty if nobody does.
    """
    told = frozenset[str]()

    def is_over() -> bool:
        nonlocal told
        now = occupants()
        if now.keys() - told:
            progress(f"waiting for {few(now.values())}")
            told |= now.keys()
        return not now and (is_free is None or is_free())

    if not waiting.until(is_over, 60 * minutes, _POLL):
        return few(occupants().values()) or "builds that have a part here"
    try:
        for device in _held():
            leases.release(device, "driver upgrade", force=False)
    except (leases.LeaseError, OSError, ValueError, Refused) as error:
        return str(error)
    return ""


def occupants() -> dict[str, str]:
    """The containers that use GPUs, by their names, with what runs there and since when."""
    host = Host()
    try:
        holders = Store(str(wrapper.STORE)).read().holders.items()
        return {
            name: leases.words(name, holder, host)
            for name, holder in holders
            if host.in_use(name, holder)
        }
    except (OSError, ValueError, Refused) as error:
        return {"": f"somebody, since that can't be told: {error}"}


def few(names: collections.abc.Iterable[str]) -> str:
    """The first of these names, and how many more there are."""
    every = [*names]
    more = f" and {len(every) - _NAMED} more" if every[_NAMED:] else ""
    return ", ".join(every[:_NAMED]) + more


def _held() -> list[str]:
    """The devices that have a lease, in use or not."""
    holders = Store(str(wrapper.STORE)).read().holders.values()
    return sorted({device for holder in holders for device in holder.gpus})
