# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Report the leases and the queue, to people and to programs; and reclaim a GPU."""

import collections.abc
import dataclasses
import json
import pathlib
import time

from gpu_agent import paths as wrapper
from gpu_agent.availability import lease_messages as messages
from gpu_agent.availability import quarantine
from gpu_agent.model.leases import Lease
from gpu_agent.runtime import policy as runtime_policy
from gpu_runtime import decision_log as journal
from gpu_runtime import lease_scheduler as leases
from gpu_runtime import policy, queue_messages
from gpu_runtime.decision_log import Decision
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import STEP, UNITS, Holder, Table
from gpu_runtime.policy import SELF_TEST_CONTAINER
from gpu_runtime.refusal import Refused
from gpu_runtime.unavailable import Unavailable


class LeaseError(Exception):
    """The leases cannot be read or changed as requested; the text says why and what to do."""


def holders() -> dict[str, Lease] | None:
    """Return the lease of each container that has one; None if the leases cannot be read."""
    host = Host()
    try:
        return {
            name: Lease(
                tuple(holder.gpus),
                host.in_use(name, holder)
                or host.has_leftovers(name, holder)
                or leases.is_handed_over(holder, host),
                holder.cgroup if holder.kind in UNITS else "",
            )
            for name, holder in Store(str(wrapper.STORE)).read().holders.items()
        }
    except (OSError, ValueError, Refused):
        return None


def for_tasks() -> tuple[frozenset[str], dict[str, str]]:
    """Return the UUIDs of the GPUs for tasks, and of the unavailable ones, each with the cause.

    Raises:
        LeaseError: the policy or the records of unavailable GPUs cannot be read.
    """
    try:
        allowed = runtime_policy.allowed()
        causes = allowed.unavailable() if allowed else {}
    except (OSError, Refused) as error:
        raise LeaseError(str(error)) from error
    devices = allowed.devices if allowed else []
    out = {device.gpu: causes[device.id].describe() for device in devices if device.id in causes}
    return frozenset(device.gpu for device in devices) - out.keys(), out


def report() -> dict[str, str]:
    """Return the holders of the GPUs, and the queue, as the results of an action for people.

    A GPU that is cordoned or quarantined has its remedy, and what returns it to use.

    Raises:
        LeaseError: the policy, the store or the records cannot be read.
    """
    seen = _look()
    if seen is None:
        return {"state": "off: tasks get no GPU on this unit"}
    try:
        records = {entry.uuid: entry for entry in quarantine.read()}
    except OSError as error:
        raise LeaseError(str(error)) from error
    free = sum(device.state == "free" for device in seen.devices)
    count = sum(device.index is not None for device in seen.devices)
    results = {
        "allocation": seen.allocation,
        "free": f"{free} of {count}",
        "queue": _queue_length(len(seen.queue)),
    }
    for device in seen.devices:
        entry = records.get(device.gpu)
        told = [part for part in (entry.remedy, entry.way_back) if part] if entry else []
        results[device.key] = messages.of_device(device, seen.containers, *told)
    return results | {
        f"queue-{place}": messages.as_text(one.text) for place, one in enumerate(seen.queue, 1)
    }


def _queue_length(count: int) -> str:
    return f"{count} request{'s' if count != 1 else ''}" if count else "empty"


def as_json() -> str:
    """Return the same as JSON; an empty object if tasks get no GPU.

    Raises:
        LeaseError: the policy or the store cannot be read.
    """
    seen = _look()
    return json.dumps(dataclasses.asdict(seen)) if seen else "{}"


def _look() -> messages.Seen | None:
    try:
        allowed = runtime_policy.allowed()
        if allowed is None:
            return None
        table, host = Store(str(wrapper.STORE)).read(), Host()
        holders = table.holders.items()
        containers = {name: _container(name, holder, host) for name, holder in holders}
        devices = _devices(allowed, allowed.unavailable(), containers)
    except (OSError, ValueError, Refused) as error:
        raise LeaseError(str(error)) from error
    free = [device.id for device in devices if device.state == "free"]
    queue = _queue(table, free, host)
    return messages.Seen(
        "exclusive" if allowed.exclusive else "shared", devices, containers, queue
    )


