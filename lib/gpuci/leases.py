# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Who holds which devices, who waits for some, and who is next. Pure: it asks a host for facts.

A lease lives as long as its devices are in use (see usage.Host), which nobody announces: whoever
wants devices looks at the holders, and takes from those that use theirs no more. Of those who
wait, the oldest whose wish fits into what is free is served first.
"""

from __future__ import annotations

from gpuci.shapes import items, table, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Facts(Protocol):
        """What can be found out about a machine's processes; usage.Host is the real one."""

        def alive(self, call: Call) -> bool:
            """Whether that very process lives."""
            ...

        def in_use(self, container: str, holder: Holder) -> bool:
            """Whether the holder still uses its devices."""
            ...

        def clear(self, container: str, holder: Holder) -> bool:
            """Kill what is left of a holder that uses them no more; whether nothing is left."""
            ...


Call = tuple[int, int]
"""A process: its id, and its start in clock ticks since boot, so that no other one is meant."""


class Holder:
    """A container with devices; its id is the key under which a Table has it.

    Attributes:
        bundle: the folder of its OCI bundle.
        gpus: the ids of its devices.
        alone: whether nobody else may have them meanwhile.
        since: when it got them, in seconds since boot.
        execs: whether a process was started in it; from then on such processes are its use.
        calls: the runtime's calls that start it or a process in it.
        cgroup: its control group as /proc/<pid>/cgroup shows it; empty before the first exec.
        stuck: whether it uses its devices no more, but has processes that can't be killed.
    """

    __slots__ = ("alone", "bundle", "calls", "cgroup", "execs", "gpus", "since", "stuck")

    def __init__(
        self, bundle: str, gpus: list[str], calls: list[Call], *, alone: bool, since: float
    ) -> None:
        self.bundle = bundle
        self.gpus = gpus
        self.alone = alone
        self.since = since
        self.execs = False
        self.calls = calls
        self.cgroup = ""
        self.stuck = False

    @classmethod
    def parse(cls, found: dict[str, Any]) -> Holder:
        """The holder that plain() told of.

        Raises:
            ValueError: it is none.
        """
        try:
            gpus, since = found["gpus"], found["since"]
            calls = [(pid, started) for pid, started in found["calls"]]
            holder = cls(found["bundle"], gpus, calls, alone=found["alone"], since=since)
            holder.execs, holder.stuck = found["execs"], found["stuck"]
            holder.cgroup = found["cgroup"]
            texts: list[object] = [holder.bundle, holder.cgroup, *gpus]
            sound = gpus and isinstance(gpus, list) and isinstance(since, int | float)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{found!r} is no holder") from error
        numbers: list[object] = [number for call in calls for number in call]
        if not (sound and _all_are(str, texts) and _all_are(int, numbers)):
            raise ValueError(f"{found!r} is no holder")
        return holder

    def plain(self) -> dict[str, object]:
        """It as JSON."""
        return {
            "bundle": self.bundle,
            "gpus": self.gpus,
            "alone": self.alone,
            "since": self.since,
            "execs": self.execs,
            "calls": [[*call] for call in self.calls],
            "cgroup": self.cgroup,
            "stuck": self.stuck,
        }


class Waiter:
    """A call of the runtime that waits for devices.

    Attributes:
        container: the container that is to get them.
        call: the process that waits.
        count: how many it needs.
        since: since when, in seconds since boot.
    """

    __slots__ = ("call", "container", "count", "since")

    def __init__(self, container: str, call: Call, count: int, since: float) -> None:
        self.container = container
        self.call = call
        self.count = count
        self.since = since

    @classmethod
    def parse(cls, found: dict[str, object]) -> Waiter:
        """The waiter that plain() told of.

        Raises:
            ValueError: it is none.
        """
        count, since = found.get("count"), found.get("since")
        if not isinstance(count, int) or not isinstance(since, int | float):
            raise ValueError(f"{found!r} is no waiter")
        return cls(text(found.get("container")), _call(found.get("call")), count, since)

    def plain(self) -> dict[str, object]:
        """It as JSON."""
        return {
            "container": self.container,
            "call": [*self.call],
            "count": self.count,
            "since": self.since,
        }


