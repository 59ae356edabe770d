# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The table of leases: the holders of devices, and the waiting requests."""

from __future__ import annotations

from gpu_runtime.json_shape import items, table, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

Call = tuple[int, int]
"""A process: its id, and its start in clock ticks since boot, which makes it unique."""

STEP = "step"
"""A container of the CI system's, in which steps run."""
CONTAINER = "container"
"""A container of an engine, such as podman or Docker."""
JOB = "job"
"""The control group of a gpu-run command, which is a systemd unit."""
RUNNER = "runner"
"""The control group of a CI service's runner, which is a systemd unit and has one job."""
UNITS = (JOB, RUNNER)
"""The kinds whose holder is a systemd unit: any process in its control group counts as use."""
KINDS = (STEP, CONTAINER, *UNITS)
NOUNS = {STEP: "task", CONTAINER: "container", JOB: "gpu-run command", RUNNER: "runner"}
"""The name of each kind in messages to users."""

RUNNERS = "/gpucirunner.slice"
"""The control group of all runners; each has one below it, with the containers of its job."""
RUNNER_USERS = "gpu-ci-runner-"
"""Begins the names of runners' units, and so of the users that systemd makes for them."""

_LONGEST_WHO = 80  # characters
_IDLE_RUNNER = "idle runner "


class Holder:
    """A holder of devices; its name is its key in a Table.

    The name is a container's id, or the full name of a systemd unit.

    Attributes:
        kind: one of KINDS, which decides how its use of the devices ends; see holder_usage.Host.
        who: its name for people, from its engine and untrusted. Empty: its key is the name.
        bundle: the folder of its OCI bundle; empty for a unit.
        pid_file: the path of the file with the id of its first process, written by its runtime;
            empty: init.pid in its bundle, as containerd writes it.
        gpus: the ids of its devices.
        exclusive: whether no other holder may have them at the same time.
        since: when it got them, in seconds since boot.
        waited: how long it waited for them, in seconds; None: unknown.
        cgroup: its control group as /proc/<pid>/cgroup shows it: from its spec, and from its first
            process as soon as that exists; empty: unknown.
        unified: the same in v2's hierarchy, from its first process; see gpu_runtime.cgroups.
        nodes: the paths of the device nodes that only its holder has.
        execs: whether a process was started in it, or was seen in a unit. From then on such
            processes count as its use.
        calls: the runtime's calls that start it or a process in it.
        keeper: the process that reserved the devices for it, and keeps them while it lives.
        session_limit: how long sessions keep the devices after the step, in seconds; 0: as long as
            they last.
        step_ended: when its step was first seen to be over with sessions left, in seconds since
            boot; 0: not seen.
        stuck: whether it no longer uses its devices, but has processes that cannot be killed.
        handing: the process that searches for other users of its devices after its end, and the
            start of the search, in seconds since boot; None: there is no search.
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
        """Read a holder that `as_json` wrote.

        Raises:
            ValueError: it is malformed, or its control group is not that of `container`.
        """
        try:
            # An earlier version wrote `alone`, and less. Its holders may still live.
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
            raise ValueError(f"{found!r} is not a holder") from error
        if not holder._is_sound(container, found):
            raise ValueError(f"{found!r} is not a holder called {container}")
        return holder

    def _is_sound(self, container: str, found: dict[str, Any]) -> bool:
        """Whether it has the types of a holder of that name; the annotations prove nothing."""
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
        """Return it as a JSON object."""
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
    """A request that waits for devices.

    Attributes:
        container: the name of the holder that will get them.
        who: its name for people, as in a Holder.
        call: the process that waits.
        count: the number of devices that it needs.
        named: the ids of particular devices; empty: any.
        since: when the wait began, in seconds since boot.
        overtaken: how often a younger request was served first.
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
        """Read a waiting request that `as_json` wrote.

        Raises:
            ValueError: it is malformed.
        """
        count, since = found.get("count"), found.get("since")
        overtaken = found.get("overtaken", 0)
        named = [text(name) for name in items(found.get("named"))]
        sound = "named" not in found or named == found["named"]
        if not (sound and _all_are(int, [count, overtaken]) and isinstance(since, int | float)):
            raise ValueError(f"{found!r} is not a waiting request")
        waiter = cls(text(found.get("container")), _call(found.get("call")), 0, since)
        waiter.count, waiter.overtaken = _number(count), _number(overtaken)
        waiter.named, waiter.who = named, readable(text(found.get("who")))
        return waiter

    def as_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
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
    """All holders and all waiting requests, the oldest first."""

    __slots__ = ("holders", "waiters")

    def __init__(self, found: dict[str, object]) -> None:
        """Read a table that `as_json` wrote; an empty object is the empty table.

        Raises:
            ValueError: it is malformed.
        """
        holders, waiters = table(found.get("holders")), items(found.get("waiters"))
        if found.get("holders", {}) != holders or found.get("waiters", []) != waiters:
            raise ValueError("it is not a table of holders and waiters")
        self.holders = {name: Holder.parse(name, table(entry)) for name, entry in holders.items()}
        self.waiters = [Waiter.parse(table(entry)) for entry in waiters]

    def as_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
        return {
            "holders": {name: holder.as_json() for name, holder in self.holders.items()},
            "waiters": [waiter.as_json() for waiter in self.waiters],
        }

    def blocking(self, devices: list[str], *, exclusive: bool) -> list[str]:
        """Return the holders of any of `devices`; holders that share only if `exclusive`."""
        wanted = {*devices}
        return [
            name
            for name, holder in self.holders.items()
            if (exclusive or holder.exclusive) and not wanted.isdisjoint(holder.gpus)
        ]

    def free(
        self, devices: list[str], *, exclusive: bool, without: Collection[str] = ()
    ) -> list[str]:
        """Return the `devices` that no holder blocks, except for the holders `without`."""
        blocked = {
            gpu
            for name in self.blocking(devices, exclusive=exclusive)
            if name not in without
            for gpu in self.holders[name].gpus
        }
        return [device for device in devices if device not in blocked]


def idle_runner(name: str) -> str:
    """Return whose GPUs those of a runner without a job are, for people and `gives_way`."""
    return f"{_IDLE_RUNNER}{name}"


def gives_way(holder: Holder) -> bool:
    """Whether a holder ends soon if another request waits: a runner without a job does."""
    return holder.kind == RUNNER and holder.who.startswith(_IDLE_RUNNER)


def names_container(cgroup: str, container: str) -> bool:
    """Whether a control group belongs to a container or a unit, by its last part.

    The last part is runc's own name, the name of its systemd driver, or podman's (the last one in
    a unit's group, as with Quadlet). The group of podman's monitor, `libpod-conmon-<id>.scope`,
    does not count: the runtime itself runs there.
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
    """Make one short printable line of a name that others chose."""
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
        raise ValueError(f"{found!r} is not a process")
    return pid, started
