# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A reboot of this machine that its driver needs: no sooner than no job runs, and once."""

import collections.abc

from ci.concourse import steps, worker
from host import facts, memory
from plan.state import UnitState


def prepare(
    state: UnitState, progress: collections.abc.Callable[[str], None], *, may: bool
) -> bool:
    """Have the machine ready to reboot for its driver; False if it may not, or a job runs.

    The worker leaves its Concourse before, so that no step begins meanwhile; the next boot starts
    it again, and a step that is not done by then has it run on. That the driver does not come up
    after the reboot brings no second one; after one that helped another may come.

    Raises:
        host.facts.UnknownError: it can't be told whether a job runs.
    """
    usable = state.inventory and state.inventory.gpus
    if usable and state.rebooted_for and state.rebooted_for == state.driver.loaded:
        memory.set_rebooted_for("")
    if not may or _is_busy():
        return False
    progress(f"Rebooting: driver {state.driver.version} needs it, and no job runs")
    ran, rests = worker.retire(worker.RETIRE_SECONDS, progress), False
    try:
        rests = not _is_busy()
    finally:
        # Else nobody would end what its web no longer knows of.
        if ran and not rests:
            worker.resume()
    if rests:
        memory.set_rebooted_for(state.driver.version)
    return rests


def _is_busy() -> bool:
    try:
        return bool(steps.running())
    except OSError as error:
        raise facts.unknown(f"whether a job runs: {error}") from error
