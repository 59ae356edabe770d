# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the health watch observes of drivers, kernel and leases: frozen types only.

Times are seconds since boot (CLOCK_BOOTTIME), as in the store of leases: no change of the clock
touches them.
"""

import collections.abc
import dataclasses
import enum

from gpu_agent.model import card as model_card
from gpu_runtime.lease_table import STEP


class Source(enum.Enum):
    """Who told."""

    EVENT = "NVML event"
    KERNEL = "kernel log"
    POLL = "poll"
    BUS = "PCI"
    COUNTER = "sysfs counter"


@dataclasses.dataclass(frozen=True)
class Look:
    """One poll of all GPUs that came to its end.

    Attributes:
        at: when it began.
        figures: by the GPU's UUID, of each that the driver has.
        missing: UUIDs of watched GPUs that PCI's list has and the driver does not.
        gone: UUIDs of those that PCI's list lacks too.
    """

    at: float
    figures: collections.abc.Mapping[str, model_card.Figures]
    missing: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Message:
    """One thing that a driver or the kernel told of one GPU.

    Attributes:
        at: when it came.
        uuid: the GPU's.
        source: EVENT or KERNEL; the text of KERNEL can be forged and alone decides nothing.
        fault: the name of the fault's row in gpu_agent.fault_policy.fault_table; empty: `xid`
            decides.
        xid: its number; None where it is none.
        text: the driver's own words, one printable line.
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
        misses: how many in a row by now; no look or event of NVML came meanwhile.
    """

    at: float
    misses: int


Seen = Look | Message | Hang


@dataclasses.dataclass(frozen=True)
class Holding:
    """A container or job with a lease.

    Attributes:
        container: its id; a job's is its unit's name.
        bundle: the folder of its OCI bundle.
        devices: ids of what it has, as in Card.devices.
        since: when it got them.
        in_use: whether it uses them still.
        ours: it is the self-test's.
        waited: for how long it had to wait for them, in seconds; None: that is not known.
        kind: `step`; `container`, of an engine; or `job`, a unit of systemd's.
        who: it in its engine's words; empty for a step.
        handing_over: it has ended, and they go to another one after a look at who has them open.
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


@dataclasses.dataclass(frozen=True)
class Moment:
    """All that one turn of the watch's parts rests on.

    Attributes:
        now: seconds since boot.
        wall: seconds since the epoch, for what people read.
        cards: the GPUs that are looked after.
        seen: what came since the last turn, in the order in which it came.
        look: the last good poll, perhaps an old one; None before the first.
        holdings: who holds what; None where that can't be told now, which is not "nobody".
        out: UUIDs of GPUs that get no task now, each with the reason in a few words.
        cordoned: those of `out` that come back by themselves, since others use them or their
            memory is still taken; the rest of `out` is in quarantine.
        driver: the driver's version, such as `580.95.05`; empty if it has none of its own.
        cuda: the highest CUDA version of that driver, such as `13.0`; empty if not known.
    """

    now: float
    wall: float
    cards: tuple[model_card.Card, ...]
    seen: tuple[Seen, ...] = ()
    look: Look | None = None
    holdings: tuple[Holding, ...] | None = ()
    out: collections.abc.Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    cordoned: frozenset[str] = frozenset()
    driver: str = ""
    cuda: str = ""

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
