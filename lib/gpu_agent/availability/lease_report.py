# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The store of leases: what it says, to people and to programs; and a GPU taken back by hand."""

import collections.abc
import dataclasses
import json

from gpu_agent import paths as wrapper
from gpu_agent.availability import lease_messages as lease_words
from gpu_agent.model.leases import Lease
from gpu_agent.runtime import policy as runtime_policy
from gpu_runtime import decision_log as journal
from gpu_runtime import lease_scheduler as leases
from gpu_runtime import policy
from gpu_runtime import queue_messages as line
from gpu_runtime.decision_log import Decision
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import JOB, STEP, Holder, Table
from gpu_runtime.policy import SELF_TEST_CONTAINER
from gpu_runtime.refusal import Refused


class LeaseError(Exception):
    """What was asked about the leases can't be done; the text says why and what to do instead."""


def holders() -> dict[str, Lease] | None:
    """The lease of each container that has one; None where that can't be told."""
    host = Host()
    try:
        return {
            name: Lease(
                tuple(holder.gpus),
                host.in_use(name, holder)
                or host.has_leftovers(name, holder)
                or leases.is_handed_over(holder, host),
                holder.cgroup if holder.kind == JOB else "",
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
        allowed = runtime_policy.allowed()
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
    results |= {
        device.key: lease_words.of_device(device, seen.containers) for device in seen.devices
    }
    return results | {f"waiter-{place}": one.words for place, one in enumerate(seen.waiters, 1)}


def as_json() -> str:
    """The same for programs: JSON, an empty object where tasks get no GPU.

    Raises:
        LeaseError: the policy or the store can't be read.
    """
    seen = _look()
    return json.dumps(dataclasses.asdict(seen)) if seen else "{}"


def _look() -> lease_words.Seen | None:
    try:
        allowed = runtime_policy.allowed()
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
    return lease_words.Seen(
        "exclusive" if allowed.exclusive else "shared", devices, containers, waiters
    )


def _waiters(table: Table, free: list[str], host: Host) -> list[lease_words.Waiter]:
    """Those who wait, the oldest first; free GPUs can be kept for some of them."""
    now = host.now()
    living = [waiter for waiter in table.waiters if host.alive(waiter.call)]
    kept = {id(waiter): count for waiter, count in leases.divide(living, free, now).kept}
    return [
        lease_words.Waiter(
            waiter.container,
            waiter.who or f"container {waiter.container}",
            waiter.count,
            waiter.named,
            int(now - waiter.since),
            waiter.overtaken,
            kept.get(id(waiter), 0),
        )
        for waiter in living
    ]


def _container(name: str, holder: Holder, host: Host) -> lease_words.Container:
    # A store that was made anew does not know since when.
    seconds = int(host.now() - holder.since) if holder.since else None
    in_use = host.in_use(name, holder)
    ours = name.startswith(SELF_TEST_CONTAINER)
    steps = ["self-test"] if ours else host.processes(name, holder)
    return lease_words.Container(
        kind=holder.kind,
        who=_who(name, holder),
        gpus=holder.gpus,
        steps=steps,
        in_use=in_use,
        handing_over=leases.is_handed_over(holder, host),
        stuck=holder.stuck and not in_use,
        seconds=seconds,
    )


def _who(name: str, holder: Holder) -> str:
    return f"container {name}" if holder.kind == STEP else line.who(name, holder)


def _devices(
    allowed: policy.Policy,
    cordoned: dict[str, str],
    containers: collections.abc.Mapping[str, lease_words.Container],
) -> list[lease_words.Device]:
    """Those of the policy in its order, then those that are held although it lacks them."""
    found: list[lease_words.Device] = []
    for key, device in by_key(allowed).items():
        of_device = _containers_with(device.id, containers)
        state = _state([containers[name] for name in of_device], shared=not allowed.exclusive)
        if device.id in cordoned:
            out = cordoned[device.id]
            # What somebody took out says so itself.
            out = out if out.startswith(("cordoned", "quarantined")) else f"cordoned: {out}"
            state = out if state == "free" else f"{state}, {out}"
        found.append(
            lease_words.Device(
                key, device.index, device.id, device.gpu, device.model, state, of_device
            )
        )
    known = {device.id for device in found}
    others = sorted(
        {gpu for each in containers.values() if each.in_use for gpu in each.gpus} - known
    )
    for number, name in enumerate(others):
        of_device = _containers_with(name, containers)
        found.append(
            lease_words.Device(
                f"other-{number}", None, name, "", "", "held outside policy", of_device
            )
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
    device: str, containers: collections.abc.Mapping[str, lease_words.Container]
) -> list[str]:
    return [name for name, each in containers.items() if device in each.gpus]


def _state(containers: list[lease_words.Container], *, shared: bool) -> str:
    users = sum(each.in_use or each.stuck for each in containers)
    if not users:
        return "handing over" if any(each.handing_over for each in containers) else "free"
    return f"shared by {users}" if shared or users > 1 else "leased"


def words(name: str, holder: Holder, host: Host) -> str:
    """Who has a lease, what runs in it, and how long it has had its GPUs."""
    return _container(name, holder, host).words


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
        allowed = runtime_policy.allowed()
        if allowed is None:
            raise LeaseError("Tasks get no GPU on this unit, so there is none to release")

        def take_back(table: Table) -> tuple[set[str], list[str]]:
            meant = _meant(wish, allowed, table)
            names = [
                name for name, holder in table.holders.items() if not meant.isdisjoint(holder.gpus)
            ]
            if not force:
                _check_unused(wish, {name: table.holders[name] for name in names}, host)
            whose.update((name, _who(name, table.holders[name])) for name in names)
            stuck = [
                _why_stuck(name, table.holders[name], host)
                for name in names
                if not _take_back(table, name, host, reason)
            ]
            return meant, stuck

        whose: dict[str, str] = {}
        meant, stuck = leases.decide(Store(str(wrapper.STORE)), host, take_back)
    except (OSError, ValueError, Refused) as error:
        raise LeaseError(str(error)) from error
    if stuck:
        raise LeaseError("; ".join(stuck))
    released = ", ".join(whose.values()) or "nobody held it"
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
    """What keeps a lease from its end, such as a process's state (proc(5))."""
    if why := host.looked.get(name):
        return f"{_who(name, holder)} has ended, and its GPU can't be handed on: {why}"
    if leases.is_handed_over(holder, host):
        return f"{_who(name, holder)} has ended, and its GPU goes to another one now"
    states = host.state(name, holder)
    if "D" in states:
        why = "they hang in the kernel, as in a GPU's driver; see `sudo dmesg`"
    elif "t" in states.lower():
        why = "they are stopped or traced, perhaps by each other"
    else:
        why = "others come as fast"
    return f"Processes of {_who(name, holder)} can't be killed: {why}; a reboot ends them"


def _check_unused(wish: str, tenants: collections.abc.Mapping[str, Holder], host: Host) -> None:
    used = [
        words(name, holder, host) for name, holder in tenants.items() if host.in_use(name, holder)
    ]
    if used:
        end = "abort the build" if {one.kind for one in tenants.values()} == {STEP} else "end it"
        raise LeaseError(
            f"GPU {wish} is in use by {', '.join(used)}: wait, {end}, or use "
            "force=true, which kills what runs there"
        )


def _take_back(table: Table, name: str, host: Host, reason: str) -> bool:
    """End a holder's container as a whole and its lease with it; whether that worked."""
    holder = table.holders[name]
    if not leases.release(table, name, host, force=True):
        return False
    journal.intruders(str(wrapper.LOG), host.intruders, holder.gpus)
    decision = Decision(name)
    decision.kind = "gpu-release"
    decision.reason = f"{', '.join(holder.gpus)}: {reason}"
    decision.write(str(wrapper.LOG))
    return True
