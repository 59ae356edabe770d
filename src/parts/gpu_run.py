# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Installs gpu-run for the group that the option names, or removes it."""

from gpu_agent.gpu_run import service
from gpu_agent.runtime.settings import GpuPlan
from options.part import Part
from plan.model import Plan
from plan.state import UnitState


def ensure(state: UnitState, wanted: Plan) -> bool:
    """Have gpu-run for the group that the option names, or not at all.

    It stays as it is where an option of it can't be used.

    Args:
        state: what this unit was decided on.
        wanted: what it is to be.

    Returns:
        Whether anything was changed.

    Raises:
        GpuRunError: there is no such group, or systemd can't have the socket.
    """
    if {Part.UNIT, Part.RUN} & state.frozen:
        return False
    if state.leaving or state.inventory is None or not state.options.gpu_run_group:
        return service.remove()
    # What keeps tasks from GPUs for now keeps people from them too, by the policy.
    if not isinstance(wanted.gpu, GpuPlan):
        return False
    return service.install(state.options.gpu_run_group)
