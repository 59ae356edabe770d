# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Lease devices to a holder, lease them again to a later process, and give them back."""

from __future__ import annotations

from gpu_runtime import cgroups
from gpu_runtime import lease_scheduler as leases
from gpu_runtime.decision_log import Decision
from gpu_runtime.grant import Grant
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Record, Store
from gpu_runtime.lease_table import (
    NOUNS,
    RUNNER,
    RUNNERS,
    STEP,
    Holder,
    Table,
    Waiter,
    readable,
)
from gpu_runtime.policy import Device, Policy
from gpu_runtime.refusal import Refused, again
from gpu_runtime.unavailable import UNFIT, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpu_runtime.queue_messages import Place

# How often waiting requests look, in seconds: the oldest one, which is served next, and the
# others. A free device is idle for no longer than that.
_OLDEST_LOOKS_EVERY, _LOOK_EVERY = 0.25, 0.5

_GIVEN_BACK = "this container gave its GPU back when its step ended"
_HIJACK = "Rerun the task and hijack the new container"


class Request:
    """A request of a container or gpu-run command for devices.

    Attributes:
        container: its id; for a gpu-run command, the full name of its unit.
        bundle: the folder of its OCI bundle; empty for a gpu-run command.
        cgroups_path: `linux.cgroupsPath` of its spec; for a gpu-run command, its control group.
        kind, who, pid_file: the values for its Holder.
        named: the ids of particular devices, each once; empty: any. If set, their number is the
            number that the decision has as `asked`.
        unfit: the ids of devices that it cannot use, each with the reason: `GPU 0 is ...`.
        new: whether `acquire` gave it a lease that it did not have before.
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
    """Get a lease for a container or gpu-run command, and record its grant.

    Waits as long as the policy allows. If it is killed during the wait, nothing lasting is left. A
    container keeps devices that it has already, whatever it requests: containerd may repeat a
    create, and the self-test reserves devices for its containers, including unavailable ones.

    Args:
        store: the store of leases.
        host: the processes of this machine.
        policies: yields the current policy for each look, because it may change during the wait.
        request: the request.
        decision: has the number of devices; gets the grant and the time that it took.
        told: is called after each look that leads to a wait; an exception of it ends the wait.

    Raises:
        Refused: the request cannot be granted.
        OSError, ValueError: the store or the use of devices cannot be read.
    """
    waiter = Waiter(request.container, host.me(), 0, host.now())
    waiter.who, waiter.named = readable(request.who), [*request.named]
    while True:
        allowed, looked = next(policies), host.now()
        decision.waited_ms = round((looked - waiter.since) * 1000)
        grant, usable, is_oldest = _look(store, host, allowed, waiter, request, decision)
        decision.decided_ms = round((host.now() - looked) * 1000, 2)
        if grant:
            decision.granted = grant.ids
            return grant
        if told:
            _tell(store, told, usable, waiter, looked)
        host.sleep(_OLDEST_LOOKS_EVERY if is_oldest else _LOOK_EVERY)


def _look(
    store: Store, host: Host, allowed: Policy, waiter: Waiter, request: Request, decision: Decision
) -> tuple[Grant | None, list[Device], bool]:
    """Decide once: return the grant, None if the request waits, and the devices it may have.

    The third value is whether it waits and is the oldest waiting request.
    """
    looked = host.now()
    last = looked - waiter.since >= allowed.wait_timeout

    def decision_of(table: Table) -> tuple[Grant | None, list[Device], bool]:
        grant, usable = _keep(table, host, allowed, waiter, request), list[Device]()
        if not grant:
            usable, waiter.count = _usable(allowed, decision, request)
            grant = _allot(table, host, allowed, usable, waiter, request)
        _queue(table, host, waiter, waits=not grant and not last)
        if grant:
            store.put(waiter.container, request.bundle, grant, table.holders[waiter.container])
        elif last:
            from gpu_runtime import queue_messages  # noqa: PLC0415 - a request that is granted at once needs no messages

            raise queue_messages.expired(request.kind, allowed, table, usable, waiter, looked)
        oldest = next(iter(table.waiters), None)
        return grant, usable, bool(oldest) and oldest.call == waiter.call

    return leases.decide(store, host, decision_of)


def attempt(
    store: Store, host: Host, policy: Policy, waiter: Waiter, request: Request, decision: Decision
) -> Grant | None:
    """Get a lease if it is this request's turn; otherwise let it wait in the queue.

    For a process that does other things while it waits. It calls this again with the same
    `waiter`, at least once a minute, and `leave` if it no longer wants the devices. A process has
    one waiting request at most.

    Raises:
        Refused: the request cannot be granted.
        OSError, ValueError: the store or the use of devices cannot be read.
    """
    looked = host.now()
    decision.waited_ms = round((looked - waiter.since) * 1000)
    grant, _, _ = _look(store, host, policy, waiter, request, decision)
    decision.decided_ms = round((host.now() - looked) * 1000, 2)
    if grant:
        decision.granted = grant.ids
    return grant


def leave(store: Store, waiter: Waiter) -> None:
    """Remove a request from the queue.

    Raises:
        OSError, ValueError: the store cannot be read or written.
        Refused: the store is damaged.
    """
    with store as table:
        table.waiters = [one for one in table.waiters if one.call != waiter.call]


def _tell(
    store: Store,
    told: Callable[[Place], None],
    usable: list[Device],
    waiter: Waiter,
    now: float,
) -> None:
    """Report the position to a waiting request; if that fails, remove it from the queue."""
    from gpu_runtime import queue_messages  # noqa: PLC0415

    try:
        told(queue_messages.Place(store.read(), usable, waiter, now))
    except BaseException:
        leave(store, waiter)
        raise


def give_back(store: Store, host: Host, container: str, *, force: bool = False) -> bool:
    """End a lease whose holder no longer uses its devices, and remove its record.

    This is optional: the next request for the devices ends such a lease too. It saves that request
    the time, and the time that a gpu-run command may take to start.

    Args:
        store: the store of leases.
        host: the processes of this machine.
        container: the holder.
        force: whether to end a holder that uses its devices, with its processes.

    Returns:
        Whether the lease is over; False if it is still in use or cannot be ended.

    Raises:
        OSError, ValueError: the store or the use of devices cannot be read.
        Refused: the store is damaged.
    """

    def is_over(table: Table) -> bool:
        if container in table.holders and not leases.release(table, container, host, force=force):
            return False
        store.forget(container)
        return True

    return leases.decide(store, host, is_over)


def undo(store: Store, host: Host, request: Request) -> None:
    """Give back the devices of a container that is not created after all.

    A lease that it had before stays. If this fails, the next request for the devices finds that
    they are not in use.
    """
    if not request.new:
        return
    try:
        with store as table:
            if holder := table.holders.get(request.container):
                # No process of it will start.
                holder.execs, holder.calls = True, []
        give_back(store, host, request.container)
    except (OSError, ValueError, Refused):
        pass


def lend(
    store: Store, host: Host, policies: Iterator[Policy], request: Request, decision: Decision
) -> Grant | None:
    """Give a container of a runner's job devices of that job; None if it belongs to none.

    It belongs to a job if its control group lies in that of the job's runner. The container gets
    no lease: job and container use the devices together, and the lease ends with both.

    Raises:
        Refused: the job has not that many devices, or not those that the request names.
        OSError, ValueError: the store or the control groups cannot be read.
    """
    group = host.planned_cgroup(request.container, request.cgroups_path)
    if not cgroups.is_below(group, RUNNERS):
        return None
    policy = next(policies)
    with store as table:
        lender, holder = _lender(table, host, group)
        has = [device for device in policy.devices if holder and device.id in holder.gpus]
        usable = [device for device in has if device.id not in request.unfit]
        if request.named:
            chosen = [device for device in usable if device.id in request.named]
        else:
            chosen = usable[: decision.asked]
        count = len(request.named) or max(1, decision.asked or 0)
        if len(chosen) < count:
            raise _not_in_job(has, request, count)
        grant = Grant(policy, chosen, request.kind)
        store.put(request.container, request.bundle, grant, lender=lender)
    decision.granted = grant.ids
    return grant


def _lender(table: Table, host: Host, group: str) -> tuple[str, Holder | None]:
    """Return the runner in whose control group a container lies; none: it has no device."""
    for name, holder in table.holders.items():
        is_its = holder.kind == RUNNER and cgroups.is_below(group, holder.cgroup)
        if is_its and not leases.is_handed_over(holder, host):
            return name, holder
    return "", None


def _not_in_job(has: list[Device], request: Request, count: int) -> Refused:
    from gpu_runtime import queue_messages  # noqa: PLC0415

    unfit = [request.unfit[device.id] for device in has if device.id in request.unfit]
    its = ", ".join(f"GPU {device.index}" for device in has) or "none"
    why = f", and {'; '.join(unfit)}" if unfit else ""
    wanted = " and ".join(request.named)[:200] or queue_messages.gpus(count)
    return Refused(
        "not-in-job",
        f"this container requests {wanted}, and has only what its job has: {its}{why}. Request "
        "no more than that, or more GPUs for the job by its labels, such as gpu-count-2",
    )


def resume(store: Store, host: Host, policy: Callable[[], Policy], decision: Decision) -> Record:
    """Lease a container's devices again, for a process that starts in it.

    Does not wait: a process that starts after the container's step, such as a hijack, gets the
    devices if they are free.

    Raises:
        Refused: they are not free.
        OSError: the store cannot be read; FileNotFoundError: the container has no record.
        ValueError: its record, or the use of devices, cannot be read.
    """
    looked = host.now()
    record = store.record(decision.container)
    decision.asked = len(record.gpus)
    if not record.gpus:
        return record

    def take(table: Table) -> None:
        if record.lender:
            lender = table.holders.get(record.lender)
            if lender is None or leases.is_handed_over(lender, host):
                raise _ended()
            return
        holder = table.holders.get(decision.container)
        if holder and leases.is_handed_over(holder, host):
            raise Refused(
                "gpu-given-back",
                f"{_GIVEN_BACK}, and another request gets it now. {_HIJACK}, or try again later",
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

    Damaged leases do not stop a task without a request. They refuse requests only.

    Args:
        store: the store of leases.
        host: the processes of this machine.
        container: its id.
        bundle: the folder of its OCI bundle.
        grant: the grant for its processes; None: none, so that they bypass this runtime.

    Raises:
        OSError: the store cannot be used.
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
    """Return the devices that may be handed out, and the number that is requested.

    Raises:
        Refused: there are fewer than requested, or a named one is missing. A request for all is a
            request for at least one.
    """
    unfit = {
        name: Unavailable(UNFIT, "image-requirements", why) for name, why in request.unfit.items()
    }
    unavailable, asked = unfit | policy.unavailable(decision.container), decision.asked
    usable = [device for device in policy.devices if device.id not in unavailable]
    count = 1 if asked is None else asked
    missing = {*request.named} - {device.id for device in usable}
    if missing or count > len(usable):
        from gpu_runtime import queue_messages  # noqa: PLC0415

        if missing:
            raise queue_messages.not_here(request.kind, policy, unavailable, sorted(missing))
        raise queue_messages.too_few(request.kind, policy, unavailable, count)
    if request.named:
        return usable, len(request.named)
    return usable, len(usable) if asked is None else asked


def _queue(table: Table, host: Host, waiter: Waiter, *, waits: bool) -> None:
    """Put `waiter` into the queue in its position, or remove it."""
    noted = next((one for one in table.waiters if one.call == waiter.call), None)
    if not waits:
        table.waiters = [one for one in table.waiters if one is not noted]
    elif noted:
        noted.count = waiter.count  # all may be fewer by now
    else:
        living = [one for one in table.waiters if host.alive(one.call)]
        table.waiters = [*living, waiter]


def _keep(
    table: Table, host: Host, policy: Policy, waiter: Waiter, request: Request
) -> Grant | None:
    """Return the grant that the container has and uses already; None if there is none."""
    holder = table.holders.get(waiter.container)
    if not holder or leases.is_handed_over(holder, host):
        return None
    if leases.release(table, waiter.container, host):
        return None
    _check_withheld(table, host, request.kind, waiter.container)
    devices = [device for device in policy.devices if device.id in holder.gpus]
    if len(devices) < len(holder.gpus):
        noun = NOUNS[request.kind]
        raise Refused(
            "gpu-withdrawn",
            f"this container has a GPU that is no longer assigned to {noun}s on this worker. "
            f"{again(noun).capitalize()}",
        )
    grant = Grant(policy, devices, request.kind)
    # The process that reserved the devices did not know these.
    _describe(holder, request)
    holder.cgroup = host.planned_cgroup(request.container, request.cgroups_path)
    holder.calls = [*filter(host.alive, holder.calls), waiter.call]
    return grant


def _allot(
    table: Table,
    host: Host,
    policy: Policy,
    usable: list[Device],
    waiter: Waiter,
    request: Request,
) -> Grant | None:
    if waiter.container in table.holders:
        return None  # its devices are passing to another request
    names = [device.id for device in usable]
    try:
        ids = leases.allot(table, waiter, names, host, exclusive=policy.exclusive)
    except leases.UnseenError:
        _queue(table, host, waiter, waits=True)  # so that no younger request overtakes it
        raise
    if not ids:
        _check_withheld(table, host, request.kind)
        return None
    grant = Grant(policy, [device for device in usable if device.id in ids], request.kind)
    holder = _holder(policy, host, request.bundle, ids)
    _describe(holder, request)
    holder.waited = round(holder.since - waiter.since, 1)
    holder.cgroup = host.planned_cgroup(request.container, request.cgroups_path)
    holder.calls = [waiter.call]
    table.holders[waiter.container] = holder
    request.new = True
    return grant


def _check_withheld(table: Table, host: Host, kind: str, container: str = "") -> None:
    """Check that no search forbids reusing the devices of a holder, or of any holder.

    Raises:
        Refused: one does.
    """
    for name, holder in table.holders.items():
        if container in ("", name) and (why := host.looked.get(name)):
            from gpu_runtime import queue_messages  # noqa: PLC0415

            raise queue_messages.withheld(kind, holder, why)


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


def _ended() -> Refused:
    return Refused(
        "container-ended",
        "this container has ended, and its lease with it. Start the container again",
    )


def _acquire_again(
    table: Table, host: Host, policy: Policy, record: Record, container: str
) -> Holder:
    if record.holder and record.holder.kind != STEP:
        # A container of an engine has its devices as long as it lives.
        raise _ended()
    allowed = [device.id for device in policy.devices]
    unavailable = policy.unavailable(container)
    for name in record.gpus:
        if name not in allowed:
            raise Refused(
                "gpu-withdrawn",
                f"GPU {name} is no longer available to tasks on this worker. {_HIJACK}",
            )
        if name in unavailable:
            raise Refused(
                "gpu-withdrawn",
                f"GPU {name} of this container is {unavailable[name].describe()}. {_HIJACK}",
            )
    exclusive = policy.exclusive
    usable = [name for name in allowed if name not in unavailable]
    other = leases.blocker(table, container, record.gpus, host, exclusive=exclusive)
    # Other holders are ended only if this container then gets its devices.
    if not other and exclusive and leases.are_due(table, container, record.gpus, usable, host):
        raise Refused(
            "gpu-given-back",
            f"{_GIVEN_BACK}, and a task waits for it. {_HIJACK}, or try again later",
        )
    other = other or leases.evict(table, container, record.gpus, host, exclusive=exclusive)
    if other:
        _check_withheld(table, host, STEP, other)
        holder = table.holders[other]
        shown = " (see fly containers)" if holder.kind == STEP else ""
        raise Refused(
            "gpu-given-back",
            f"{_GIVEN_BACK}, and {holder.who or f'container {other}'} has it now{shown}. "
            f"{_HIJACK}, or try again later",
        )
    holder = _holder(policy, host, record.bundle, record.gpus)
    table.holders[container] = holder
    return holder
