# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Who holds which devices, who waits for some, and who is next. Pure: it asks a host for facts.

A lease lives as long as its devices are in use (see holder_usage.Host). No holder announces the
end of that: a process that wants devices looks at the holders, and ends those that no longer use
theirs, as whole containers. Before the devices go on, it looks who else has them open. That takes
too long for the lock, so the holder is marked meanwhile (Holder.handing), and no other process
gets its devices. `divide` divides devices among the waiting processes.
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
        """What can be found out about a machine's processes; holder_usage.Host is the real one."""

        looked: dict[str, str]
        """Of which ended holders it was seen who has their devices open; see holder_usage.Host."""

        mark: tuple[Call, float] | None
        """What these are marked with."""

        def me(self) -> Call:
            """The process that asks."""
            ...

        def now(self) -> float:
            """Seconds since boot."""
            ...

        def alive(self, call: Call) -> bool:
            """Whether that very process lives."""
            ...

        def in_use(self, container: str, holder: Holder) -> bool:
            """Whether the holder still uses its devices."""
            ...

        def is_gone(self, container: str, holder: Holder) -> bool:
            """Whether no process of the holder's container is left."""
            ...

        def clear(self, container: str, holder: Holder) -> bool:
            """End the holder's container as a whole; whether no process of it is left."""
            ...

        def look(self, ending: dict[str, Holder], leased: list[str]) -> None:
            """Look who has devices of holders open that have ended; note it in `looked`."""
            ...


# From so many overtakings on, or after so many seconds, what comes free is kept for the oldest
# wish that does not fit.
MOST_OVERTAKINGS = 8
LONGEST_PASSED_OVER = 30

# How long the look at who has a device open may keep others from it, in seconds: longer than it
# takes (handover.PATIENCE), with the end of what is found.
LONGEST_LOOK = 60

# How many holders one look in shared mode removes at most that are gone: each adds one.
_SWEPT = 4


class UnseenError(Exception):
    """Holders have ended, and nobody has looked yet who else has their devices open.

    Attributes:
        names: theirs.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__(*names)
        self.names = names


def decide(store: Store, host: Facts, decision: Callable[[Table], Outcome]) -> Outcome:
    """Have a decision about the leases under the lock of the store.

    Args:
        store: where leases are.
        host: what processes there are.
        decision: what is decided of the table. Where that must be looked at first who has devices
            open, it raises UnseenError, having changed nothing that must not stay; the look is
            done without the lock, and it is called again.

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
    """Take back a mark, and what was seen of holders that do not bear it any more."""
    mark, host.mark = host.mark, None
    kept = {name for name, holder in table.holders.items() if mark and holder.handing == mark}
    for name in kept:
        table.holders[name].handing = None
    for name in [name for name in host.looked if name not in kept and not host.looked[name]]:
        del host.looked[name]


def is_handed_over(holder: Holder, host: Facts) -> bool:
    """Whether a process that lives looks who has a holder's devices open, to have them next."""
    if not holder.handing:
        return False
    call, begun = holder.handing
    return host.now() - begun < LONGEST_LOOK and host.alive(call)


class Shares:
    """How free devices are divided among those who wait.

    Attributes:
        left: those that nobody gets, or has kept, who names devices.
        given: how many of `left` are given to those who name none, or kept for one of them.
        kept: for whom devices are kept, each with how many.
    """

    __slots__ = ("given", "kept", "left")

    def __init__(self, free: Collection[str]) -> None:
        self.left = {*free}
        self.given = 0
        self.kept: list[tuple[Waiter, int]] = []

    def has_room(self, count: int, named: Collection[str] = ()) -> bool:
        """Whether there is enough for somebody else: of so many, or of these very ones."""
        return count <= len(self.left) - self.given and self.left.issuperset(named)


