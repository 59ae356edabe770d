# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Prepares a reboot that the driver or a GPU needs: once, after the worker is drained."""

import collections.abc

from gpu_agent.model import errors
from lifecycle import drain
from lifecycle import remediation_record as recovery_record
from lifecycle import unit_record as memory
from plan.draining import Purpose
from plan.gpu_remediation import Step
from plan.state import UnitState

_Progress = collections.abc.Callable[[str], None]


def prepare(
    state: UnitState,
    drainer: drain.Drainer,
    progress: _Progress,
    *,
    may: bool,
    now: bool,
    sick: tuple[str, ...] = (),
) -> bool:
    """Prepare a reboot of the machine; False if it may not be rebooted now.

    The reboot is for the driver, or for the `sick` GPUs that gpu_remediation.ensure returns. The
    worker is drained first; the first hook after the boot starts it again. A driver gets one
    reboot only. A reboot for a GPU begins only while no build runs, so that it interrupts none.

    Args:
        state: what was found.
        drainer: drains the unit.
        progress: reports each step.
        may: whether a reboot is wanted and allowed; if not, a prepared one is given up.
        now: whether this hook may ask Juju for it.
        sick: the GPUs that need it.

    Raises:
        gpu_agent.model.errors.UnknownError: the reboot or the drain before it cannot be
            noted.
    """
    _forget_what_helped(state)
    if not may:
        drainer.cancel(Purpose.REBOOT)
    if not (may and now):
        return False
    needy = " and ".join(sick) or f"driver {state.driver.version}"
    if sick and _has_jobs(drainer):
        drainer.cancel(Purpose.REBOOT)
        return False
    try:
        if not drainer.ready(Purpose.REBOOT, f"reboot for {needy}", drain.rules(state), progress):
            return False
        _note(state, sick)
    except OSError as error:
        drainer.cancel(Purpose.REBOOT)
        raise errors.unknown(f"the reboot cannot be noted: {error}") from error
    progress(f"Rebooting: {needy} needs it")
    return True


def _has_jobs(drainer: drain.Drainer) -> bool:
    try:
        return drainer.has_jobs()
    except OSError as error:
        raise errors.unknown(f"cannot see whether a build runs: {error}") from error


def _forget_what_helped(state: UnitState) -> None:
    usable = state.inventory and state.inventory.gpus
    if usable and state.rebooted_for and state.rebooted_for == state.driver.loaded:
        memory.set_rebooted_for("")


def _note(state: UnitState, sick: tuple[str, ...]) -> None:
    """Note the reason of the reboot; without the note the machine would reboot forever."""
    if sick:
        recovery_record.begin(Step.REBOOT, sick)
    else:
        memory.set_rebooted_for(state.driver.version)
