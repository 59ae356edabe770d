# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Decide who gets which devices, and who waits. Pure: a host provides the facts.

A lease lasts as long as its devices are in use (see holder_usage.Host). No holder announces the
end. A process that requests devices checks the holders, and ends those that no longer use theirs,
as whole containers. Before the devices are reused, it searches for other processes that have them
open. That takes too long for the lock, so the holder is marked during the search (Holder.handing),
and no other process gets its devices. `divide` divides devices among waiting requests.
"""

from __future__ import annotations

from gpu_runtime.lease_table import Holder, Table, Waiter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Protocol, TypeVar

    from gpu_runtime.lease_store import Store
    from gpu_runtime.lease_table import Call

    Outcome = TypeVar("Outcome")

    class Facts(Protocol):
        """Facts about a machine's processes; holder_usage.Host is the real implementation."""

        looked: dict[str, str]
        """The ended holders whose devices were searched for; see holder_usage.Host."""

        mark: tuple[Call, float] | None
        """The mark of these holders."""

        def me(self) -> Call:
            """Return the calling process."""
            ...

        def now(self) -> float:
            """Return the seconds since boot."""
            ...

        def alive(self, call: Call) -> bool:
            """Whether exactly that process lives."""
            ...

        def in_use(self, container: str, holder: Holder) -> bool:
            """Whether the holder still uses its devices."""
            ...

        def is_gone(self, container: str, holder: Holder) -> bool:
            """Whether no process of the holder's container is left."""
            ...

        def clear(self, container: str, holder: Holder) -> bool:
            """Kill all of the holder's container; return whether no process is left."""
            ...

        def look(self, ending: dict[str, Holder], leased: list[str]) -> None:
            """Search for processes with devices of ended holders open; fill `looked`."""
            ...


# After this number of overtakings, or of seconds, free devices are kept for the oldest request
# that does not fit.
MOST_OVERTAKINGS = 8
LONGEST_PASSED_OVER = 30

# How long a search may keep others from a device, in seconds: longer than the search takes
# (handover.PATIENCE), including the end of the processes found.
LONGEST_LOOK = 60

# The most holders that one decision in shared mode removes if they are gone. Each adds one.
_SWEPT = 4


class UnseenError(Exception):
    """Holders have ended, and no search for other users of their devices was made yet.

    Attributes:
        names: the names of the holders.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__(*names)
        self.names = names


def decide(store: Store, host: Facts, decision: Callable[[Table], Outcome]) -> Outcome:
    """Make a decision about the leases under the lock of the store.

    Args:
        store: the store of leases.
        host: the processes of this machine.
        decision: decides on the table. If a search is needed first, it raises UnseenError, after
            changes that may stay. The search is made without the lock, and `decision` is called
            again.

    Raises:
        OSError, ValueError, Refused: as the store and the decision do.
    """
    while True:
        with store as table:
            _unmark(table, host)
            try:
                return decision(table)
            except UnseenError as unseen:
                host.mark = (host.me(), host.now())
                ending = {name: table.holders[name] for name in unseen.names}
                leased = [
                    group
                    for name, holder in table.holders.items()
                    if name not in ending
                    for group in (holder.cgroup, holder.unified)
                    if group
                ]
                for holder in ending.values():
                    holder.handing = host.mark
        host.look(ending, leased)


def _unmark(table: Table, host: Facts) -> None:
    """Remove the mark, and the results of searches for holders that have lost it."""
    mark, host.mark = host.mark, None
    kept = {name for name, holder in table.holders.items() if mark and holder.handing == mark}
    for name in kept:
        table.holders[name].handing = None
    for name in [name for name in host.looked if name not in kept and not host.looked[name]]:
        del host.looked[name]


def is_handed_over(holder: Holder, host: Facts) -> bool:
    """Whether a living process searches for users of a holder's devices, to get them next."""
    if not holder.handing:
        return False
    call, begun = holder.handing
    return host.now() - begun < LONGEST_LOOK and host.alive(call)


class Shares:
    """The division of free devices among waiting requests.

    Attributes:
        left: the devices that no request gets, or has kept, by name.
        given: how many of `left` go to requests without names, or are kept for one of them.
        kept: the requests for which devices are kept, each with the number.
    """

    __slots__ = ("given", "kept", "left")

    def __init__(self, free: Collection[str]) -> None:
        self.left = {*free}
        self.given = 0
        self.kept: list[tuple[Waiter, int]] = []

    def has_room(self, count: int, named: Collection[str] = ()) -> bool:
        """Whether enough is left for another request: by number, or of particular devices."""
        return count <= len(self.left) - self.given and self.left.issuperset(named)


