# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The table of leases: those who hold devices, and those who wait for some."""

from __future__ import annotations

from gpuci.shapes import items, table, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

Call = tuple[int, int]
"""A process: its id, and its start in clock ticks since boot, so that no other one is meant."""


class Holder:
    """A container with devices; its id is the key under which a Table has it.

    Attributes:
        bundle: the folder of its OCI bundle.
        gpus: the ids of its devices.
        exclusive: whether nobody else may have them meanwhile.
        since: when it got them, in seconds since boot.
        waited: for how long it had waited for them, in seconds; None: nobody noted that.
        cgroup: its control group as /proc/<pid>/cgroup shows it: from its spec, and from its first
            process as soon as that is there; empty where neither tells.
        nodes: paths of the device nodes that nobody but its holder has.
        execs: whether a process was started in it; from then on such processes are its use.
        calls: the runtime's calls that start it or a process in it.
        keeper: the process that reserved the devices for it, and while it lives keeps them.
        session_limit: for how long sessions keep the devices after the step, in seconds; 0: for as
            long as they last.
        step_ended: when its step was first seen to be over with sessions left, in seconds since
            boot; 0: it was not.
        stuck: whether it uses its devices no more, but has processes that can't be killed.
    """

    __slots__ = (
        "bundle", "calls", "cgroup", "exclusive", "execs", "gpus", "keeper", "nodes",
        "session_limit", "since", "step_ended", "stuck", "waited",
    )  # fmt: skip

    def __init__(
        self, bundle: str, gpus: list[str], calls: list[Call], *, exclusive: bool, since: float
    ) -> None:
        self.bundle = bundle
        self.gpus = gpus
        self.exclusive = exclusive
        self.since = since
        self.waited: float | None = None
        self.cgroup = ""
        self.nodes: list[str] = []
        self.execs = False
        self.calls = calls
        self.keeper: Call | None = None
        self.session_limit = 0
        self.step_ended = 0.0
        self.stuck = False

    @classmethod
    def parse(cls, container: str, found: dict[str, Any]) -> Holder:
        """The holder that `as_json` told of.

        Raises:
            ValueError: it is none, or its control group is not that of `container`.
        """
        try:
            # A release before this one said `alone`, and less; its holders may live still.
            exclusive = found["exclusive"] if "exclusive" in found else found["alone"]
            gpus, since = found["gpus"], found["since"]
            calls = [(pid, started) for pid, started in found["calls"]]
            holder = cls(found["bundle"], gpus, calls, exclusive=exclusive, since=since)
            holder.execs, holder.stuck = found["execs"], found["stuck"]
            holder.cgroup, holder.nodes = found["cgroup"], found.get("nodes", [])
            holder.session_limit = found.get("session_limit", 0)
            holder.step_ended = found.get("step_ended", 0.0)
            holder.waited = found.get("waited")
            keeper = found.get("keeper")
            holder.keeper = None if keeper is None else _call(keeper)
            texts: list[object] = [holder.bundle, holder.cgroup, *gpus, *holder.nodes]
            sound = (
                gpus and isinstance(gpus, list) and items(found.get("nodes", [])) == holder.nodes
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{found!r} is no holder") from error
        whole: list[object] = [number for call in calls for number in call]
        times: list[object] = [since, holder.step_ended, holder.session_limit]
        times += [] if holder.waited is None else [holder.waited]
        if not (
            sound
            and _all_are(str, texts)
            and _all_are(int, whole)
            and _all_are(int | float, times)
            and (not holder.cgroup or names_container(holder.cgroup, container))
        ):
            raise ValueError(f"{found!r} is no holder called {container}")
        return holder

    def as_json(self) -> dict[str, object]:
        """It as JSON."""
        return {
            "bundle": self.bundle,
            "gpus": self.gpus,
            "exclusive": self.exclusive,
            "since": self.since,
            "cgroup": self.cgroup,
            "nodes": self.nodes,
            "execs": self.execs,
            "calls": [[*call] for call in self.calls],
            "keeper": self.keeper and [*self.keeper],
            "session_limit": self.session_limit,
            "step_ended": self.step_ended,
            "stuck": self.stuck,
            "waited": self.waited,
        }


class Waiter:
    """A call of the runtime that waits for devices.

    Attributes:
        container: the container that is to get them.
        call: the process that waits.
        count: how many it needs.
        since: since when, in seconds since boot.
        overtaken: how often one that came later was served before it.
    """

    __slots__ = ("call", "container", "count", "overtaken", "since")

    def __init__(self, container: str, call: Call, count: int, since: float) -> None:
        self.container = container
        self.call = call
        self.count = count
        self.since = since
        self.overtaken = 0

    @classmethod
    def parse(cls, found: dict[str, object]) -> Waiter:
        """The waiter that `as_json` told of.

        Raises:
            ValueError: it is none.
        """
        count, since = found.get("count"), found.get("since")
        overtaken = found.get("overtaken", 0)
        if not (_all_are(int, [count, overtaken]) and isinstance(since, int | float)):
            raise ValueError(f"{found!r} is no waiter")
        waiter = cls(text(found.get("container")), _call(found.get("call")), 0, since)
        waiter.count, waiter.overtaken = _number(count), _number(overtaken)
        return waiter

    def as_json(self) -> dict[str, object]:
        """It as JSON."""
        return {
            "container": self.container,
            "call": [*self.call],
            "count": self.count,
            "since": self.since,
            "overtaken": self.overtaken,
        }


class Table:
    """All holders and all who wait, the oldest first."""

    __slots__ = ("holders", "waiters")

    def __init__(self, found: dict[str, object]) -> None:
        """Take apart what `as_json` told of; an empty object is the empty table.

        Raises:
            ValueError: it is no table.
        """
        holders, waiters = table(found.get("holders")), items(found.get("waiters"))
        if found.get("holders", {}) != holders or found.get("waiters", []) != waiters:
            raise ValueError("it is no table of holders and waiters")
        self.holders = {name: Holder.parse(name, table(entry)) for name, entry in holders.items()}
        self.waiters = [Waiter.parse(table(entry)) for entry in waiters]

    def as_json(self) -> dict[str, object]:
        """It as JSON."""
        return {
            "holders": {name: holder.as_json() for name, holder in self.holders.items()},
            "waiters": [waiter.as_json() for waiter in self.waiters],
        }

    def blocking(self, devices: list[str], *, exclusive: bool) -> list[str]:
        """The holders of any of `devices`; those that share theirs only if `exclusive`."""
        wanted = {*devices}
        return [
            name
            for name, holder in self.holders.items()
            if (exclusive or holder.exclusive) and not wanted.isdisjoint(holder.gpus)
        ]

    def free(
        self, devices: list[str], *, exclusive: bool, without: Collection[str] = ()
    ) -> list[str]:
        """Those of `devices` that nobody blocks, the holders `without` left aside."""
        blocked = {
            gpu
            for name in self.blocking(devices, exclusive=exclusive)
            if name not in without
            for gpu in self.holders[name].gpus
        }
        return [device for device in devices if device not in blocked]


def names_container(cgroup: str, container: str) -> bool:
    """Whether a control group is that of a container, by its last part.

    That is runc's own name for it, or that of its systemd driver.
    """
    last = cgroup.rpartition("/")[2]
    return last == container or last.endswith(f"-{container}.scope")


def _all_are(kind: Any, values: list[object]) -> bool:
    return all(isinstance(value, kind) for value in values)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _call(found: object) -> Call:
    pair = items(found)
    pid, started = pair if len(pair) == 2 else (None, None)
    if not isinstance(pid, int) or not isinstance(started, int):
        raise ValueError(f"{found!r} is no process")
    return pid, started
