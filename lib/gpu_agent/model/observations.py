# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Observations of drivers, kernel and leases by the GPU health service: frozen types only.

Times are seconds since boot (CLOCK_BOOTTIME), as in the store of leases. They do not depend on the
wall clock.
"""

import collections.abc
import dataclasses
import enum

from gpu_agent.model import card as model_card
from gpu_runtime.lease_table import STEP
from gpu_runtime.unavailable import Unavailable


class Source(enum.Enum):
    """Where an observation comes from."""

    EVENT = "NVML event"
    KERNEL = "kernel log"
    POLL = "poll"
    BUS = "PCI"
    COUNTER = "sysfs counter"


@dataclasses.dataclass(frozen=True)
class Look:
    """One completed poll of all GPUs.

    Attributes:
        at: when it began.
        figures: by UUID, of each GPU that the driver lists.
        missing: UUIDs of watched GPUs in the PCI list that the driver does not list.
        gone: UUIDs of watched GPUs that are in neither list.
    """

    at: float
    figures: collections.abc.Mapping[str, model_card.Figures]
    missing: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Message:
    """One report of a driver or the kernel on one GPU.

    Attributes:
        at: when it came.
        uuid: the GPU's UUID.
        source: EVENT, KERNEL or COUNTER; KERNEL can be forged and decides nothing alone.
        fault: the name of the fault's row in gpu_agent.fault_policy.fault_table; empty: `xid`
            decides.
        xid: the Xid's number; None: not an Xid.
        text: the driver's own text, one printable line.
    """

    at: float
    uuid: str
    source: Source
    fault: str = ""
    xid: int | None = None
    text: str = ""


@dataclasses.dataclass(frozen=True)
class Hang:
    """A call into the driver did not return within its deadline.

    Attributes:
        at: when that was noticed.
        misses: number of such calls in a row; NVML returned no poll or event in between.
    """

    at: float
    misses: int


Seen = Look | Message | Hang


@dataclasses.dataclass(frozen=True)
class Holding:
    """A container or gpu-run command with a lease.

    Attributes:
        container: its id; for a gpu-run command the name of its systemd unit.
        bundle: the folder of its OCI bundle.
        devices: the ids of its GPUs, as in Card.devices.
        since: when it got them.
        in_use: whether it still uses them.
        ours: whether the self-test made it.
        waited: how long it waited for them, in seconds; None: unknown.
        kind: `step`; `container`, of an engine; `job`, a gpu-run command; or `runner`.
        who: its name in its engine; empty for a step.
        handing_over: it has ended, and its GPUs pass to the next holder once no process has them
            open.
        is_idle: it is a runner without a job.
    """

    container: str
    bundle: str
    devices: tuple[str, ...]
    since: float
    in_use: bool
    ours: bool = False
    waited: float | None = None
    kind: str = STEP
    who: str = ""
    handing_over: bool = False
    is_idle: bool = False


@dataclasses.dataclass(frozen=True)
class Moment:
    """The input of one turn of the GPU health service.

    Attributes:
        now: seconds since boot.
        wall: seconds since the epoch, for output to people.
        cards: the watched GPUs.
        seen: the observations since the last turn, in their order.
        look: the last successful poll, perhaps an old one; None before the first.
        holdings: the leases; None: they can't be read now.
        unavailable: UUIDs of GPUs that tasks do not get now, each with the cause.
        driver: the driver's version, such as `580.95.05`; empty if it has no own version.
        cuda: the highest CUDA version of that driver, such as `13.0`; empty if unknown.
    """

    now: float
    wall: float
    cards: tuple[model_card.Card, ...]
    seen: tuple[Seen, ...] = ()
    look: Look | None = None
    holdings: tuple[Holding, ...] | None = ()
    unavailable: collections.abc.Mapping[str, Unavailable] = dataclasses.field(
        default_factory=dict[str, Unavailable]
    )
    driver: str = ""
    cuda: str = ""

    def is_taken_out(self, uuid: str) -> bool:
        """Whether a fault or an operator took a GPU out, so that it does not return by itself."""
        found = self.unavailable.get(uuid)
        return found is not None and found.is_taken_out

    def holders(self, uuid: str) -> tuple[Holding, ...]:
        """The containers that hold a GPU, or a part of it."""
        devices = {device for card in self.cards if card.uuid == uuid for device in card.devices}
        return tuple(
            holding for holding in self.holdings or () if not devices.isdisjoint(holding.devices)
        )

    def cards_of(self, holding: Holding) -> tuple[model_card.Card, ...]:
        """The GPUs that a container holds, in whole or in part."""
        return tuple(
            card for card in self.cards if not set(card.devices).isdisjoint(holding.devices)
        )