def divide(waiters: list[Waiter], free: Collection[str], now: float) -> Shares:
    """Divide `free` devices among waiting requests, the oldest first.

    A request that fits into the devices that older ones leave gets them. If a request does not fit
    and was passed over for long enough, devices are kept for it. Otherwise younger requests could
    take them one by one, without end. For a request that names devices, the free ones of these are
    kept, and other requests continue beside it. For the first request without names, all remaining
    devices are kept, and the division ends. No waiting request has any device, and the oldest is
    first, so no two requests block each other.
    """
    shares = Shares(free)
    for waiter in waiters:
        own = shares.left.intersection(waiter.named)
        room = max(0, len(shares.left) - shares.given)
        if shares.has_room(waiter.count, waiter.named):
            shares.given += 0 if waiter.named else waiter.count
        elif not is_owed(waiter, now):
            continue
        elif waiter.named:
            shares.kept.append((waiter, min(room, len(own))))
        else:
            shares.kept.append((waiter, room))
            shares.given += room
            break
        shares.left -= own
    return shares


def is_owed(waiter: Waiter, now: float) -> bool:
    """Whether a request was passed over for so long that free devices are kept for it."""
    return waiter.overtaken >= MOST_OVERTAKINGS or now - waiter.since >= LONGEST_PASSED_OVER


def allot(
    table: Table, waiter: Waiter, usable: list[str], host: Facts, *, exclusive: bool
) -> list[str]:
    """Return the devices that a request gets now, or none if it must wait.

    Raises:
        UnseenError: a search for users of the devices is needed first.

    Args:
        table: loses holders and requests that are gone, and holders that are ended for their
            devices. The caller adds the new holder.
        waiter: the request. If it is not in the queue, all requests in the queue are older.
        usable: the ids of all devices that may be handed out, in order.
        host: the processes of this machine; each check costs time.
        exclusive: whether the devices are for this holder only. If not, the request gets all
            devices that can be shared, once there are enough, unless it names some.
    """
    elders = _elders(table, waiter, host) if exclusive else []
    idle = _idle(table, waiter, elders, usable, host, exclusive=exclusive)
    within_reach = table.free(usable, exclusive=exclusive, without=idle)
    shares = divide(elders, within_reach, host.now())
    if not shares.has_room(waiter.count, waiter.named):
        return []
    chosen = {*waiter.named} or {*within_reach}
    if exclusive and not waiter.named:
        chosen = _choice(
            table, waiter, [name for name in within_reach if name in shares.left], idle
        )
    unseen: list[str] = []
    for name in idle:
        if chosen.isdisjoint(table.holders[name].gpus):
            continue
        try:
            is_over = release(table, name, host)
        except UnseenError:
            unseen.append(name)  # one search serves all
            continue
        if not is_over:
            # It cannot be ended, so fewer devices are within reach. Decide again without it.
            return allot(table, waiter, usable, host, exclusive=exclusive)
    if unseen:
        raise UnseenError(unseen)
    for elder in elders:
        elder.overtaken += not elder.named or not chosen.isdisjoint(elder.named)
    if not exclusive:
        _sweep(table, waiter, host)
    return [name for name in usable if name in chosen]


def _idle(
    table: Table,
    waiter: Waiter,
    elders: list[Waiter],
    usable: list[str],
    host: Facts,
    *,
    exclusive: bool,
) -> list[str]:
    """Return holders that no longer use their devices, as many as may have to be ended.

    If any waiting request names devices, or devices are shared, all holders are checked.
    """
    needed = waiter.count + sum(elder.count for elder in elders)
    if not exclusive or waiter.named or any(one.named for one in table.waiters):
        needed = len(usable)
    idle: list[str] = []
    within_reach = table.free(usable, exclusive=exclusive)
    for name in table.blocking(usable, exclusive=exclusive):
        if len(within_reach) >= needed:
            break
        if _is_idle(table, name, host):
            idle.append(name)
            within_reach = table.free(usable, exclusive=exclusive, without=idle)
    # One that was stuck may be over by now.
    return [name for name in idle if name in table.holders]


