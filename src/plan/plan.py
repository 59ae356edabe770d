# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Options, GPUs found and relation data -> what this unit should be. Pure: no I/O, no clock."""

import typing

from gpu_agent.engines.engine import EnginesPlan
from gpu_agent.gpu.vendors import registry
from gpu_agent.model import inventory as model_inventory
from gpu_agent.model.keep import Keep
from gpu_agent.runtime.settings import GpuPlan
from gpu_runtime.unavailable import UNUSABLE, Unavailable
from options.part import Part
from plan import gpu_status, gpus, messages
from plan import host_software as host
from plan.ci_plan import CiPlan, CiPlanner, WaitLimit
from plan.gpu_offers import GpuOffer
from plan.messages import Line
from plan.model import Plan
from plan.state import UnitState

_CLOSED: typing.Final = Unavailable(UNUSABLE, "unit-rests", "the unit is drained or paused")


def make(state: UnitState, ci: CiPlanner) -> Plan:
    """Decide what this unit should be. A problem of one part does not affect the others.

    Args:
        state: what was found, and what failed.
        ci: the CI system on this unit.
    """
    if state.leaving:
        # Juju reports a leaving unit to its peers late, so the unit withdraws its offer itself.
        return Plan((), None, offer=GpuOffer(state.unit, ()))
    options, frozen = state.options, state.frozen
    problems = [_bad_option(state, one.option, one.text) for one in options.wrong]
    if Part.UNIT in frozen:
        as_is = Keep.AS_IS
        unchanged = CiPlan(as_is, takes_jobs=True, folders=as_is, needs_runtime=True)
        return Plan(tuple(problems), as_is, unchanged, engines=as_is)
    choice = gpus.choose(state) if options.has_worker else gpus.Choice(remember=state.remembered)
    limit = ci.longest_wait(state)
    gpu = _gpu(state, choice, limit, problems) if options.has_worker else None
    unusable = () if Part.GPU in frozen else gpus.unusable(state, choice)
    planned = ci.plan(state, choice, gpu, unusable)
    if gpu is None and planned.needs_runtime:
        gpu = Keep.AS_IS
    given = dict.fromkeys((*state.handed_out, *(one.uuid for one in choice.gpus)), _CLOSED)
    closed = tuple(given.items()) if planned.closes_gpus else ()
    return Plan(
        problems=tuple(problems),
        gpu=gpu,
        ci=planned,
        choice=choice,
        unusable=unusable,
        closed=closed,
        host=host.make(state),
        reboot=options.may_reboot_for_driver and host.needs_reboot(state),
        offer=_offer(state, gpu, (*unusable, *closed)),
        longest_wait=limit,
        engines=_engines(state, gpu),
    )


def _bad_option(state: UnitState, option: str, text: str) -> Line:
    kept = gpus.as_before(state) if option == "gpu-device-ids" else ""
    return messages.line("bad-option", text=text + kept)


def _engines(state: UnitState, gpu: GpuPlan | Keep | None) -> EnginesPlan | Keep | None:
    options = state.options
    if Part.ENGINES in state.frozen or gpu is Keep.AS_IS:
        return Keep.AS_IS
    engines = options.container_engines
    if gpu is None or not engines.names:
        return None
    return EnginesPlan(
        engines.names,
        engines.default,
        nvidia=bool(gpu.nvidia_runtime),
        runc=state.agent.runc,
        socket_taken=state.agent.has_containerd,
    )


def _gpu(
    state: UnitState, choice: gpus.Choice, limit: WaitLimit, problems: list[Line]
) -> GpuPlan | Keep | None:
    if Part.GPU in state.frozen and state.options.enable_gpu:
        return Keep.AS_IS
    if wrong := gpus.problem_with(state, choice):
        problems.append(wrong)
        return Keep.AS_IS
    if not choice.gpus:
        return None
    if gpus.are_all_quarantined(state, choice):
        problems.append(gpu_status.all_unavailable(state, choice))
    options, toolkit, inventory = state.options, state.machine.toolkit, state.inventory
    by_runtime = registry.find(choice.gpus[0].vendor).grant.by_runtime
    wait = options.gpu_wait_timeout
    return GpuPlan(
        gpus=choice.gpus,
        nvidia_runtime=toolkit.path if by_runtime and toolkit else "",
        allocation=options.gpu_allocation,
        gpus_per_task=options.gpus_per_task,
        wait_timeout=wait if limit.seconds is None else min(wait, limit.seconds),
        privileged_tasks="gpu" if options.gpu_for_privileged_tasks else "no-gpu",
        driver=inventory.driver if by_runtime and inventory else "",
        cuda=inventory.cuda if by_runtime and inventory else "",
        runc=state.agent.runc,
        tasks=state.agent.tasks,
    )


def _offer(state: UnitState, gpu: GpuPlan | Keep | None, unusable: gpus.Unusable) -> GpuOffer:
    """Return the GPUs for tasks here; of an unchanged choice, those that are usable."""
    if isinstance(gpu, GpuPlan):
        given = gpu.gpus
    elif gpu is Keep.AS_IS and state.inventory:
        given = tuple(one for one in state.inventory.gpus if one.uuid in state.handed_out)
    else:
        given = ()
    well = tuple(one for one in given if one.uuid not in dict(unusable))
    return GpuOffer(state.unit, model_inventory.devices(well), state.machine.boot)