def divide(waiters: list[Waiter], free: Collection[str], now: float) -> Shares:
    """Divide `free` devices among those who wait, the oldest first.

    Each whose wish fits into what its elders leave gets it. One that does not fit, and has been
    passed over for long enough, has devices kept for it: younger ones would take them piece by
    piece, for ever. For who names devices those of them are kept that are left, so others go on
    beside it; for the first who names none all that is left, and nobody comes after it. Nobody who
    waits has anything, and the oldest goes first, so no two block each other.
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
    """Whether a wish has been passed over for so long that what comes free is kept for it."""
    return waiter.overtaken >= MOST_OVERTAKINGS or now - waiter.since >= LONGEST_PASSED_OVER


def allot(
    table: Table, wish: Waiter, usable: list[str], host: Facts, *, exclusive: bool
) -> list[str]:
    """The devices that `wish` gets now, or none if it must wait.

    Raises:
        UnseenError: it must be looked at first who has them open.

    Args:
        table: changed where holders and waiters are gone, or are ended to make room; to note the
            new holder is the caller's.
        wish: it need not be among those who wait; then all of them came before it.
        usable: the ids of all devices that may be handed out, in order.
        host: is asked no more than needed.
        exclusive: whether nobody else may have them meanwhile; otherwise all that can be shared is
            given, once there is enough of it, unless it names some.
    """
    elders = _elders(table, wish, host) if exclusive else []
    idle = _idle(table, wish, elders, usable, host, exclusive=exclusive)
    within_reach = table.free(usable, exclusive=exclusive, without=idle)
    shares = divide(elders, within_reach, host.now())
    if not shares.has_room(wish.count, wish.named):
        return []
    chosen = {*wish.named} or {*within_reach}
    if exclusive and not wish.named:
        chosen = _choice(table, wish, [name for name in within_reach if name in shares.left], idle)
    unseen: list[str] = []
    for name in idle:
        if chosen.isdisjoint(table.holders[name].gpus):
            continue
        try:
            is_over = release(table, name, host)
        except UnseenError:
            unseen.append(name)  # one look serves for all
            continue
        if not is_over:
            # It can't be ended, so what was within reach is less: decide anew, without it.
            return allot(table, wish, usable, host, exclusive=exclusive)
    if unseen:
        raise UnseenError(unseen)
    for elder in elders:
        elder.overtaken += not elder.named or not chosen.isdisjoint(elder.named)
    if not exclusive:
        _sweep(table, wish, host)
    return [name for name in usable if name in chosen]


def _idle(
    table: Table,
    wish: Waiter,
    elders: list[Waiter],
    usable: list[str],
    host: Facts,
    *,
    exclusive: bool,
) -> list[str]:
    """The holders that use their devices no more, as many as may have to make room.

    Where anybody who waits names devices, or shares them, all are looked at.
    """
    needed = wish.count + sum(elder.count for elder in elders)
    if not exclusive or wish.named or any(waiter.named for waiter in table.waiters):
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


def _choice(table: Table, wish: Waiter, devices: list[str], idle: list[str]) -> set[str]:
    """The best of `devices` for who names none.

    Those first that nobody waits for by name; of these, those for which no container must end.
    """
    wanted = {name for waiter in table.waiters for name in waiter.named}
    ends = {gpu: place for place, name in enumerate(idle, 1) for gpu in table.holders[name].gpus}
    devices.sort(key=lambda device: (device in wanted, ends.get(device, 0)))
    return {*devices[: wish.count]}


def blocker(
    table: Table, container: str, devices: list[str], host: Facts, *, exclusive: bool
) -> str:
    """The id of another container that uses one of `devices` and does not share it, or empty."""
    for name in table.blocking(devices, exclusive=exclusive):
        if name != container and not _is_idle(table, name, host):
            return name
    return ""


def evict(
    table: Table, container: str, devices: list[str], host: Facts, *, exclusive: bool
) -> str:
    """End whoever has one of `devices`, unused, in a way that `container` can't share.

    Returns:
        The id of a container that has one of them still; empty if they can be taken.
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
    """Whether those who wait are due what is free so that they could not do without `devices`.

    Args:
        table: changed where holders and waiters are gone.
        container: who wants `devices`; what it has itself counts as free.
        devices: ids of devices that nobody else uses.
        usable: the ids of all devices that may be handed out.
        host: is asked for every holder and waiter, if there are any who wait.
        exclusive: whether those who wait want theirs alone.
    """
    nobody = Waiter(container, (0, 0), 0, 0)
    waiters = _elders(table, nobody, host)
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
    """End a holder that uses its devices no more, and its container with it; whether it is over.

    All of the container goes, its first process too, which a pipeline can own: an open device
    outlives every rule that forbids to open it.

    Args:
        table: where it is.
        name: its name.
        host: what processes there are.
        force: whether one that uses its devices ends too.

    Raises:
        UnseenError: it must be looked at first who else has them open.
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
    """Whether no other one is about to have a holder's devices, and no look speaks against it."""
    return not is_handed_over(holder, host) and not host.looked.get(name)


def _is_idle(table: Table, name: str, host: Facts) -> bool:
    """Whether a holder uses its devices no more, and can be ended as far as is known."""
    holder = table.holders[name]
    if not _can_be_taken(name, holder, host):
        return False
    if holder.stuck:
        return release(table, name, host)
    return not host.in_use(name, holder)


def _elders(table: Table, wish: Waiter, host: Facts) -> list[Waiter]:
    """Those who wait for longer than `wish`; the dead among them are removed."""
    elders: list[Waiter] = []
    for waiter in [*table.waiters]:
        if waiter.call == wish.call:
            break
        if host.alive(waiter.call):
            elders.append(waiter)
        else:
            table.waiters.remove(waiter)
    return elders


def _sweep(table: Table, wish: Waiter, host: Facts) -> None:
    """Remove a few holders that are gone: who shares ends nobody, so they would pile up."""
    names = [*table.holders]
    # Any few will do, but not always the same: the process id changes from call to call.
    first = wish.call[0] % len(names) if names else 0
    for name in [*names[first:], *names[:first]][:_SWEPT]:
        if host.is_gone(name, table.holders[name]):
            del table.holders[name]
