# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A reboot of this machine that its driver or a GPU needs: not before no job runs, and once."""

import collections.abc

from ci.concourse import steps, worker
from host import facts, memory, recovery_record
from plan.gpu_recovery import Step
from plan.state import UnitState


def prepare(
    state: UnitState,
    progress: collections.abc.Callable[[str], None],
    *,
    may: bool,
    sick: tuple[str, ...] = (),
) -> bool:
    """Have the machine ready to reboot; False if it may not, or a job runs.

    It is for its driver, or for the GPUs that are `sick`, of which recovery.ensure tells. The
    worker leaves its Concourse before, so that no step begins meanwhile; the next boot starts
    it again, and a step that is not done by then has it run on. That the driver does not come up
    after the reboot brings no second one; after one that helped another may come.

    Raises:
        host.facts.UnknownError: it can't be told whether a job runs, or the reboot can't be noted.
    """
    usable = state.inventory and state.inventory.gpus
    if usable and state.rebooted_for and state.rebooted_for == state.driver.loaded:
        memory.set_rebooted_for("")
    if not may or _is_busy():
        return False
    needy = " and ".join(sick) or f"driver {state.driver.version}"
    progress(f"Rebooting: {needy} needs it, and no job runs")
    ran, rests = worker.retire(worker.RETIRE_SECONDS, progress), False
    try:
        if not _is_busy():
            _note(state, sick)
            rests = True
    finally:
        # Else nobody would end what its web no longer knows of.
        if ran and not rests:
            worker.resume()
    return rests


def _note(state: UnitState, sick: tuple[str, ...]) -> None:
    """Note what the machine is rebooted for; without that it is not, or it would be for ever."""
    try:
        if sick:
            recovery_record.begin(Step.REBOOT, sick)
        else:
            memory.set_rebooted_for(state.driver.version)
    except OSError as error:
        raise facts.unknown(f"the reboot can't be noted: {error}") from error


def _is_busy() -> bool:
    try:
        return bool(steps.running())
    except OSError as error:
        raise facts.unknown(f"whether a job runs: {error}") from error