def _choice(table: Table, waiter: Waiter, devices: list[str], idle: list[str]) -> set[str]:
    """Return the best of `devices` for a request without names.

    Devices that no request waits for by name come first; of these, those for which no container
    must end.
    """
    wanted = {name for one in table.waiters for name in one.named}
    ends = {gpu: place for place, name in enumerate(idle, 1) for gpu in table.holders[name].gpus}
    devices.sort(key=lambda device: (device in wanted, ends.get(device, 0)))
    return {*devices[: waiter.count]}


def blocker(
    table: Table, container: str, devices: list[str], host: Facts, *, exclusive: bool
) -> str:
    """Return the id of another container that uses and does not share a device, or empty."""
    for name in table.blocking(devices, exclusive=exclusive):
        if name != container and not _is_idle(table, name, host):
            return name
    return ""


def evict(
    table: Table, container: str, devices: list[str], host: Facts, *, exclusive: bool
) -> str:
    """End each holder that has but does not use one of `devices`, and does not share it.

    Returns:
        The id of a container that still has one of them; empty if they can be taken.
    """
    for name in table.blocking(devices, exclusive=exclusive):
        if name != container and not release(table, name, host):
            return name
    return ""


def are_due(
    table: Table,
    container: str,
    devices: list[str],
    usable: list[str],
    host: Facts,
    *,
    exclusive: bool = True,
) -> bool:
    """Whether waiting requests are entitled to `devices`, counting all free devices.

    Args:
        table: loses holders and requests that are gone.
        container: the container that requests `devices`; its own devices count as free.
        devices: the ids of devices that no other holder uses.
        usable: the ids of all devices that may be handed out.
        host: checks each holder and request, if any request waits.
        exclusive: whether waiting requests do not share devices.
    """
    last = Waiter(container, (0, 0), 0, 0)
    waiters = _elders(table, last, host)
    if not waiters:
        return False
    idle = [
        name
        for name in table.blocking(usable, exclusive=exclusive)
        if name == container or _is_idle(table, name, host)
    ]
    free = {*table.free(usable, exclusive=exclusive, without=idle), *devices}
    return not divide(waiters, free, host.now()).has_room(len(devices), devices)


def release(table: Table, name: str, host: Facts, *, force: bool = False) -> bool:
    """End a holder that no longer uses its devices, with its container; return whether it is over.

    All processes are killed, including the first one, which a pipeline can own: an open device
    stays open, whatever rules forbid opening it.

    Args:
        table: the table of leases.
        name: the holder's name.
        host: the processes of this machine.
        force: whether to end a holder that uses its devices.

    Raises:
        UnseenError: a search for other users of the devices is needed first.
    """
    holder = table.holders[name]
    if not _can_be_taken(name, holder, host) or (not force and host.in_use(name, holder)):
        return False
    holder.stuck = not host.clear(name, holder)
    if holder.stuck:
        return False
    if holder.nodes and name not in host.looked:
        raise UnseenError([name])
    del table.holders[name]
    host.looked.pop(name, None)
    return True


def _can_be_taken(name: str, holder: Holder, host: Facts) -> bool:
    """Whether a holder's devices are not passing to another one, and no search forbids reuse."""
    return not is_handed_over(holder, host) and not host.looked.get(name)


def _is_idle(table: Table, name: str, host: Facts) -> bool:
    """Whether a holder no longer uses its devices and, as far as known, can be ended."""
    holder = table.holders[name]
    if not _can_be_taken(name, holder, host):
        return False
    if holder.stuck:
        return release(table, name, host)
    return not host.in_use(name, holder)


def _elders(table: Table, waiter: Waiter, host: Facts) -> list[Waiter]:
    """Return the requests older than `waiter`; remove those whose process is dead."""
    elders: list[Waiter] = []
    for one in [*table.waiters]:
        if one.call == waiter.call:
            break
        if host.alive(one.call):
            elders.append(one)
        else:
            table.waiters.remove(one)
    return elders


def _sweep(table: Table, waiter: Waiter, host: Facts) -> None:
    """Remove a few holders that are gone: in shared mode no request ends holders."""
    names = [*table.holders]
    # Any few will do, but not always the same: the process id changes from call to call.
    first = waiter.call[0] % len(names) if names else 0
    for name in [*names[first:], *names[:first]][:_SWEPT]:
        if host.is_gone(name, table.holders[name]):
            del table.holders[name]
