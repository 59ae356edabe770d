# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The table of leases: those who hold devices, and those who wait for some."""

from __future__ import annotations

from gpu_runtime.json_shape import items, table, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

Call = tuple[int, int]
"""A process: its id, and its start in clock ticks since boot, so that no other one is meant."""

STEP = "step"
"""A container of Concourse's, in which steps run."""
CONTAINER = "container"
"""A container of an engine, such as podman or Docker."""
JOB = "job"
"""The control group of a systemd unit."""
KINDS = (STEP, CONTAINER, JOB)
NOUNS = {STEP: "task", CONTAINER: "container", JOB: "job"}
"""What each kind is called towards whoever asks for it."""

_LONGEST_WHO = 80  # characters


class Holder:
    """Who has devices; its name is the key under which a Table has it.

    That is a container's id, or the full name of a job's unit.

    Attributes:
        kind: one of KINDS; it says how its use of the devices ends, see holder_usage.Host.
        who: it in the words of its engine, for people; others wrote it. Empty: its name says it.
        bundle: the folder of its OCI bundle; empty for a job.
        pid_file: path of the file in which its runtime notes the id of its first process; empty:
            init.pid in its bundle, as containerd has it.
        gpus: the ids of its devices.
        exclusive: whether nobody else may have them meanwhile.
        since: when it got them, in seconds since boot.
        waited: for how long it had waited for them, in seconds; None: nobody noted that.
        cgroup: its control group as /proc/<pid>/cgroup shows it: from its spec, and from its first
            process as soon as that is there; empty where neither tells.
        unified: the same in v2's hierarchy, as its first process told it; see gpu_runtime.cgroups.
        nodes: paths of the device nodes that nobody but its holder has.
        execs: whether a process was started in it, or was seen in a job; from then on such
            processes are its use.
        calls: the runtime's calls that start it or a process in it.
        keeper: the process that reserved the devices for it, and while it lives keeps them.
        session_limit: for how long sessions keep the devices after the step, in seconds; 0: for as
            long as they last.
        step_ended: when its step was first seen to be over with sessions left, in seconds since
            boot; 0: it was not.
        stuck: whether it uses its devices no more, but has processes that can't be killed.
        handing: the process that looks whether anybody else has its devices open, now that it has
            ended, and when that began, in seconds since boot; None: nobody does.
    """

    __slots__ = (
        "bundle", "calls", "cgroup", "exclusive", "execs", "gpus", "handing", "keeper", "kind",
        "nodes", "pid_file", "session_limit", "since", "step_ended", "stuck", "unified", "waited",
        "who",
    )  # fmt: skip

    def __init__(
        self, bundle: str, gpus: list[str], calls: list[Call], *, exclusive: bool, since: float
    ) -> None:
        self.kind = STEP
        self.who = ""
        self.bundle = bundle
        self.pid_file = ""
        self.gpus = gpus
        self.exclusive = exclusive
        self.since = since
        self.waited: float | None = None
        self.cgroup = ""
        self.unified = ""
        self.nodes: list[str] = []
        self.execs = False
        self.calls = calls
        self.keeper: Call | None = None
        self.session_limit = 0
        self.step_ended = 0.0
        self.stuck = False
        self.handing: tuple[Call, float] | None = None

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
            holder.unified = found.get("unified", "")
            holder.session_limit = found.get("session_limit", 0)
            holder.step_ended = found.get("step_ended", 0.0)
            holder.waited = found.get("waited")
            holder.kind = found.get("kind", STEP)
            holder.who = readable(found.get("who", ""))
            holder.pid_file = found.get("pid_file", "")
            keeper, handing = found.get("keeper"), found.get("handing")
            holder.keeper = None if keeper is None else _call(keeper)
            if handing is not None:
                call, begun = handing
                holder.handing = _call(call), begun
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{found!r} is no holder") from error
        if not holder._is_sound(container, found):
            raise ValueError(f"{found!r} is no holder called {container}")
        return holder

    def _is_sound(self, container: str, found: dict[str, Any]) -> bool:
        """Whether it has the shape of a holder of that name; the hints above are no proof."""
        lists = items(found["gpus"]) == self.gpus and items(found.get("nodes", [])) == self.nodes
        whole: list[object] = [number for call in self.calls for number in call]
        times: list[object] = [self.since, self.step_ended, self.session_limit]
        times += [] if self.waited is None else [self.waited]
        times += [self.handing[1]] if self.handing else []
        return (
            lists
            and bool(self.gpus)
            and self.kind in KINDS
            and _all_are(str, [self.bundle, self.pid_file, *self.gpus, *self.nodes])
            and _all_are(str, [self.cgroup, self.unified])
            and _all_are(int, whole)
            and _all_are(int | float, times)
            and all(names_container(one, container) for one in (self.cgroup, self.unified) if one)
        )

    def as_json(self) -> dict[str, object]:
        """It as JSON."""
        return {
            "kind": self.kind,
            "who": self.who,
            "bundle": self.bundle,
            "pid_file": self.pid_file,
            "gpus": self.gpus,
            "exclusive": self.exclusive,
            "since": self.since,
            "cgroup": self.cgroup,
            "unified": self.unified,
            "nodes": self.nodes,
            "execs": self.execs,
            "calls": [[*call] for call in self.calls],
            "keeper": self.keeper and [*self.keeper],
            "session_limit": self.session_limit,
            "step_ended": self.step_ended,
            "stuck": self.stuck,
            "waited": self.waited,
            "handing": self.handing and [[*self.handing[0]], self.handing[1]],
        }


