# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Leasing devices to a holder, again to a process that comes later, and giving them back."""

from __future__ import annotations

import time

from gpu_runtime import lease_scheduler as leases
from gpu_runtime.decision_log import Decision
from gpu_runtime.grant import Grant
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Record, Store
from gpu_runtime.lease_table import NOUNS, STEP, Holder, Table, Waiter, readable
from gpu_runtime.policy import Device, Policy
from gpu_runtime.refusal import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpu_runtime.queue_messages import Place

# How often those who wait look, in seconds: the oldest, who is served next, and the others.
# A device that comes free is idle for no longer.
_OLDEST_LOOKS_EVERY, _LOOK_EVERY = 0.25, 0.5


class Request:
    """A container or job that is to have devices.

    Attributes:
        container: its id; a job's is the full name of its unit.
        bundle: the folder of its OCI bundle; empty for a job.
        cgroups_path: `linux.cgroupsPath` of its spec; a job's is its control group.
        kind, who, pid_file: as its Holder is to have them.
        named: the ids of the very devices that it wants; empty: any. There are as many of them as
            the decision says that are asked for, each once.
        unfit: the ids of devices that are of no use to it, each with what it `is`.
        new: whether it has a lease now that it had not before; told by `acquire`.
    """

    __slots__ = (
        *("bundle", "cgroups_path", "container", "kind", "named", "new", "pid_file", "unfit"),
        "who",
    )

    def __init__(self, container: str, bundle: str, cgroups_path: str) -> None:
        self.container = container
        self.bundle = bundle
        self.cgroups_path = cgroups_path
        self.kind = STEP
        self.who = ""
        self.pid_file = ""
        self.named: list[str] = []
        self.unfit: dict[str, str] = {}
        self.new = False


def acquire(
    store: Store,
    host: Host,
    policies: Iterator[Policy],
    request: Request,
    decision: Decision,
    *,
    told: Callable[[Place], None] | None = None,
) -> Grant:
    """Have a lease for a container or job, and record what it is told.

    It waits as long as the policy allows; killed meanwhile, it leaves nothing that lasts. What the
    container has already it keeps, whatever it asks for: containerd may repeat a create, and the
    self-test reserves devices for its containers, also such as tasks may not have.

    Args:
        store: where leases are.
        host: what processes there are.
        policies: the policy at each look anew, since it may change while this waits.
        request: the container.
        decision: what is asked for; is told what was granted and how long it took.
        told: is called after each look that leads to a wait; what it raises ends the wait.

    Raises:
        Refused: the devices can't be had.
        OSError, ValueError: the store can't be used, or it can't be told who uses what.
    """
    wish = Waiter(request.container, host.me(), 0, host.now())
    wish.who, wish.named = readable(request.who), [*request.named]
    while True:
        allowed, looked = next(policies), host.now()
        decision.waited_ms = round((looked - wish.since) * 1000)
        grant, usable, is_oldest = _look(store, host, allowed, wish, request, decision)
        decision.decided_ms = round((host.now() - looked) * 1000, 2)
        if grant:
            decision.granted = grant.ids
            return grant
        if told:
            _tell(store, told, usable, wish, looked)
        time.sleep(_OLDEST_LOOKS_EVERY if is_oldest else _LOOK_EVERY)


def _look(
    store: Store, host: Host, allowed: Policy, wish: Waiter, request: Request, decision: Decision
) -> tuple[Grant | None, list[Device], bool]:
    """What a container or job gets now, None if it waits; and the devices that it may have.

    Beside them, whether it waits and is the oldest of those who do.
    """
    looked = host.now()
    last = looked - wish.since >= allowed.wait_timeout

    def decision_of(table: Table) -> tuple[Grant | None, list[Device], bool]:
        grant, usable = _keep(table, host, allowed, wish, request), list[Device]()
        if not grant:
            usable, wish.count = _usable(allowed, decision, request)
            grant = _allot(table, host, allowed, usable, wish, request)
        _queue(table, host, wish, waits=not grant and not last)
        if grant:
            store.put(wish.container, request.bundle, grant, table.holders[wish.container])
        elif last:
            from gpu_runtime import queue_messages as line  # noqa: PLC0415 - what gets its devices at once needs no words

            raise line.expired(request.kind, allowed, table, usable, wish, looked)
        oldest = next(iter(table.waiters), None)
        return grant, usable, bool(oldest) and oldest.call == wish.call

    return leases.decide(store, host, decision_of)


def _tell(
    store: Store,
    told: Callable[[Place], None],
    usable: list[Device],
    wish: Waiter,
    now: float,
) -> None:
    """Tell who waits where it stands; where that fails, it waits no more."""
    from gpu_runtime import queue_messages as line  # noqa: PLC0415

    try:
        told(line.Place(store.read(), usable, wish, now))
    except BaseException:
        with store as table:
            table.waiters = [waiter for waiter in table.waiters if waiter.call != wish.call]
        raise


