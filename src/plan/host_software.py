# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which software the host's GPUs need and the charm brings. Pure.

What somebody else installed is used as it is. What the charm brought is kept as it was planned,
but a driver is never replaced by another in a hook: the action upgrade-driver does that.
"""

import typing

from gpu_agent.diagnosis import states as host_states
from gpu_agent.diagnosis.facts import Facts
from gpu_agent.model.inventory import State, Vendor
from gpu_agent.model.keep import Keep
from options.part import Part
from plan import diagnosis
from plan.model import DriverPlan, HostPlan, ToolkitPlan
from plan.state import UnitState

NVIDIA_REPOSITORY: typing.Final = "https://nvidia.github.io/libnvidia-container"

# A card of NVIDIA's that somebody else is to have, or none at all.
_NOTHING_TO_DRIVE: typing.Final = (State.NO_GPU, State.VFIO, State.NOT_PASSED)


def make(state: UnitState) -> HostPlan | Keep:
    """What is to be on this host."""
    options, facts = state.options, diagnosis.facts(state)
    if Part.HOST in state.frozen:
        return Keep.AS_IS
    if facts is None:
        return HostPlan(packages=options.host_packages if options.has_worker else ())
    inventory = facts.inventory
    if inventory.vendor is not Vendor.NVIDIA or inventory.state in _NOTHING_TO_DRIVE:
        # A card that is gone for now takes nothing with it.
        return HostPlan(Keep.AS_IS, Keep.AS_IS, options.host_packages, settings=True)
    toolkit = _toolkit(state, facts)
    extra = options.host_packages
    if inventory.state is State.HUNG:  # what there is can't be told
        return HostPlan(Keep.AS_IS, Keep.AS_IS, extra, settings=True, nvidia=True)
    return HostPlan(_driver(state), toolkit, extra, settings=True, nvidia=True)


def needs_reboot(state: UnitState) -> bool:
    """Whether a reboot by the charm is what the driver on the disk needs."""
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
        return Keep.AS_IS  # Another try in this boot would be refused too.
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
        version = packaged.previous  # The way back to it was broken off.
    elif version in packaged.bad and packaged.version:
        return Keep.AS_IS
    return ToolkitPlan(version, options.toolkit_mirror or NVIDIA_REPOSITORY, options.toolkit_key)
