# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The lease of one container, as the store of leases has it: a frozen type only."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Lease:
    """One entry in the store of leases.

    Attributes:
        devices: UUIDs of GPUs and MIG devices.
        occupied: whether the container still uses them, or has processes left that may; if not,
            the next task gets them.
        cgroup: the path of a gpu-run command's control group; empty for a container.
    """

    devices: tuple[str, ...]
    occupied: bool = True
    cgroup: str = ""
