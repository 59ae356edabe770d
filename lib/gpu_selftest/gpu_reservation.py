# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A GPU that the self-test has alone, also where tasks share them: a lease like any other.

It lives as long as this process, so that one that is killed leaves nothing that lasts: whoever
wants the GPU next finds the process gone, ends what its container left, and takes it.
"""

import collections.abc
import contextlib
import time
import typing

from gpu_agent import paths as wrapper
from gpu_agent.availability import cordons
from gpu_agent.availability.lease_report import words
from gpu_agent.runtime import policy
from gpu_runtime import lease_scheduler as leases
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import Holder, Table
from gpu_runtime.policy import Device, Policy
from gpu_runtime.refusal import Refused

_PAUSE: typing.Final = 0.05  # seconds between two tries
_GOES_ON: typing.Final = " goes to another one now"


@contextlib.contextmanager
def alone(
    container: str, gpus: collections.abc.Iterable[str]
) -> collections.abc.Generator[str, None, None]:
    """Have GPUs for the self-test alone; yield why that can't be, empty if it can.

    It waits only for the end of a look at which processes have one open, not for a holder or a
    request. A GPU that is quarantined can be had; one that is in use outside CI can't.

    Args:
        container: the id of the container that is to get them, by the wrapper and whatever it asks
            for; or of none that comes to be, where they are used without one.
        gpus: ids of GPUs, which stand for all their MIG devices, or of single MIG devices.
    """
    store, host = Store(str(wrapper.STORE)), Host()
    try:
        allowed = policy.allowed()
        until = host.now() + leases.LONGEST_LOOK
        while (why := claim(store, host, allowed, container, [*gpus])).endswith(_GOES_ON):
            # A look takes a part of a second; the lease that it ends may be the test's own.
            if host.now() > until:
                break
            time.sleep(_PAUSE)
    except (OSError, ValueError, Refused) as error:
        why = str(error)
    try:
        yield why
    finally:
        if not why:
            # Where that fails, the lease ends with this process.
            with contextlib.suppress(OSError, ValueError, Refused):
                give_back(store, host, container)


def claim(
    store: Store, host: Host, allowed: Policy | None, container: str, gpus: list[str]
) -> str:
    """Have these GPUs leased to `container` alone; return why not, empty if they are.

    Raises:
        OSError: the store or a cordon can't be read or written.
        ValueError: it can't be told who uses what.
        Refused: the store is damaged.
    """
    listed = allowed.devices if allowed else []
    devices = [device for device in listed if device.id in gpus or device.gpu in gpus]
    missing = {*gpus} - {name for device in devices for name in (device.id, device.gpu)}
    if allowed is None or not devices or missing:
        return f"{' and '.join(sorted(missing)) or 'nothing'} is no GPU that tasks get here"
    foreign = cordons.reasons()
    for device in devices:
        if reason := foreign.get(device.gpu) or foreign.get(device.id):
            return f"{_name(device)} is {reason}"

    def take(table: Table) -> str:
        why = _make_room(table, container, devices, allowed, host)
        if not why:
            ids = [device.id for device in devices]
            holder = Holder("", ids, [], exclusive=True, since=host.now())
            holder.keeper = host.me()
            holder.nodes = [node for device in devices for node in device.watched]
            table.holders[container] = holder
        return why

    return leases.decide(store, host, take)


def _make_room(
    table: Table, container: str, devices: list[Device], allowed: Policy, host: Host
) -> str:
    """End who has these devices without using them, if they are to be had; else tell why not."""
    earlier = table.holders.get(container)
    if earlier and not leases.release(table, container, host):
        return f"{words(container, earlier, host)} has not ended"
    ids = [device.id for device in devices]
    cordoned = allowed.cordoned()
    usable = [device.id for device in allowed.devices if device.id not in cordoned]
    wanted = [name for name in ids if name in usable]
    exclusive = allowed.exclusive
    other = leases.blocker(table, container, ids, host, exclusive=True)
    if (
        not other
        and wanted
        and leases.are_due(table, container, wanted, usable, host, exclusive=exclusive)
    ):
        return f"a task waits for {_name(devices[0])}"
    other = other or leases.evict(table, container, ids, host, exclusive=True)
    if not other:
        return ""
    held = table.holders[other]
    (device, *_) = [device for device in devices if device.id in held.gpus]
    if why := host.looked.get(other):
        return f"{_name(device)} can't be handed on: {why}"
    if leases.is_handed_over(held, host):
        return f"{_name(device)}{_GOES_ON}"
    return f"{_name(device)} is in use by {words(other, held, host)}"


def give_back(store: Store, host: Host, container: str) -> None:
    """End the lease of `container` and what is left of it, unless it is in use still.

    What its processes are told stays in the store until its bundle is gone: as long as it is there
    a process could come to it, which has to ask for the devices again.

    Raises:
        OSError: the store can't be used.
        Refused: it is damaged.
    """

    def end(table: Table) -> None:
        holder = table.holders.get(container)
        if holder:
            holder.keeper = None
            leases.release(table, container, host)

    leases.decide(store, host, end)


def _name(device: Device) -> str:
    return f"GPU {device.index}" + ("" if device.id == device.gpu else f" ({device.id})")
