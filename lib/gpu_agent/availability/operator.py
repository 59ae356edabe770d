# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""GPUs that the operator takes out of use by hand, and brings back, whoever took them out."""

from gpu_agent import paths as wrapper
from gpu_agent.availability import cordons, quarantine, retests
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


def cordon(wish: str, reason: str) -> dict[str, str]:
    """Take a GPU out of use until it is brought back by hand; what runs on it goes on.

    It takes the place of what a self-test says of that GPU, so that none brings it back.

    Args:
        wish: the GPU's index or UUID, a MIG device's UUID, or gpu-leases' key such as `gpu-1`.
        reason: why, one line.

    Returns:
        An action's results: the GPU's id, its state, its state before if it was out of use
        already, and what runs on it still.

    Raises:
        LeaseError: it is no GPU that tasks get here, or the leases can't be read.
    """
    reason = leases.one_line(reason)
    try:
        allowed = runtime_policy.allowed()
        if allowed is None:
            raise LeaseError("Tasks get no GPU on this unit, so there is none to cordon")
        uuid = _meant(wish, _names(allowed))
        before = quarantine.find(uuid)
        quarantine.cordon(uuid, reason)
        _note("gpu-cordon", uuid, reason)
    except (OSError, Refused) as error:
        raise LeaseError(str(error)) from error
    results = {"gpu": uuid, "state": words(quarantine.find(uuid))}
    if before:
        results["before"] = f"{words(before)}, since {before.since or 'an unknown time'}"
    devices = {device.id for device in allowed.devices if device.gpu == uuid}
    return {**results, "running": _running(devices)}


def uncordon(wish: str, reason: str, inventory: Inventory) -> dict[str, str]:
    """Bring a GPU back, or forget one that was taken out of the machine.

    Args:
        wish: as for `cordon`; an index means a GPU that is gone too.
        reason: why, one line.
        inventory: which GPUs are here.

    Returns:
        An action's results: the GPU's id, why it was out of use, and its state.

    Raises:
        LeaseError: it is not out of use, or that can't be read.
    """
    reason = leases.one_line(reason)
    try:
        allowed = runtime_policy.allowed()
        missed = {gpu.uuid: gpu for gpu in known.read()}
        entries = {entry.uuid: entry for entry in quarantine.read()}
        names = _names(allowed) if allowed else {}
        for uuid in (*missed, *entries):
            names.setdefault(uuid, {uuid})
        for uuid, gpu in missed.items():
            names[uuid] |= {str(gpu.index), f"gpu-{gpu.index}"}
        uuid = _meant(wish, names)
        # Where the GPUs can't be told, one that is not listed may be here.
        told = inventory.state in (State.READY, State.NO_GPU)
        gone = told and uuid in missed and uuid not in {gpu.uuid for gpu in inventory.gpus}
        if uuid not in entries and not gone:
            raise _not_out(uuid, entries)
        quarantine.lift(uuid)
        retests.forget(uuid)
        if gone:
            known.forget(uuid)
        _note("gpu-uncordon", uuid, reason)
        state = _state_after(uuid, entries.get(uuid), gone=gone)
    except (OSError, Refused, known.KnownError) as error:
        raise LeaseError(str(error)) from error
    return {"gpu": uuid, "was": words(entries.get(uuid)) or "missing", "state": state}


def _names(allowed: policy.Policy) -> dict[str, set[str]]:
    """The ids of the GPUs that tasks may have, each with all that an operator may call it."""
    names: dict[str, set[str]] = {}
    for key, device in leases.by_key(allowed).items():
        ours = {key, f"gpu-{device.index}", str(device.index), device.id, device.gpu}
        names.setdefault(device.gpu, set()).update(ours)
    return names


def _meant(wish: str, names: dict[str, set[str]]) -> str:
    asked = wish.strip().lower()
    meant = [uuid for uuid, ours in names.items() if asked in map(str.lower, ours)]
    if len(meant) > 1:
        raise LeaseError(f"{wish.strip()!r} may be {' or '.join(meant)}: name it by that id")
    if not meant:
        keys = {
            uuid: min((name for name in ours if name.startswith("gpu-")), default="GPU")
            for uuid, ours in names.items()
        }
        there = ", ".join(f"{key} ({uuid})" for uuid, key in keys.items())
        raise LeaseError(f"No GPU is {wish.strip()!r} here; there is {there or 'none'}")
    return meant[0]


def words(entry: Quarantine | None) -> str:
    """What a GPU is that is out of use, such as `quarantined: Xid 79`; empty if it is not."""
    return policy.why({"reason": entry.reason, "by": entry.by}) if entry else ""


def _state_after(uuid: str, entry: Quarantine | None, *, gone: bool) -> str:
    if gone:
        return "forgotten, since it is no longer in this machine"
    if reason := cordons.reasons().get(uuid):
        return f"still cordoned: {reason}"
    if entry and entry.level:
        return f"in use again; gpu-selftest level={entry.level} shows whether it is well"
    return "in use again"


def _not_out(uuid: str, entries: dict[str, Quarantine]) -> LeaseError:
    if reason := cordons.reasons().get(uuid):
        return LeaseError(
            f"{uuid} is {reason}; it returns by itself at the charm's next event after that ends"
        )
    others = ", ".join(f"{name} ({words(entry)})" for name, entry in entries.items())
    return LeaseError(f"{uuid} is not out of use; out of use: {others or 'none'}")


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
    return ", ".join(users) or "nothing"


def _note(action: str, uuid: str, reason: str) -> None:
    decision = Decision("")
    decision.kind = action
    decision.reason = f"{uuid}: {reason}"
    decision.write(str(wrapper.LOG))