class Table:
    """All holders and all who wait, the oldest first."""

    __slots__ = ("holders", "waiters")

    def __init__(self, found: dict[str, object]) -> None:
        """Take apart what plain() told of; an empty object is the empty table.

        Raises:
            ValueError: it is no table.
        """
        holders, waiters = table(found.get("holders")), items(found.get("waiters"))
        if found.get("holders", {}) != holders or found.get("waiters", []) != waiters:
            raise ValueError("it is no table of holders and waiters")
        self.holders = {name: Holder.parse(table(entry)) for name, entry in holders.items()}
        self.waiters = [Waiter.parse(table(entry)) for entry in waiters]

    def plain(self) -> dict[str, object]:
        """It as JSON."""
        return {
            "holders": {name: holder.plain() for name, holder in self.holders.items()},
            "waiters": [waiter.plain() for waiter in self.waiters],
        }

    def free(self, devices: list[str], *, alone: bool) -> list[str]:
        """Those of `devices` that nobody has, or, unless `alone`, that nobody has alone."""
        taken = {
            gpu for holder in self.holders.values() if alone or holder.alone for gpu in holder.gpus
        }
        return [device for device in devices if device not in taken]


def take(leases: Table, wish: Waiter, usable: list[str], host: Facts, *, alone: bool) -> list[str]:
    """The devices that `wish` gets now, or none if it must wait. Holders found gone are removed.

    Args:
        leases: changed where holders and waiters are gone; the taking itself is the caller's.
        wish: it need not be among those who wait; then all of them came before it.
        usable: the ids of all devices that may be handed out, in order.
        host: is asked no more than needed.
        alone: whether nobody else may have them meanwhile; otherwise all that can be shared is
            taken, once there is enough of it.
    """
    unseen = _with_any(leases, usable) if alone else [*leases.holders]
    while True:
        free = leases.free(usable, alone=alone)
        if alone:
            due, more = _due_before(leases, wish, len(free), host)
            # Who else is gone may make room for somebody older, before whom this one can't be.
            if len(free) - due >= wish.count and not (more and unseen):
                return free[: wish.count]
        elif not unseen:
            return free if len(free) >= wish.count else []
        if not unseen:
            return []
        release_unused(leases, unseen.pop(0), host)


def take_these(
    leases: Table, container: str, devices: list[str], host: Facts, *, alone: bool
) -> str:
    """Make sure that nobody but `container` has `devices` in a way that forbids sharing them.

    Returns:
        The id of a container that has one of them; empty if they can be taken.
    """
    for name in _with_any(leases, devices):
        matters = name != container and (alone or leases.holders[name].alone)
        if matters and not release_unused(leases, name, host):
            return name
    return ""


def are_due(
    leases: Table,
    container: str,
    devices: list[str],
    usable: list[str],
    host: Facts,
    *,
    alone: bool = True,
) -> bool:
    """Whether those who wait would be served by what is free, but not without `devices`.

    Args:
        leases: changed where holders and waiters are gone.
        container: who wants `devices`; what it has itself counts as free.
        devices: ids of devices that nobody else has.
        usable: the ids of all devices that may be handed out.
        host: is asked for every holder and waiter, if there are any who wait.
        alone: whether those who wait want theirs alone.
    """
    if not leases.waiters:
        return False
    for name in [*leases.holders]:
        if name != container:
            release_unused(leases, name, host)
    free = {*leases.free(usable, alone=alone), *devices}
    nobody = Waiter(container, (0, 0), 0, 0)
    due, _ = _due_before(leases, nobody, len(free), host)
    return due > len(free) - len(devices)


def release_unused(leases: Table, name: str, host: Facts) -> bool:
    """Take the lease of a holder that uses its devices no more; whether it is gone."""
    holder = leases.holders[name]
    if host.in_use(name, holder):
        return False
    holder.stuck = not host.clear(name, holder)
    if not holder.stuck:
        del leases.holders[name]
    return not holder.stuck


def _due_before(leases: Table, wish: Waiter, free: int, host: Facts) -> tuple[int, bool]:
    """How many of `free` devices are due to older waiters, and whether those want more."""
    due, more = 0, False
    for waiter in [*leases.waiters]:
        if waiter.call == wish.call:
            break
        if not host.alive(waiter.call):
            leases.waiters.remove(waiter)
        elif waiter.count > free - due:
            more = True
        else:
            due += waiter.count
    return due, more


def _with_any(leases: Table, devices: list[str]) -> list[str]:
    """The holders of any of these devices."""
    wanted = set(devices)
    return [name for name, holder in leases.holders.items() if not wanted.isdisjoint(holder.gpus)]


def _all_are(kind: type, values: list[object]) -> bool:
    return all(isinstance(value, kind) for value in values)


def _call(found: object) -> Call:
    pair = items(found)
    pid, started = pair if len(pair) == 2 else (None, None)
    if not isinstance(pid, int) or not isinstance(started, int):
        raise ValueError(f"{found!r} is no process")
    return pid, started
