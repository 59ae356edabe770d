# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The store of leases: what it says, to people and to programs; and a GPU taken back by hand."""

import collections.abc
import dataclasses
import json
import re

from gpuci import journal, leases, policy
from gpuci.journal import Decision
from gpuci.policy import SELF_TEST_CONTAINER
from gpuci.refuse import Refused, duration
from gpuci.store import Store
from gpuci.table import Holder, Table
from gpuci.usage import Host
from oci import wrapper
from plan.state import Lease

# Of the many that may share a GPU, so many are named to people.
_NAMED = 3
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class LeaseError(Exception):
    """What was asked about the leases can't be done; the text says why and what to do instead."""


@dataclasses.dataclass(frozen=True)
class _Container:
    """One container with a lease.

    Attributes:
        gpus: ids of its devices.
        steps: exec ids of what runs in it: `task`, or a UUID for a hijacked session; `self-test`
            for the worker's own.
        in_use: whether it uses its GPUs; if not, the next task takes them from it.
        stuck: whether that was tried, but what it left can't be killed.
        seconds: how long it has had them; None if that is not known.
    """

    gpus: list[str]
    steps: list[str]
    in_use: bool
    stuck: bool
    seconds: int | None

    @property
    def words(self) -> str:
        """What runs in it and since when."""
        steps = ["hijacked session" if _UUID.fullmatch(step) else step for step in self.steps]
        if not self.in_use:
            steps = ["ended, but can't be killed" if self.stuck else "no longer used"]
        age = [] if self.seconds is None else [duration(self.seconds)]
        return ", ".join([" and ".join(dict.fromkeys(steps)) or "starting", *age])


@dataclasses.dataclass(frozen=True)
class _Device:
    """One GPU or MIG device, under the key that people know it by, such as `gpu-0`.

    One that is held although no task may get it any more has no index.
    """

    key: str
    index: int | None
    id: str
    gpu: str
    model: str
    state: str
    containers: list[str]


@dataclasses.dataclass(frozen=True)
class _Waiter:
    """A container that waits for GPUs: how many, and for how long it has.

    Attributes:
        overtaken: how many that came later were served before it.
        kept: how many free GPUs are kept for it, since it has been passed over for long enough.
    """

    container: str
    count: int
    seconds: int
    overtaken: int
    kept: int

    @property
    def words(self) -> str:
        """It for people."""
        text = f"container {self.container}, asks for {self.count}, for {duration(self.seconds)}"
        return f"{text}, {self.kept} kept for it" if self.kept else text


@dataclasses.dataclass(frozen=True)
class _Seen:
    """All leases at one moment."""

    allocation: str
    devices: list[_Device]
    containers: dict[str, _Container]
    waiters: list[_Waiter]


def holders() -> dict[str, Lease] | None:
    """The lease of each container that has one; None where that can't be told."""
    host = Host()
    try:
        return {
            name: Lease(
                tuple(holder.gpus),
                host.in_use(name, holder) or host.has_leftovers(name, holder),
            )
            for name, holder in Store(str(wrapper.STORE)).read().holders.items()
        }
    except (OSError, ValueError, Refused):
        return None


def for_tasks() -> tuple[frozenset[str], dict[str, str]]:
    """The UUIDs of the GPUs that tasks may get now, and of those that are out, each with why.

    Raises:
        LeaseError: that can't be read.
    """
    try:
        allowed = wrapper.allowed()
        reasons = allowed.cordoned() if allowed else {}
    except (OSError, Refused) as error:
        raise LeaseError(str(error)) from error
    devices = allowed.devices if allowed else []
    out = {device.gpu: reasons[device.id] for device in devices if device.id in reasons}
    return frozenset(device.gpu for device in devices) - out.keys(), out


def report() -> dict[str, str]:
    """Who has which GPU and who waits, for people: the flat results of an action.

    Raises:
        LeaseError: the policy or the store can't be read.
    """
    seen = _look()
    if seen is None:
        return {"state": "off: tasks get no GPU on this unit"}
    free = sum(device.state == "free" for device in seen.devices)
    count = sum(device.index is not None for device in seen.devices)
    results = {
        "allocation": seen.allocation,
        "free": f"{free} of {count}",
        "waiting": str(len(seen.waiters)) if seen.waiters else "nobody",
    }
    results |= {device.key: _device_words(device, seen.containers) for device in seen.devices}
    return results | {f"waiter-{place}": one.words for place, one in enumerate(seen.waiters, 1)}


