# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A reboot that this machine's driver or a GPU needs: once, after the worker is drained."""

import collections.abc

from ci.concourse.restart import running_steps as steps
from gpu_agent.model import errors
from lifecycle import drain
from lifecycle import remediation_record as recovery_record
from lifecycle import unit_record as memory
from plan.draining import Purpose
from plan.gpu_remediation import Step
from plan.state import UnitState

_Progress = collections.abc.Callable[[str], None]


def prepare(
    state: UnitState, progress: _Progress, *, may: bool, now: bool, sick: tuple[str, ...] = ()
) -> bool:
    """Have the machine ready to reboot; False if it may not, or the worker is not drained yet.

    It is for its driver, or for the GPUs that are `sick`, named by gpu_remediation.ensure. The
    worker lands before, so that no step begins meanwhile; the first hook after the boot starts it
    again. A driver that does not come up by it gets no second one. For a sick GPU no job is ended,
    nor the others' GPUs kept from jobs for long: while one runs, nothing begins.

    Args:
        state: what was found.
        progress: told what is done.
        may: whether a reboot is wanted and allowed; if not, one that was waited for is no more.
        now: whether this hook may ask Juju for it.
        sick: the GPUs that need it.

    Raises:
        gpu_agent.model.errors.UnknownError: the reboot, or what goes before it, can't be
            noted.
    """
    _forget_what_helped(state)
    if not may:
        drain.cancel(Purpose.REBOOT)
    if not (may and now):
        return False
    needy = " and ".join(sick) or f"driver {state.driver.version}"
    if sick and _has_jobs():
        drain.cancel(Purpose.REBOOT)
        return False
    try:
        if not drain.ready(Purpose.REBOOT, f"reboot for {needy}", drain.rules(state), progress):
            return False
        _note(state, sick)
    except OSError as error:
        drain.cancel(Purpose.REBOOT)
        raise errors.unknown(f"the reboot can't be noted: {error}") from error
    progress(f"Rebooting: {needy} needs it")
    return True


def _has_jobs() -> bool:
    try:
        return bool(steps.running())
    except OSError as error:
        raise errors.unknown(f"whether a job runs: {error}") from error


def _forget_what_helped(state: UnitState) -> None:
    usable = state.inventory and state.inventory.gpus
    if usable and state.rebooted_for and state.rebooted_for == state.driver.loaded:
        memory.set_rebooted_for("")


def _note(state: UnitState, sick: tuple[str, ...]) -> None:
    """Note what the machine is rebooted for; without that it is not, or it would be for ever."""
    if sick:
        recovery_record.begin(Step.REBOOT, sick)
    else:
        memory.set_rebooted_for(state.driver.version)
