# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Cordon a GPU, and return a cordoned or quarantined GPU to use."""

from gpu_agent import paths as wrapper
from gpu_agent.availability import external_use, quarantine, retests
from gpu_agent.availability import known_gpus as known
from gpu_agent.availability import lease_report as leases
from gpu_agent.availability.lease_report import LeaseError
from gpu_agent.model.inventory import Inventory, State
from gpu_agent.model.quarantine import Quarantine
from gpu_agent.runtime import policy as runtime_policy
from gpu_runtime import policy
from gpu_runtime.decision_log import Decision
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.refusal import Refused


def cordon(gpu: str, reason: str) -> dict[str, str]:
    """Take a GPU out of use until the operator returns it; running work continues.

    The cordon replaces a quarantine, so no self-test returns the GPU to use.

    Args:
        gpu: gpu-leases' key such as `gpu-1`, a UUID of a GPU or MIG device, or an index.
        reason: the operator's reason, one line.

    Returns:
        The results of an action: `gpu`, the id; `state`; `was`, the former state if the GPU was
        out of use already; and `running`, the holders that still use it.

    Raises:
        LeaseError: tasks on this unit do not get such a GPU, or the leases cannot be read.
    """
    reason = leases.one_line(reason)
    try:
        allowed = runtime_policy.allowed()
        if allowed is None:
            raise LeaseError("Tasks get no GPU on this unit, so there is none to cordon")
        uuid = _meant(gpu, _names(allowed))
        before = quarantine.find(uuid)
        quarantine.cordon(uuid, reason)
        _note("gpu-cordon", uuid, reason)
    except (OSError, Refused) as error:
        raise LeaseError(str(error)) from error
    results = {"gpu": uuid, "state": describe(quarantine.find(uuid))}
    if before:
        results["was"] = f"{describe(before)}, since {before.since or 'an unknown time'}"
    devices = {device.id for device in allowed.devices if device.gpu == uuid}
    return {**results, "running": _running(devices)}


def uncordon(gpu: str, reason: str, inventory: Inventory) -> dict[str, str]:
    """Return a GPU to use, or forget a card that was removed from the machine.

    Args:
        gpu: as for `cordon`; an index may also mean a removed card.
        reason: the operator's reason, one line.
        inventory: the GPUs of this machine.

    Returns:
        The results of an action: `gpu`, the id; `was`, why it was out of use; `state`; and
        `next`, if a self-test is due.

    Raises:
        LeaseError: the GPU is not out of use, or the records cannot be read.
    """
    reason = leases.one_line(reason)
    try:
        allowed = runtime_policy.allowed()
        missed = {card.uuid: card for card in known.read()}
        entries = {entry.uuid: entry for entry in quarantine.read()}
        names = _names(allowed) if allowed else {}
        for uuid in (*missed, *entries):
            names.setdefault(uuid, {uuid})
        for uuid, card in missed.items():
            names[uuid] |= {str(card.index), f"gpu-{card.index}"}
        uuid = _meant(gpu, names)
        # If the GPUs cannot be listed, a GPU that is not in the list may still be here.
        listed = inventory.state in (State.READY, State.NO_GPU)
        gone = listed and uuid in missed and uuid not in {card.uuid for card in inventory.gpus}
        if uuid not in entries and not gone:
            raise _not_out(uuid, entries)
        quarantine.lift(uuid)
        retests.forget(uuid)
        if gone:
            known.forget(uuid)
        _note("gpu-uncordon", uuid, reason)
        after = _after(uuid, entries.get(uuid), gone=gone)
    except (OSError, Refused, known.KnownError) as error:
        raise LeaseError(str(error)) from error
    return {"gpu": uuid, "was": describe(entries.get(uuid)) or "missing", **after}


def _names(allowed: policy.Policy) -> dict[str, set[str]]:
    """Return the ids of the GPUs for tasks, each with all its names for the operator."""
    names: dict[str, set[str]] = {}
    for key, device in leases.by_key(allowed).items():
        its = {key, f"gpu-{device.index}", str(device.index), device.id, device.gpu}
        names.setdefault(device.gpu, set()).update(its)
    return names


def _meant(gpu: str, names: dict[str, set[str]]) -> str:
    asked = gpu.strip().lower()
    meant = [uuid for uuid, its in names.items() if asked in map(str.lower, its)]
    if len(meant) > 1:
        raise LeaseError(f"{gpu.strip()!r} may be {' or '.join(meant)}: use that UUID")
    if not meant:
        keys = {
            uuid: min((name for name in its if name.startswith("gpu-")), default="GPU")
            for uuid, its in names.items()
        }
        there = ", ".join(f"{key} ({uuid})" for uuid, key in keys.items())
        raise LeaseError(f"No GPU here is {gpu.strip()!r}; this unit has {there or 'none'}")
    return meant[0]


def describe(entry: Quarantine | None) -> str:
    """Return why a GPU is out of use, such as `quarantined: Xid 79`; empty if it is not."""
    return entry.cause.describe() if entry else ""


def _after(uuid: str, entry: Quarantine | None, *, gone: bool) -> dict[str, str]:
    if gone:
        return {"state": "forgotten: this machine no longer has it"}
    if cause := external_use.read().get(uuid):
        return {"state": f"still {cause.describe()}"}
    if entry and entry.level:
        test = f"gpu-selftest level={entry.level} tests whether the fault is gone"
        return {"state": "available", "next": test}
    return {"state": "available"}


def _not_out(uuid: str, entries: dict[str, Quarantine]) -> LeaseError:
    if cause := external_use.read().get(uuid):
        return LeaseError(
            f"{uuid} is {cause.describe()}. It is available again within 5 minutes after that ends"
        )
    others = ", ".join(f"{name} ({describe(entry)})" for name, entry in entries.items())
    return LeaseError(f"{uuid} is not cordoned or quarantined; these are: {others or 'none'}")


def _running(devices: set[str]) -> str:
    host = Host()
    try:
        users = [
            leases.words(name, holder, host)
            for name, holder in Store(str(wrapper.STORE)).read().holders.items()
            if not devices.isdisjoint(holder.gpus) and host.in_use(name, holder)
        ]
    except (OSError, ValueError, Refused) as error:
        return f"unknown: {error}"
    return ", ".join(users) or "none"


def _note(action: str, uuid: str, reason: str) -> None:
    decision = Decision("")
    decision.kind = action
    decision.reason = f"{uuid}: {reason}"
    decision.write(str(wrapper.LOG))
