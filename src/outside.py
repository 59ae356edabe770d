# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What is outside of a unit: the machine as its hooks look at it, change it and remember it."""

import dataclasses

from ci import systems
from ci.systems import Room
from effects import Effects
from lifecycle.records import Records
from observe import Looks


@dataclasses.dataclass(frozen=True)
class Outside:
    """What is outside of a unit; the defaults are what is there on a machine.

    A test hands in others, by a subclass of the charm.

    Attributes:
        looks: the calls that look at the machine and its GPUs.
        effects: the calls that change the machine.
        records: what the unit keeps on the machine from one hook to the next.
        rooms: the CI systems that there are, each with its own calls.
    """

    looks: Looks = dataclasses.field(default_factory=Looks)
    effects: Effects = dataclasses.field(default_factory=Effects)
    records: Records = dataclasses.field(default_factory=Records.here)
    rooms: tuple[Room, ...] = systems.ALL
