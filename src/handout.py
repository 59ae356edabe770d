# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whoever gets GPUs here is ready to: tasks by the wrapper, engines' containers by our runtime."""

import dataclasses

import attempts
from engines import registration
from oci import cordons, folders, wrapper
from plan.options import Part
from plan.parts import GpuPlan, Keep, Plan
from plan.state import UnitState


def ensure(state: UnitState, wanted: Plan) -> UnitState:
    """Have wrapper, folders, cordons and engines as planned.

    Returns:
        The state, with whether the wrapper had to be repaired, and with what failed.

    Raises:
        machine.process.CommandError: the back end could not be compiled, or systemd refuses.
    """
    repaired = None
    if isinstance(wanted.gpu, GpuPlan):
        repaired, state = attempts.make(state, Part.GPU, wrapper.apply, wanted.gpu)
    folders.ensure(wanted.folders, wanted.gpu)
    if wanted.unusable or (state.inventory and state.inventory.gpus):
        cordons.ensure(state.cordoned, wanted.unusable)
    # The runtime is nothing without the wrapper's back end.
    if not isinstance(wanted.engines, Keep) and Part.GPU not in state.frozen:
        changed, state = attempts.make(state, Part.ENGINES, registration.ensure, wanted.engines)
        repaired = repaired or changed
    return dataclasses.replace(state, repaired=bool(repaired))