def give_back(store: Store, host: Host, container: str) -> bool:
    """End a lease whose holder uses its devices no more, and forget what it was told.

    Nobody has to: whoever wants the devices finds out. But who does it at once saves the next one
    that, and the time that a job may take to start.

    Returns:
        Whether it is over; not if it is in use still, or can't be ended.

    Raises:
        OSError, ValueError: the store can't be used, or it can't be told who uses what.
        Refused: the store is damaged.
    """

    def is_over(table: Table) -> bool:
        if container in table.holders and not leases.release(table, container, host):
            return False
        store.forget(container)
        return True

    return leases.decide(store, host, is_over)


def undo(store: Store, host: Host, request: Request) -> None:
    """Give back at once what was granted to a container that is not made after all.

    A lease that it had before stays. Where this fails, the next one that wants the devices finds
    out that nobody uses them.
    """
    if not request.new:
        return
    try:
        with store as table:
            if holder := table.holders.get(request.container):
                # Nothing of it is to come.
                holder.execs, holder.calls = True, []
        give_back(store, host, request.container)
    except (OSError, ValueError, Refused):
        pass


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

    def take(table: Table) -> None:
        holder = table.holders.get(decision.container)
        if holder and leases.is_handed_over(holder, host):
            raise Refused(
                "this container gave its GPU back when its step ended, and it goes to another "
                "now: try again later, or run the task again, and hijack that"
            )
        if holder is None or not host.in_use(decision.container, holder):
            holder = _acquire_again(table, host, policy(), record, decision.container)
        holder.execs = True
        host.note_groups(decision.container, holder)
        holder.calls = [*filter(host.alive, holder.calls), host.me()]

    leases.decide(store, host, take)
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

    def end(table: Table) -> None:
        if container in table.holders:
            leases.release(table, container, host)

    if store.has(container):
        try:
            leases.decide(store, host, end)
        except Refused:
            pass
        store.forget(container)
    if grant:
        store.put(container, bundle, grant)


def _usable(policy: Policy, decision: Decision, request: Request) -> tuple[list[Device], int]:
    """The devices that may be handed out, and how many of them are asked for.

    Raises:
        Refused: there are fewer than asked for, or none of a name; asking for all asks for one at
            least.
    """
    cordoned, asked = request.unfit | policy.cordoned(decision.container), decision.asked
    usable = [device for device in policy.devices if device.id not in cordoned]
    count = 1 if asked is None else asked
    missing = {*request.named} - {device.id for device in usable}
    if missing or count > len(usable):
        from gpu_runtime import queue_messages as line  # noqa: PLC0415

        if missing:
            raise line.not_here(request.kind, policy, cordoned, sorted(missing))
        raise line.too_few(request.kind, policy, cordoned, count)
    if request.named:
        return usable, len(request.named)
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
    if not holder or leases.is_handed_over(holder, host):
        return None
    if leases.release(table, wish.container, host):
        return None
    _check_withheld(table, host, request.kind, wish.container)
    devices = [device for device in policy.devices if device.id in holder.gpus]
    if len(devices) < len(holder.gpus):
        noun = NOUNS[request.kind]
        raise Refused(
            f"this container runs with a GPU that {noun}s on this worker get no longer: "
            f"run the {noun} again"
        )
    grant = Grant(policy, devices, request.kind)
    # Who reserved devices for it did not know these.
    _describe(holder, request)
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
    if wish.container in table.holders:
        return None  # what it had goes to another one now
    names = [device.id for device in usable]
    try:
        ids = leases.allot(table, wish, names, host, exclusive=policy.exclusive)
    except leases.UnseenError:
        _queue(table, host, wish, waits=True)  # nobody younger comes before it meanwhile
        raise
    if not ids:
        _check_withheld(table, host, request.kind)
        return None
    grant = Grant(policy, [device for device in usable if device.id in ids], request.kind)
    holder = _holder(policy, host, request.bundle, ids)
    _describe(holder, request)
    holder.waited = round(holder.since - wish.since, 1)
    holder.cgroup = host.planned_cgroup(request.container, request.cgroups_path)
    holder.calls = [wish.call]
    table.holders[wish.container] = holder
    request.new = True
    return grant


def _check_withheld(table: Table, host: Host, kind: str, container: str = "") -> None:
    """Check that no look speaks against handing on the devices of a holder, or of any.

    Raises:
        Refused: one does.
    """
    for name, holder in table.holders.items():
        if container in ("", name) and (why := host.looked.get(name)):
            from gpu_runtime import queue_messages as line  # noqa: PLC0415

            raise line.withheld(kind, holder, why)


def _describe(holder: Holder, request: Request) -> None:
    holder.kind, holder.who = request.kind, readable(request.who)
    holder.bundle, holder.pid_file = request.bundle, request.pid_file


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
    if record.holder and record.holder.kind != STEP:
        # What an engine starts a process in has its devices as long as it lives.
        raise Refused("this container has ended, and its lease with it: start it again")
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
        _check_withheld(table, host, STEP, other)
        holder = table.holders[other]
        shown = " (fly containers shows whose it is)" if holder.kind == STEP else ""
        raise Refused(
            "this container gave its GPU back when its step ended, and "
            f"{holder.who or f'container {other}'} has it now{shown}: try again when that one is "
            "done, or run the task again, and hijack that"
        )
    holder = _holder(policy, host, record.bundle, record.gpus)
    table.holders[container] = holder
    return holder
