# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A reboot of this machine that its driver needs: no sooner than no job runs, and once."""

import collections.abc

from ci.concourse import steps, worker
from host import memory
from plan.state import UnitState


def prepare(state: UnitState, progress: collections.abc.Callable[[str], None]) -> bool:
    """Have the machine ready to reboot for its driver; False if a job runs, or may.

    The worker leaves its Concourse before, so that no step begins meanwhile; the next boot starts
    it again. That the driver is not loaded after the reboot either brings no second one.
    """
    try:
        if steps.running():
            return False
    except OSError:  # that can't be told
        return False
    progress(f"Rebooting: driver {state.driver.version} needs it, and no job runs")
    worker.retire(worker.FAREWELL_SECONDS, progress)
    memory.set_rebooted_for(state.driver.version)
    return True
