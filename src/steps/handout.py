# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whoever gets GPUs here is ready to: tasks by the wrapper, engines' containers by our runtime."""

import dataclasses
import logging

from gpu_agent.availability import cordons
from gpu_agent.diagnosis import states as host_states
from gpu_agent.engines import registry as registration
from gpu_agent.model import inventory
from gpu_agent.model.inventory import Gpu
from gpu_agent.model.keep import Keep
from gpu_agent.runtime import install
from gpu_agent.runtime import task_mounts as folders
from gpu_agent.runtime.settings import GpuPlan
from lifecycle import part_runner as attempts
from lifecycle import unit_record as memory
from options.part import Part
from plan import diagnosis
from plan.model import Plan
from plan.state import UnitState

_log = logging.getLogger(__name__)


def ensure(state: UnitState, wanted: Plan) -> UnitState:
    """Have wrapper, folders, cordons and engines as planned.

    Returns:
        The state, with whether the wrapper had to be repaired, and with what failed.

    Raises:
        machine.process.CommandError: the back end could not be compiled, or systemd refuses.
    """
    _log_found(state, wanted)
    repaired = None
    if isinstance(wanted.gpu, GpuPlan):
        repaired, state = attempts.make(state, Part.GPU, install.apply, wanted.gpu)
    folders.ensure(wanted.folders, wanted.gpu)
    if wanted.unusable or (state.inventory and state.inventory.gpus):
        cordons.ensure(state.cordoned, wanted.unusable)
    # The runtime is nothing without the wrapper's back end.
    if not isinstance(wanted.engines, Keep) and Part.GPU not in state.frozen:
        changed, state = attempts.make(state, Part.ENGINES, registration.ensure, wanted.engines)
        repaired = repaired or changed
    return dataclasses.replace(state, repaired=bool(repaired))


def _log_found(state: UnitState, wanted: Plan) -> None:
    """Have the unit's log say which GPUs were found, at first and whenever that changes."""
    facts = diagnosis.facts(state)
    if facts is None:
        return
    if wrong := host_states.blocking(facts):
        text = f"GPUs: {wrong}"
    else:
        found, given = facts.inventory, {gpu.uuid for gpu in wanted.choice.gpus}
        shown = [_words(gpu, for_tasks=gpu.uuid in given) for gpu in found.gpus]
        text = f"GPUs found: {'; '.join(shown)}; driver {found.driver}"
        text += f", CUDA {found.cuda}" if found.cuda else ""
    if memory.note_gpus(text):
        _log.info("%s", text)


def _words(gpu: Gpu, *, for_tasks: bool) -> str:
    size = f" {inventory.memory_gib(gpu)} GiB" if inventory.memory_gib(gpu) else ""
    out = "" if for_tasks else ", not for tasks (gpu-device-ids)"
    return f"GPU {gpu.index} {gpu.model}{size} at {gpu.pci_address}, {gpu.uuid}{out}"