class Waiter:
    """A process that waits for devices.

    Attributes:
        container: the name of the holder that is to get them.
        who: it in the words of its engine, as a Holder has it.
        call: the process that waits.
        count: how many it needs.
        named: the ids of the very devices that it needs; empty: any.
        since: since when, in seconds since boot.
        overtaken: how often one that came later was served before it.
    """

    __slots__ = ("call", "container", "count", "named", "overtaken", "since", "who")

    def __init__(self, container: str, call: Call, count: int, since: float) -> None:
        self.container = container
        self.who = ""
        self.call = call
        self.count = count
        self.named: list[str] = []
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
        named = [text(name) for name in items(found.get("named"))]
        sound = "named" not in found or named == found["named"]
        if not (sound and _all_are(int, [count, overtaken]) and isinstance(since, int | float)):
            raise ValueError(f"{found!r} is no waiter")
        waiter = cls(text(found.get("container")), _call(found.get("call")), 0, since)
        waiter.count, waiter.overtaken = _number(count), _number(overtaken)
        waiter.named, waiter.who = named, readable(text(found.get("who")))
        return waiter

    def as_json(self) -> dict[str, object]:
        """It as JSON."""
        return {
            "container": self.container,
            "who": self.who,
            "call": [*self.call],
            "count": self.count,
            "named": self.named,
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
    """Whether a control group is that of a container or a unit, by its last part.

    That is runc's own name for it, that of its systemd driver, or podman's (the last one where it
    is in a unit's group, as Quadlet has it). The one of podman's monitor
    (`libpod-conmon-<id>.scope`) is none: the runtime itself is called from there.
    """
    last = cgroup.rpartition("/")[2]
    if last in {
        container,
        f"{container}.scope",
        f"libpod-{container}",
        f"libpod-payload-{container}",
    }:
        return True
    return last.endswith(f"-{container}.scope") and not last.startswith("libpod-conmon-")


def readable(who: str) -> str:
    """What others say of themselves, as people may be shown it: one line, and not a long one."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in who[: _LONGEST_WHO + 1])
    return shown if len(shown) <= _LONGEST_WHO else f"{shown[: _LONGEST_WHO - 1]}…"


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
