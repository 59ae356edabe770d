# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which units give the same GPU to their tasks. Pure.

Leases are a unit's own: two tasks of different units can be on one card at once.
"""

import collections.abc
import dataclasses
import typing

# The ids of cards that have none of their own: their place in a machine
# (gpu_agent.model.inventory.Gpu).
_PLACE: typing.Final = "PCI-"


@dataclasses.dataclass(frozen=True)
class GpuOffer:
    """The GPUs that a unit gives to tasks.

    Attributes:
        unit: Juju's name of it, such as `worker/1`.
        uuids: of GPUs and MIG devices.
        boot: an id of the running kernel; empty if it is unknown.
    """

    unit: str
    uuids: tuple[str, ...]
    boot: str = ""


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """The data of other units.

    Attributes:
        offers: what they give to tasks.
        refused: their data that was refused.
        turns: the other units of the application, each with its word about draining
            (plan.draining).
    """

    offers: tuple[GpuOffer, ...] = ()
    refused: tuple[str, ...] = ()
    turns: tuple[tuple[str, str], ...] = ()


def shared(
    own: GpuOffer, others: collections.abc.Iterable[GpuOffer]
) -> dict[tuple[str, ...], list[str]]:
    """Return the UUIDs that other units give to tasks too, each set with the units."""
    found: dict[tuple[str, ...], list[str]] = {}
    for other in others:
        if uuids := _common(own, other):
            found.setdefault(uuids, []).append(other.unit)
    return found


def _common(own: GpuOffer, other: GpuOffer) -> tuple[str, ...]:
    """Return the cards of both: on one kernel, what has one id; none on two.

    If a kernel's id is unknown, ids that stay with their card are compared.
    """
    known = bool(own.boot and other.boot)
    if known and own.boot != other.boot:
        return ()
    common = [uuid for uuid in own.uuids if uuid in other.uuids]
    return tuple(uuid for uuid in common if known or not uuid.startswith(_PLACE))
