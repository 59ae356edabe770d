# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The lease of one container, as the store of leases has it: a frozen type only."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Lease:
    """What the store of leases has for one container.

    Attributes:
        devices: UUIDs of GPUs and MIG devices.
        occupied: whether the container uses them still, or has processes left that may; if not,
            the next task takes them from it.
        cgroup: the path of a job's control group; empty for a container, which its name tells.
    """

    devices: tuple[str, ...]
    occupied: bool = True
    cgroup: str = ""
