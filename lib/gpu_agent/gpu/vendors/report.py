# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The inventory as the results of gpu-inventory, for people and for programs."""

import collections.abc
import dataclasses
import enum
import json
import textwrap

from gpu_agent.model.inventory import Inventory


def as_results(
    inventory: Inventory,
    allowed: collections.abc.Collection[str],
    out: collections.abc.Mapping[str, str],
) -> dict[str, str]:
    """Return the results of an action for people.

    Args:
        inventory: the GPUs of the machine.
        allowed: the UUIDs of the GPUs that tasks may get now.
        out: the UUIDs of the unavailable GPUs, each with the cause.
    """
    results = {
        "state": inventory.state.value,
        "vendor": inventory.vendor,
        "count": str(len(inventory.gpus)),
    }
    for name in ("driver", "cuda", "detail"):
        if value := getattr(inventory, name):
            results[name] = value
    if inventory.lost:
        results["lost"] = ", ".join(inventory.lost)
    for gpu in inventory.gpus:
        memory = f"{gpu.memory_mib} MiB" if gpu.memory_mib else "memory unknown"
        use = "for tasks" if gpu.uuid in allowed else "not for tasks"
        if cause := out.get(gpu.uuid):
            use += f" ({cause})"
        ids = [word for word in (gpu.uuid, gpu.pci_address) if word]
        lines = [f"{gpu.model}, {memory}", ", ".join(ids), " ".join(gpu.nodes)]
        lines += [f"MIG {device.profile} {device.uuid}" for device in gpu.mig]
        lines.append(use)
        results[f"gpu-{gpu.index}"] = _as_text(lines)
    return results


def _as_text(lines: collections.abc.Iterable[str]) -> str:
    """Join lines into a text that fits 100 columns after Juju's indent and the result's name."""
    wrapped = [line for text in lines for line in textwrap.wrap(text, 84, break_on_hyphens=False)]
    return "\n  ".join(wrapped)


def as_json(
    inventory: Inventory,
    allowed: collections.abc.Collection[str],
    out: collections.abc.Mapping[str, str],
) -> str:
    """Return the same as JSON: the inventory, with `allowed` and `out`."""
    whole = {**dataclasses.asdict(inventory), "allowed": [*allowed], "out": {**out}}
    return json.dumps(whole, default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} has no JSON form")
