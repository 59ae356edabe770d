# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reserve GPUs for the self-test alone, even if tasks share them: by a lease like any other.

The lease lives as long as this process. After a killed self-test the next holder finds the process
gone, ends what its container left, and takes the GPU.
"""

import collections.abc
import contextlib
import time
import typing

from gpu_agent import paths as wrapper
from gpu_agent.availability import external_use
from gpu_agent.availability.lease_report import words
from gpu_agent.runtime import policy
from gpu_runtime import lease_scheduler as leases
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import Holder, Table, Waiter, gives_way
from gpu_runtime.policy import Device, Policy
from gpu_runtime.refusal import Refused
from gpu_selftest.check import Obstacle

_PAUSE: typing.Final = 0.05  # seconds between two tries
_WHO: typing.Final = "the self-test"


@contextlib.contextmanager
def alone(
    container: str, gpus: collections.abc.Iterable[str]
) -> collections.abc.Generator[Obstacle | None]:
    """Reserve GPUs for the self-test; yield None, or the obstacle if that is not possible.

    It waits only until a lease that is about to end has ended, or an idle runner has given way.
    It waits for no other holder or request. A quarantined GPU can be reserved; one that is in use
    outside CI can't.

    Args:
        container: id of the container that will use the GPUs. The GPU runtime gives them to it,
            whatever the container requests. If the GPUs are used without a container: a free id.
        gpus: ids of GPUs, each of which includes all its MIG devices, or of MIG devices.
    """
    store, host = Store(str(wrapper.STORE)), Host()
    try:
        allowed = policy.allowed()
        until = host.now() + leases.LONGEST_LOOK
        while (why := claim(store, host, allowed, container, [*gpus])) and why.is_brief:
            # The lease that is about to end may be the self-test's own.
            if host.now() > until:
                break
            time.sleep(_PAUSE)
        if why and why.is_brief:
            with store as table:
                _leave(table, host, container)
    except (OSError, ValueError, Refused) as error:
        why = Obstacle(str(error))
    try:
        yield why
    finally:
        if not why:
            # If this fails, the lease ends with this process.
            with contextlib.suppress(OSError, ValueError, Refused):
                give_back(store, host, container)


def claim(
    store: Store, host: Host, allowed: Policy | None, container: str, gpus: list[str]
) -> Obstacle | None:
    """Lease these GPUs to `container` alone; return None, or the obstacle if that failed.

    Raises:
        OSError: the store or a record of a GPU can't be read or written.
        ValueError: the users of a GPU can't be determined.
        Refused: the store is damaged.
    """
    listed = allowed.devices if allowed else []
    devices = [device for device in listed if device.id in gpus or device.gpu in gpus]
    missing = {*gpus} - {name for device in devices for name in (device.id, device.gpu)}
    if allowed is None or not devices or missing:
        named = " and ".join(sorted(missing)) or "nothing"
        return Obstacle(f"{named} is not a GPU that tasks get on this worker")
    external = external_use.read()
    for device in devices:
        if cause := external.get(device.gpu) or external.get(device.id):
            return Obstacle(f"{_name(device)} is {cause.describe()}")

    def take(table: Table) -> Obstacle | None:
        _leave(table, host, container)
        why = _make_room(table, container, devices, allowed, host)
        ids = [device.id for device in devices]
        if why and why.is_brief:
            # An idle runner gives way to a request that waits.
            waiter = Waiter(container, host.me(), len(ids), host.now())
            waiter.who, waiter.named = _WHO, ids
            table.waiters.append(waiter)
        if not why:
            holder = Holder("", ids, [], exclusive=True, since=host.now())
            holder.keeper = host.me()
            holder.nodes = [node for device in devices for node in device.watched]
            table.holders[container] = holder
        return why

    return leases.decide(store, host, take)


def _make_room(
    table: Table, container: str, devices: list[Device], allowed: Policy, host: Host
) -> Obstacle | None:
    """End leases of these devices that no process uses; return the obstacle if one is in use."""
    earlier = table.holders.get(container)
    if earlier and not leases.release(table, container, host):
        who = words(container, earlier, host)
        return Obstacle(f"{who} has not ended", f"container {container} has not ended")
    ids = [device.id for device in devices]
    unavailable = allowed.unavailable()
    usable = [device.id for device in allowed.devices if device.id not in unavailable]
    wanted = [name for name in ids if name in usable]
    exclusive = allowed.exclusive
    other = leases.blocker(table, container, ids, host, exclusive=True)
    if (
        not other
        and wanted
        and leases.are_due(table, container, wanted, usable, host, exclusive=exclusive)
    ):
        return Obstacle(f"a task waits for {_name(devices[0])}")
    other = other or leases.evict(table, container, ids, host, exclusive=True)
    if not other:
        return None
    held = table.holders[other]
    (device, *_) = [device for device in devices if device.id in held.gpus]
    if why := host.looked.get(other):
        cause = f"the lease of {_name(device)} can't be ended"
        return Obstacle(f"{cause}: {why}", cause)
    if leases.is_handed_over(held, host):
        return Obstacle(f"{_name(device)} is being handed over to another holder", is_brief=True)
    cause = f"{_name(device)} is in use"
    by = f"{cause} by {words(other, held, host)}"
    return Obstacle(by, cause, is_brief=gives_way(held))


def _leave(table: Table, host: Host, container: str) -> None:
    """Remove the self-test's own request from the queue."""
    mine = container, host.me()
    table.waiters = [one for one in table.waiters if (one.container, one.call) != mine]


@contextlib.contextmanager
def in_line(container: str) -> collections.abc.Generator[None]:
    """Stand in the queue for no GPU: meanwhile no idle runner takes one that is free for a moment.

    A request or a job that waits is served all the same.

    Args:
        container: an id that no container has.
    """
    store, host = Store(str(wrapper.STORE)), Host()
    waiter = Waiter(container, host.me(), 0, host.now())
    waiter.who = _WHO
    with contextlib.suppress(OSError, ValueError, Refused), store as table:
        table.waiters.append(waiter)
    try:
        yield
    finally:
        # If this fails, the request ends with this process.
        with contextlib.suppress(OSError, ValueError, Refused), store as table:
            _leave(table, host, container)


def give_back(store: Store, host: Host, container: str) -> None:
    """End the lease of `container` and its leftovers, unless the lease is still in use.

    The environment for its processes stays in the store until its bundle is gone: until then a
    process could still start in it and would have to request the devices again.

    Raises:
        OSError: the store can't be used.
        Refused: the store is damaged.
    """

    def end(table: Table) -> None:
        holder = table.holders.get(container)
        if holder:
            holder.keeper = None
            leases.release(table, container, host)

    leases.decide(store, host, end)


def _name(device: Device) -> str:
    return f"GPU {device.index}" + ("" if device.id == device.gpu else f" ({device.id})")
