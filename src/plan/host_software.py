# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Plans the driver and container toolkit that the charm installs for the GPUs. Pure.

Pre-installed software is used unchanged. The charm keeps its own software as planned, but only the
action upgrade-driver replaces a driver by another version.
"""

import typing

from gpu_agent.diagnosis import states as host_states
from gpu_agent.diagnosis.facts import Facts
from gpu_agent.model.inventory import State
from gpu_agent.model.keep import Keep
from options.part import Part
from plan import diagnosis
from plan.model import DriverPlan, HostPlan, ToolkitPlan
from plan.state import UnitState

NVIDIA_REPOSITORY: typing.Final = "https://nvidia.github.io/libnvidia-container"

# States without a card for this machine.
_NOTHING_TO_DRIVE: typing.Final = (State.NO_GPU, State.VFIO, State.NOT_PASSED)


def make(state: UnitState) -> HostPlan | Keep:
    """Return the plan for this host."""
    facts = diagnosis.facts(state)
    if Part.HOST in state.frozen:
        return Keep.AS_IS
    if facts is None:
        return HostPlan()
    inventory = facts.inventory
    if not facts.vendor.packaged_driver or inventory.state in _NOTHING_TO_DRIVE:
        # If a card is missing for a while, its software stays.
        return HostPlan(Keep.AS_IS, Keep.AS_IS, settings=True)
    toolkit = _toolkit(state, facts)
    if inventory.state is State.HUNG:  # the driver cannot be read
        return HostPlan(Keep.AS_IS, Keep.AS_IS, settings=True, nvidia=True)
    return HostPlan(_driver(state), toolkit, settings=True, nvidia=True)


def needs_reboot(state: UnitState) -> bool:
    """Whether the installed driver needs a reboot by the charm."""
    facts = diagnosis.facts(state)
    found = host_states.of_gpus(facts) if facts else None
    return found is not None and found.reboots and found.passes


def _driver(state: UnitState) -> DriverPlan | Keep:
    driver, options = state.driver, state.options
    if options.gpu_driver == "none" or driver.changing or driver.is_anothers:
        return Keep.AS_IS
    if driver.container:
        needs_libraries = driver.loaded and not driver.bound
        return DriverPlan(userspace=driver.loaded) if needs_libraries else Keep.AS_IS
    fits = {driver.kernel, driver.next_kernel} - {""} <= {kernel for kernel, _ in driver.modules}
    if driver.ours and driver.version and fits and driver.refused and not driver.loaded:
        return Keep.AS_IS  # Another attempt in this boot would fail too.
    branch = "" if options.gpu_driver == "auto" else options.gpu_driver
    return DriverPlan(branch=driver.branch or branch, fabric_manager=driver.nvswitch)


def _toolkit(state: UnitState, facts: Facts) -> ToolkitPlan | Keep:
    options, packaged, version = state.options, state.packaged, facts.wanted_toolkit
    if state.machine.toolkit and not packaged.ours:
        return Keep.AS_IS
    refused = host_states.of_toolkit(facts)
    if refused and refused.is_of_an_option:
        return Keep.AS_IS
    if version in packaged.bad and packaged.previous:
        version = packaged.previous  # The roll-back to it was interrupted.
    elif version in packaged.bad and packaged.version:
        return Keep.AS_IS
    return ToolkitPlan(version, options.toolkit_mirror or NVIDIA_REPOSITORY, options.toolkit_key)
