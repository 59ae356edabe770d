# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Collects the facts about a unit's host that gpu_agent.diagnosis needs. Pure."""

from gpu_agent.diagnosis.facts import Facts, Options
from plan.state import UnitState


def facts(state: UnitState) -> Facts | None:
    """Return what was found of a unit's host; None where no GPU was asked for."""
    if state.inventory is None:
        return None
    options = state.options
    return Facts(
        inventory=state.inventory,
        driver=state.driver,
        toolkit=state.machine.toolkit,
        packaged=state.packaged,
        options=Options(
            gpu_vendor=options.gpu_vendor,
            gpu_driver=options.gpu_driver,
            may_reboot=options.may_reboot_for_driver,
            toolkit_version=options.toolkit_version,
            allow_vulnerable_toolkit=options.allow_vulnerable_toolkit,
        ),
        unit=state.unit,
        instance=state.machine.instance,
        rebooted_for=state.rebooted_for,
    )
