# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The software that the host's GPUs need: what was begun is ended, then it is had as planned."""

import collections.abc

from gpu_agent.model.keep import Keep
from host import nvidia_driver as driver
from host import software
from lifecycle.driver_upgrade import steps as walk
from plan.model import HostPlan


def ensure(plan: HostPlan | Keep, progress: collections.abc.Callable[[str], None]) -> bool:
    """Go on with a driver's upgrade that was broken off, and have the rest as planned.

    Where all is to stay as it is, as on a unit that is being removed, nothing is gone on with.

    Returns:
        Whether anything changed.

    Raises:
        machine.packages.PackageError: something can't be had; what comes before it is there.
        gpu_selftest.service.SelftestError: the upgraded driver can't be tested.
        gpu_agent.diagnosis.machine.UnknownError: the machine can't be looked at now.
    """
    if plan is Keep.AS_IS:
        return False
    # Before an upgrade goes on, which would take what still runs for all that ran.
    settled = driver.end_reload()
    settled |= walk.settle(progress)
    return software.ensure(plan, progress) or settled