def as_json() -> str:
    """The same for programs: JSON, an empty object where tasks get no GPU.

    Raises:
        LeaseError: the policy or the store can't be read.
    """
    seen = _look()
    return json.dumps(dataclasses.asdict(seen)) if seen else "{}"


def _look() -> _Seen | None:
    try:
        allowed = wrapper.allowed()
        if allowed is None:
            return None
        table, host = Store(str(wrapper.STORE)).read(), Host()
        holders = table.holders.items()
        containers = {name: _container(name, holder, host) for name, holder in holders}
        devices = _devices(allowed, allowed.cordoned(), containers)
    except (OSError, ValueError, Refused) as error:
        raise LeaseError(str(error)) from error
    free = [device.id for device in devices if device.state == "free"]
    waiters = _waiters(table, free, host)
    return _Seen("exclusive" if allowed.exclusive else "shared", devices, containers, waiters)


def _waiters(table: Table, free: list[str], host: Host) -> list[_Waiter]:
    """Those who wait, the oldest first; free GPUs can be kept for some of them."""
    now = host.now()
    living = [waiter for waiter in table.waiters if host.alive(waiter.call)]
    kept = {id(waiter): count for waiter, count in leases.divide(living, free, now).kept}
    return [
        _Waiter(
            waiter.container,
            waiter.count,
            int(now - waiter.since),
            waiter.overtaken,
            kept.get(id(waiter), 0),
        )
        for waiter in living
    ]


def _container(name: str, holder: Holder, host: Host) -> _Container:
    # A store that was made anew does not know since when.
    seconds = int(host.now() - holder.since) if holder.since else None
    in_use = host.in_use(name, holder)
    ours = name.startswith(SELF_TEST_CONTAINER)
    steps = ["self-test"] if ours else host.processes(name, holder)
    return _Container(holder.gpus, steps, in_use, holder.stuck and not in_use, seconds)


def _devices(
    allowed: policy.Policy,
    cordoned: dict[str, str],
    containers: collections.abc.Mapping[str, _Container],
) -> list[_Device]:
    """Those of the policy in its order, then those that are held although it lacks them."""
    found: list[_Device] = []
    for key, device in by_key(allowed).items():
        of_device = _containers_with(device.id, containers)
        state = _state([containers[name] for name in of_device], shared=not allowed.exclusive)
        if device.id in cordoned:
            out = cordoned[device.id]
            # What somebody took out says so itself.
            out = out if out.startswith(("cordoned", "quarantined")) else f"cordoned: {out}"
            state = out if state == "free" else f"{state}, {out}"
        found.append(
            _Device(key, device.index, device.id, device.gpu, device.model, state, of_device)
        )
    known = {device.id for device in found}
    others = sorted(
        {gpu for each in containers.values() if each.in_use for gpu in each.gpus} - known
    )
    for number, name in enumerate(others):
        of_device = _containers_with(name, containers)
        found.append(
            _Device(f"other-{number}", None, name, "", "", "held outside policy", of_device)
        )
    return found


def by_key(allowed: policy.Policy) -> dict[str, policy.Device]:
    """The devices under the names that people have for them: `gpu-0`, `gpu-1-mig-0`."""
    found: dict[str, policy.Device] = {}
    for device in allowed.devices:
        key = f"gpu-{device.index}"
        if device.id != device.gpu:
            key += f"-mig-{sum(other.gpu == device.gpu for other in found.values())}"
        found[key] = device
    return found


def _containers_with(
    device: str, containers: collections.abc.Mapping[str, _Container]
) -> list[str]:
    return [name for name, each in containers.items() if device in each.gpus]


def _state(containers: list[_Container], *, shared: bool) -> str:
    users = sum(each.in_use or each.stuck for each in containers)
    if not users:
        return "free"
    return f"shared by {users}" if shared or users > 1 else "leased"


def _device_words(device: _Device, containers: collections.abc.Mapping[str, _Container]) -> str:
    words = [device.state, device.model.removeprefix("NVIDIA "), device.id]
    words += [
        f"container {name} ({containers[name].words})" for name in device.containers[:_NAMED]
    ]
    if device.containers[_NAMED:]:
        words.append(f"{len(device.containers) - _NAMED} more")
    return ", ".join(word for word in words if word)


