# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Leasing devices to a container, again to a process that comes later, and giving them back."""

from __future__ import annotations

import time

from gpuci import leases
from gpuci.grant import Grant
from gpuci.journal import Decision
from gpuci.policy import Device, Policy
from gpuci.refuse import Refused, duration
from gpuci.store import Record, Store
from gpuci.table import Holder, Table, Waiter
from gpuci.usage import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# How often those who wait look, in seconds. A device that comes free is idle for no longer.
_LOOK_EVERY = 0.5


class Request:
    """A container that is to have devices.

    Attributes:
        container: its id.
        bundle: the folder of its OCI bundle.
        cgroups_path: `linux.cgroupsPath` of its spec.
    """

    __slots__ = ("bundle", "cgroups_path", "container")

    def __init__(self, container: str, bundle: str, cgroups_path: str) -> None:
        self.container = container
        self.bundle = bundle
        self.cgroups_path = cgroups_path


def acquire(
    store: Store, host: Host, policies: Iterator[Policy], request: Request, decision: Decision
) -> Grant:
    """Have a lease for a container, and record what it is told.

    It waits as long as the policy allows; killed meanwhile, it leaves nothing that lasts. What the
    container has already it keeps, whatever it asks for: containerd may repeat a create, and the
    self-test reserves devices for its containers, also such as tasks may not have.

    Args:
        store: where leases are.
        host: what processes there are.
        policies: the policy at each look anew, since it may change while this waits.
        request: the container.
        decision: what is asked for; is told what was granted and how long it took.

    Raises:
        Refused: the devices can't be had.
        OSError, ValueError: the store can't be used, or it can't be told who uses what.
    """
    wish = Waiter(request.container, host.me(), 0, host.now())
    while True:
        allowed, looked = next(policies), host.now()
        decision.waited_ms = round((looked - wish.since) * 1000)
        last = looked - wish.since >= allowed.wait_timeout
        with store as table:
            grant, usable = _keep(table, host, allowed, wish, request), list[Device]()
            if not grant:
                usable, wish.count = _usable(allowed, decision)
                grant = _allot(table, host, allowed, usable, wish, request)
            _queue(table, host, wish, waits=not grant and not last)
            if grant:
                store.put(wish.container, request.bundle, grant, table.holders[wish.container])
            elif last:
                raise _expired(allowed, table, usable, wish, looked)
        decision.decided_ms = round((host.now() - looked) * 1000, 2)
        if grant:
            decision.granted = grant.ids
            return grant
        time.sleep(_LOOK_EVERY)


def resume(store: Store, host: Host, policy: Callable[[], Policy], decision: Decision) -> Record:
    """Have a lease again for a process that is to start in a container with a record.

    It does not wait: whoever starts a process in a container that is over, as a hijack does, gets
    its devices if they are free.

    Raises:
        Refused: they are not.
        OSError: the store can't be used; FileNotFoundError: the container has no record.
        ValueError: its record is no record, or it can't be told who uses what.
    """
    looked = host.now()
    record = store.record(decision.container)
    decision.asked = len(record.gpus)
    if not record.gpus:
        return record
    with store as table:
        holder = table.holders.get(decision.container)
        if holder is None or not host.in_use(decision.container, holder):
            holder = _acquire_again(table, host, policy(), record, decision.container)
        holder.execs = True
        holder.cgroup = host.cgroup(decision.container, record.bundle) or holder.cgroup
        holder.calls = [*filter(host.alive, holder.calls), host.me()]
    decision.granted = record.gpus
    decision.decided_ms = round((host.now() - looked) * 1000, 2)
    return record


def do_without(
    store: Store, host: Host, container: str, bundle: str = "", grant: Grant | None = None
) -> None:
    """Record that `container` gets no device, whatever an earlier one of the same id had.

    Damaged leases are no reason to stop a task that wants none: they are told to those that do.

    Args:
        store: where leases are.
        host: what processes there are.
        container: its id.
        bundle: the folder of its OCI bundle.
        grant: what processes in it are told; None: nothing, and the front is to pass them by.

    Raises:
        OSError: the store can't be used.
    """
    if store.has(container):
        try:
            with store as table:
                if container in table.holders:
                    leases.release(table, container, host)
        except Refused:
            pass
        store.forget(container)
    if grant:
        store.put(container, bundle, grant)


def _usable(policy: Policy, decision: Decision) -> tuple[list[Device], int]:
    """The devices that may be handed out, and how many of them are asked for.

    Raises:
        Refused: there are fewer than asked for; asking for all asks for one at least.
    """
    cordoned, asked = policy.cordoned(decision.container), decision.asked
    usable = [device for device in policy.devices if device.id not in cordoned]
    count = 1 if asked is None else asked
    if count > len(usable):
        has = f"this worker has {_gpus(len(usable))}"
        if cordoned:
            out = "; ".join(
                f"GPU {device.index} ({device.id}) is {cordoned[device.id]}"
                for device in policy.devices
                if device.id in cordoned
            )
            has += f" for tasks now ({out})"
        fewer = f"set the param GPU_COUNT lower, or give the step the tag gpu-count>={count}"
        another = "run it again, which may find another worker, or tell this one's operator"
        raise Refused(
            f"this task needs {_gpus(count)}, and {has}: " + (fewer if usable else another)
        )
    return usable, len(usable) if asked is None else asked