def _queue(table: Table, free: list[str], host: Host) -> list[messages.Waiter]:
    """Return the waiting requests, the oldest first; free GPUs may be reserved for some."""
    now = host.now()
    living = [waiter for waiter in table.waiters if host.alive(waiter.call)]
    kept = {id(waiter): count for waiter, count in leases.divide(living, free, now).kept}
    return [
        messages.Waiter(
            waiter.container,
            waiter.who or f"container {waiter.container}",
            waiter.count,
            waiter.named,
            int(now - waiter.since),
            messages.iso_time(time.time() - (now - waiter.since)),
            waiter.overtaken,
            kept.get(id(waiter), 0),
        )
        for waiter in living
    ]


def _container(name: str, holder: Holder, host: Host) -> messages.Container:
    # A store that was created again does not know since when.
    seconds = int(host.now() - holder.since) if holder.since else None
    since = "" if seconds is None else messages.iso_time(time.time() - seconds)
    in_use = host.in_use(name, holder)
    ours = name.startswith(SELF_TEST_CONTAINER)
    steps = ["self-test"] if ours else host.processes(name, holder)
    return messages.Container(
        kind=holder.kind,
        who=_who(name, holder),
        gpus=holder.gpus,
        steps=steps,
        in_use=in_use,
        handing_over=leases.is_handed_over(holder, host),
        stuck=holder.stuck and not in_use,
        seconds=seconds,
        since=since,
    )


def _who(name: str, holder: Holder) -> str:
    return f"container {name}" if holder.kind == STEP else queue_messages.who(name, holder)


