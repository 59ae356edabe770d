# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Installs gpu-run for the group that the option names, or removes it."""

from gpu_agent.gpu_run import service
from gpu_agent.runtime.settings import GpuPlan
from options.part import Part
from plan.model import Plan
from plan.state import UnitState


def ensure(state: UnitState, wanted: Plan) -> bool:
    """Install gpu-run for the group of gpu-run-group, or remove it.

    If one of its options cannot be used, nothing is changed.

    Args:
        state: the state of this unit.
        wanted: the plan for it.

    Returns:
        Whether anything was changed.

    Raises:
        GpuRunError: the group does not exist, or systemd cannot open the socket.
    """
    if {Part.UNIT, Part.RUN} & state.frozen:
        return False
    if state.leaving or state.inventory is None or not state.options.gpu_run_group:
        return service.remove()
    # While tasks get no GPUs, the policy keeps users of gpu-run from them too.
    if not isinstance(wanted.gpu, GpuPlan):
        return False
    return service.install(state.options.gpu_run_group)
