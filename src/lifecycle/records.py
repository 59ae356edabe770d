# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a unit keeps on its machine from one hook to the next."""

import dataclasses
import pathlib

from gpu_agent import paths
from lifecycle.clock import Clock
from lifecycle.drain_record import DrainRecord
from lifecycle.machine_claim import Claim
from lifecycle.remediation_record import RemediationRecord
from lifecycle.unit_record import UnitRecord
from lifecycle.waker import Waker


@dataclasses.dataclass(frozen=True)
class Records:
    """What a unit keeps on its machine from one hook to the next.

    Attributes:
        claim: the unit that has the machine.
        unit: what the unit must not forget.
        drain: the drain and the pause.
        remediation: the charm's own resets and reboots for quarantined GPUs.
        waker: runs the charm once a drain may go on.
    """

    claim: Claim
    unit: UnitRecord
    drain: DrainRecord
    remediation: RemediationRecord
    waker: Waker

    @classmethod
    def within(cls, folder: pathlib.Path, clock: Clock, waker: Waker) -> "Records":
        """Return the records whose files are in a folder.

        Args:
            folder: the folder.
            clock: tells the times in the files.
            waker: runs the charm once a drain may go on.
        """
        return cls(
            Claim(folder),
            UnitRecord(folder, clock),
            DrainRecord(folder, clock),
            RemediationRecord(folder, clock),
            waker,
        )

    @classmethod
    def here(cls) -> "Records":
        """Return the records of this machine."""
        return cls.within(paths.STATE, Clock(), Waker())