def _queue(table: Table, host: Host, wish: Waiter, *, waits: bool) -> None:
    """Have `wish` among those who wait, in its place, or no longer."""
    noted = next((waiter for waiter in table.waiters if waiter.call == wish.call), None)
    if not waits:
        table.waiters = [waiter for waiter in table.waiters if waiter is not noted]
    elif noted:
        noted.count = wish.count  # all may be fewer by now
    else:
        living = [waiter for waiter in table.waiters if host.alive(waiter.call)]
        table.waiters = [*living, wish]


def _keep(
    table: Table, host: Host, policy: Policy, wish: Waiter, request: Request
) -> Grant | None:
    """What the container has and uses already; None if that is nothing."""
    holder = table.holders.get(wish.container)
    if not holder or leases.release(table, wish.container, host):
        return None
    devices = [device for device in policy.devices if device.id in holder.gpus]
    if len(devices) < len(holder.gpus):
        raise Refused(
            "this container runs with a GPU that tasks on this worker get no longer: "
            "run the task again"
        )
    grant = Grant(policy, devices)
    # Who reserved devices for it did not know these.
    holder.bundle = request.bundle
    holder.cgroup = host.planned_cgroup(request.container, request.cgroups_path)
    holder.calls = [*filter(host.alive, holder.calls), wish.call]
    return grant


def _allot(
    table: Table,
    host: Host,
    policy: Policy,
    usable: list[Device],
    wish: Waiter,
    request: Request,
) -> Grant | None:
    names = [device.id for device in usable]
    ids = leases.allot(table, wish, names, host, exclusive=policy.exclusive)
    if not ids:
        return None
    grant = Grant(policy, [device for device in usable if device.id in ids])
    holder = _holder(policy, host, request.bundle, ids)
    holder.waited = round(holder.since - wish.since, 1)
    holder.cgroup = host.planned_cgroup(request.container, request.cgroups_path)
    holder.calls = [wish.call]
    table.holders[wish.container] = holder
    return grant


def _holder(policy: Policy, host: Host, bundle: str, ids: list[str]) -> Holder:
    holder = Holder(bundle, ids, [], exclusive=policy.exclusive, since=host.now())
    holder.session_limit = policy.hijack_limit
    if policy.exclusive:
        devices = [device for device in policy.devices if device.id in ids]
        holder.nodes = [node for device in devices for node in device.watched]
    return holder


def _acquire_again(
    table: Table, host: Host, policy: Policy, record: Record, container: str
) -> Holder:
    allowed = [device.id for device in policy.devices]
    cordoned = policy.cordoned(container)
    for name in record.gpus:
        if name not in allowed:
            raise Refused(
                f"this container had GPU {name}, which tasks on this worker get no longer: "
                "run the task again, and hijack that"
            )
        if name in cordoned:
            raise Refused(
                f"this container had GPU {name}, which is {cordoned[name]}: "
                "run the task again, and hijack that"
            )
    exclusive = policy.exclusive
    usable = [name for name in allowed if name not in cordoned]
    other = leases.blocker(table, container, record.gpus, host, exclusive=exclusive)
    # Who is in its way ends only where it is to have its devices.
    if not other and exclusive and leases.are_due(table, container, record.gpus, usable, host):
        raise Refused(
            "this container gave its GPU back when its step ended, and a task waits for it: "
            "try again later, or run the task again, and hijack that"
        )
    other = other or leases.evict(table, container, record.gpus, host, exclusive=exclusive)
    if other:
        raise Refused(
            f"this container gave its GPU back when its step ended, and container {other} has it "
            "now (fly containers shows whose it is): try again when that one is done, or run the "
            "task again, and hijack that"
        )
    holder = _holder(policy, host, record.bundle, record.gpus)
    table.holders[container] = holder
    return holder


def _expired(
    policy: Policy, table: Table, usable: list[Device], wish: Waiter, now: float
) -> Refused:
    held = [
        f"GPU {device.index} is in use by container {name}"
        # A table that was made anew does not know since when.
        + (f" for {duration(now - holder.since)}" if holder.since else "")
        for device in usable
        for name, holder in table.holders.items()
        if device.id in holder.gpus
    ]
    ahead = sum(waiter.since < wish.since for waiter in table.waiters)
    others = f"; {ahead} other{' has' if ahead == 1 else 's have'} waited longer" if ahead else ""
    whose = f"{', '.join(held)} (fly containers shows whose)" if held else "none is in use"
    return Refused(
        f"this task waited {policy.wait_timeout} s for {_gpus(wish.count)} of this worker's "
        f"{len(usable)}: {whose}{others}. "
        "Run it again, or give the step attempts: 3, which does so by itself; if it happens "
        "often, ask the worker's operator for more workers or a longer gpu-wait-timeout"
    )


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
