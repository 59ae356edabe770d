# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Collects the facts about a unit's host that gpu_agent.diagnosis needs. Pure."""

from gpu_agent.diagnosis.facts import Facts
from plan.state import UnitState


def facts(state: UnitState) -> Facts | None:
    """What was found of a unit's host; None where no GPU was asked for."""
    if state.inventory is None:
        return None
    return Facts(
        inventory=state.inventory,
        driver=state.driver,
        toolkit=state.machine.toolkit,
        packaged=state.packaged,
        options=state.options,
        unit=state.unit,
        instance=state.machine.instance,
        rebooted_for=state.rebooted_for,
    )