def words(name: str, holder: Holder, host: Host) -> str:
    """A container with a lease, what runs in it, and how long it has had its GPUs."""
    return f"container {name} ({_container(name, holder, host).words})"


def one_line(reason: str) -> str:
    """An operator's reason without the blanks around it.

    Raises:
        LeaseError: it is empty, or more than a line.
    """
    if not reason.strip() or not reason.isprintable():
        raise LeaseError("reason must be one line of printable text")
    return reason.strip()


def release(wish: str, reason: str, *, force: bool) -> dict[str, str]:
    """Take a GPU, or all MIG devices of one, back from the containers that hold it.

    A container ends as a whole, so one that holds several loses all.

    Args:
        wish: the GPU's index or UUID, a MIG device's UUID, or the report's key such as `gpu-1`.
        reason: why, for the operators' log.
        force: also from containers that use it; their steps fail.

    Raises:
        LeaseError: it is no GPU that tasks get here, it is in use and `force` is not set, or
            what uses it can't be killed.
    """
    wish, reason, host = wish.strip(), one_line(reason), Host()
    try:
        allowed = wrapper.allowed()
        if allowed is None:
            raise LeaseError("Tasks get no GPU on this unit, so there is none to release")
        with Store(str(wrapper.STORE)) as table:
            meant = _meant(wish, allowed, table)
            names = [
                name for name, holder in table.holders.items() if not meant.isdisjoint(holder.gpus)
            ]
            if not force:
                _check_unused(wish, {name: table.holders[name] for name in names}, host)
            stuck = [
                _why_stuck(name, table.holders[name], host)
                for name in names
                if not _take_back(table, name, host, reason)
            ]
    except (OSError, ValueError, Refused) as error:
        raise LeaseError(str(error)) from error
    if stuck:
        raise LeaseError("; ".join(stuck))
    released = f"container {', '.join(names)}" if names else "nobody held it"
    return {"gpu": ", ".join(sorted(meant)), "released": released}


def _meant(wish: str, allowed: policy.Policy, table: Table) -> set[str]:
    """Ids of the devices that an operator means."""
    known = {device.id for device in allowed.devices}
    held = {gpu for holder in table.holders.values() for gpu in holder.gpus}
    asked, keys = wish.lower(), by_key(allowed)
    meant = {
        device.id
        for key, device in keys.items()
        if asked
        in (key, f"gpu-{device.index}", str(device.index), device.gpu.lower(), device.id.lower())
    } | {gpu for gpu in held - known if gpu.lower() == asked}
    if not meant:
        there = [f"{key} ({device.id})" for key, device in keys.items()]
        raise LeaseError(
            f"No GPU is {wish!r} here; there is {', '.join([*there, *sorted(held - known)])}"
        )
    return meant


def _why_stuck(name: str, holder: Holder, host: Host) -> str:
    """What keeps a container's processes from dying (proc(5): the states of a process)."""
    states = host.state(name, holder)
    if "D" in states:
        why = "they hang in the kernel, as in a GPU's driver; see `sudo dmesg`"
    elif "t" in states.lower():
        why = "they are stopped or traced, perhaps by each other"
    else:
        why = "others come as fast"
    return f"Processes of container {name} can't be killed: {why}; a reboot ends them"


def _check_unused(wish: str, tenants: collections.abc.Mapping[str, Holder], host: Host) -> None:
    used = [
        words(name, holder, host) for name, holder in tenants.items() if host.in_use(name, holder)
    ]
    if used:
        raise LeaseError(
            f"GPU {wish} is in use by {', '.join(used)}: wait, abort the build, or use "
            "force=true, which kills what runs there"
        )


def _take_back(table: Table, name: str, host: Host, reason: str) -> bool:
    """End a holder's container as a whole and its lease with it; whether that worked."""
    holder = table.holders[name]
    ended = host.clear(name, holder)
    journal.intruders(str(wrapper.LOG), host.intruders, holder.gpus)
    if not ended:
        return False
    del table.holders[name]
    decision = Decision(name)
    decision.kind = "gpu-release"
    decision.reason = f"{', '.join(holder.gpus)}: {reason}"
    decision.write(str(wrapper.LOG))
    return True