def _devices(
    allowed: policy.Policy,
    unavailable: collections.abc.Mapping[str, Unavailable],
    containers: collections.abc.Mapping[str, messages.Container],
) -> list[messages.Device]:
    """Return the policy's devices in its order, then held devices that the policy lacks."""
    found: list[messages.Device] = []
    for key, device in by_key(allowed).items():
        of_device = _containers_with(device.id, containers)
        state = _state([containers[name] for name in of_device], shared=not allowed.exclusive)
        if cause := unavailable.get(device.id):
            state = cause.describe() if state == "free" else f"{state}, {cause.describe()}"
        found.append(
            messages.Device(
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
            messages.Device(
                f"other-{number}", None, name, "", "", "held outside policy", of_device
            )
        )
    return found


def by_key(allowed: policy.Policy) -> dict[str, policy.Device]:
    """Return the devices by their names for people, such as `gpu-0` and `gpu-1-mig-0`."""
    found: dict[str, policy.Device] = {}
    for device in allowed.devices:
        key = f"gpu-{device.index}"
        if device.id != device.gpu:
            key += f"-mig-{sum(other.gpu == device.gpu for other in found.values())}"
        found[key] = device
    return found


def _containers_with(
    device: str, containers: collections.abc.Mapping[str, messages.Container]
) -> list[str]:
    return [name for name, each in containers.items() if device in each.gpus]


def _state(containers: list[messages.Container], *, shared: bool) -> str:
    users = sum(each.in_use or each.stuck for each in containers)
    if not users:
        return "handing over" if any(each.handing_over for each in containers) else "free"
    return f"shared by {users}" if shared or users > 1 else "leased"


def occupants(store: pathlib.Path) -> dict[str, str]:
    """Return the holders that use GPUs now: their names, and a description of each.

    Args:
        store: the folder of the leases.

    Raises:
        OSError, ValueError, gpu_runtime.refusal.Refused: the leases cannot be read.
    """
    host = Host()
    holders = Store(str(store)).read().holders.items()
    return {
        name: words(name, holder, host) for name, holder in holders if host.in_use(name, holder)
    }


def words(name: str, holder: Holder, host: Host) -> str:
    """Describe a holder in one line: its name, its processes, and how long it has its GPUs."""
    return _container(name, holder, host).summary


def one_line(reason: str) -> str:
    """Return an operator's reason without the blanks around it.

    Raises:
        LeaseError: the reason is empty, or longer than a line.
    """
    if not reason.strip() or not reason.isprintable():
        raise LeaseError("reason must be one line of printable text")
    return reason.strip()


def reclaim(gpu: str, reason: str, *, force: bool) -> dict[str, str]:
    """Take a GPU, or all MIG devices of a GPU, back from the containers that hold it.

    A container ends as a whole, so it loses all its GPUs.

    Args:
        gpu: the report's key such as `gpu-1`, a UUID of a GPU or MIG device, or an index.
        reason: the reason for the decision log.
        force: also end containers that use the GPU; their steps fail.

    Returns:
        The results of an action: `gpu`, the ids; `was`, the former holders; and `state`.

    Raises:
        LeaseError: tasks on this unit do not get such a GPU, it is in use and `force` is false,
            or its processes cannot be killed.
    """
    gpu, reason, host = gpu.strip(), one_line(reason), Host()
    try:
        allowed = runtime_policy.allowed()
        if allowed is None:
            raise LeaseError("Tasks get no GPU on this unit, so there is none to reclaim")

        def take_back(table: Table) -> tuple[set[str], list[str]]:
            meant = _meant(gpu, allowed, table)
            names = [
                name for name, holder in table.holders.items() if not meant.isdisjoint(holder.gpus)
            ]
            if not force:
                _check_unused(gpu, {name: table.holders[name] for name in names}, host)
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
    return {
        "gpu": ", ".join(sorted(meant)),
        "was": f"held by {', '.join(whose.values())}" if whose else "not held",
        "state": "free for the next request",
    }


def _meant(gpu: str, allowed: policy.Policy, table: Table) -> set[str]:
    """Return the ids of the devices that an operator's text means."""
    known = {device.id for device in allowed.devices}
    held = {name for holder in table.holders.values() for name in holder.gpus}
    asked, keys = gpu.lower(), by_key(allowed)
    meant = {
        device.id
        for key, device in keys.items()
        if asked
        in (key, f"gpu-{device.index}", str(device.index), device.gpu.lower(), device.id.lower())
    } | {name for name in held - known if name.lower() == asked}
    if not meant:
        there = [f"{key} ({device.id})" for key, device in keys.items()]
        raise LeaseError(
            f"No GPU here is {gpu!r}; this unit has {', '.join([*there, *sorted(held - known)])}"
        )
    return meant


def _why_stuck(name: str, holder: Holder, host: Host) -> str:
    """Return why a lease does not end, such as the state of its processes (proc(5))."""
    if why := host.looked.get(name):
        return f"{_who(name, holder)} has ended, but its GPU cannot be handed over: {why}"
    if leases.is_handed_over(holder, host):
        return f"{_who(name, holder)} has ended, and its GPU is being handed over"
    states = host.state(name, holder)
    if "D" in states:
        why = "they hang in the kernel, such as in the GPU's driver (see `sudo dmesg`)"
    elif "t" in states.lower():
        why = "they are stopped or traced, perhaps by each other"
    else:
        why = "they start new processes as fast"
    return f"Processes of {_who(name, holder)} cannot be killed: {why}. A reboot ends them"


def _check_unused(gpu: str, tenants: collections.abc.Mapping[str, Holder], host: Host) -> None:
    used = [
        words(name, holder, host) for name, holder in tenants.items() if host.in_use(name, holder)
    ]
    if used:
        end = "abort the build" if {one.kind for one in tenants.values()} == {STEP} else "end it"
        raise LeaseError(
            f"GPU {gpu} is in use by {', '.join(used)}: wait, {end}, or use force=true, which "
            "kills its processes"
        )


def _take_back(table: Table, name: str, host: Host, reason: str) -> bool:
    """End a holder's whole container and its lease. Return whether that worked."""
    holder = table.holders[name]
    if not leases.release(table, name, host, force=True):
        return False
    journal.intruders(str(wrapper.LOG), host.intruders, holder.gpus)
    decision = Decision(name)
    decision.kind = "gpu-reclaim"
    decision.reason = f"{', '.join(holder.gpus)}: {reason}"
    decision.write(str(wrapper.LOG))
    return True
