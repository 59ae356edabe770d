# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The inventory as the gpu-inventory action shows it, to people and to programs."""

import collections.abc
import dataclasses
import enum
import json

from gpu_agent.model.inventory import Inventory


def as_results(
    inventory: Inventory,
    allowed: collections.abc.Collection[str],
    out: collections.abc.Mapping[str, str],
) -> dict[str, str]:
    """The flat results of an action.

    Args:
        inventory: what was found.
        allowed: the UUIDs of the GPUs that tasks may get now.
        out: the UUIDs of those that tasks may not get for now, each with the reason.
    """
    results = {
        "state": inventory.state.value,
        "vendor": inventory.vendor.value,
        "count": str(len(inventory.gpus)),
    }
    for name in ("driver", "cuda", "detail"):
        if value := getattr(inventory, name):
            results[name] = value
    if inventory.lost:
        results["lost"] = ", ".join(inventory.lost)
    for gpu in inventory.gpus:
        memory = f"{gpu.memory_mib} MiB" if gpu.memory_mib else "memory unknown"
        words = [gpu.model, memory, gpu.uuid, gpu.pci_address, *gpu.nodes]
        words += [f"MIG {device.profile} {device.uuid}" for device in gpu.mig]
        words.append("for tasks" if gpu.uuid in allowed else "not for tasks")
        if reason := out.get(gpu.uuid):
            words[-1] += f" ({reason})"
        results[f"gpu-{gpu.index}"] = ", ".join(words)
    return results


def as_json(
    inventory: Inventory,
    allowed: collections.abc.Collection[str],
    out: collections.abc.Mapping[str, str],
) -> str:
    """The same for programs: the inventory, with `allowed` and `out`."""
    whole = {**dataclasses.asdict(inventory), "allowed": [*allowed], "out": {**out}}
    return json.dumps(whole, default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} has no JSON form")
