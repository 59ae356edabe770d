# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Options, GPUs found and relation data -> what this unit should be. Pure: no I/O, no clock."""

from ci.concourse.plan import plan as concourse
from ci.concourse.plan import release as concourse_release
from gpu_agent.engines.engine import EnginesPlan
from gpu_agent.model import inventory as model_inventory
from gpu_agent.model.inventory import Vendor
from gpu_agent.model.keep import Keep
from gpu_agent.runtime.settings import GpuPlan
from options.part import Part
from plan import gpus
from plan import host_software as host
from plan.gpu_offers import GpuOffer
from plan.model import Plan
from plan.problems import Problem, Reason, problem
from plan.state import UnitState


def make(state: UnitState) -> Plan:
    """Decide what this unit should be. A problem of one part does not affect the others."""
    if state.leaving:
        # Juju reports a leaving unit to its peers late, so the unit withdraws its offer itself.
        return Plan((), None, None, None, None, offer=GpuOffer(state.unit, ()))
    options, frozen = state.options, state.frozen
    problems = [
        problem(Reason.BAD_OPTION, text=one.text, option=one.option) for one in options.wrong
    ]
    if Part.UNIT in frozen:
        as_is = Keep.AS_IS
        return Plan(tuple(problems), None, as_is, as_is, as_is, folders=as_is, engines=as_is)
    software = host.make(state)
    release = concourse_release.make(state, problems)
    choice = gpus.choose(state) if options.has_worker else gpus.Choice(remember=state.remembered)
    gpu = _gpu(state, choice, problems) if options.has_worker else None
    unusable = () if Part.GPU in frozen else gpus.unusable(state, choice)
    web = worker = None
    if options.has_web:
        web = Keep.AS_IS if Part.WEB in frozen else concourse.web(state, problems)
    if options.has_worker:
        as_is = Part.WORKER in frozen
        worker = Keep.AS_IS if as_is else concourse.worker(state, choice, gpu, unusable, problems)
    if release is None or Part.RELEASE in frozen:
        web, worker = web and Keep.AS_IS, worker and Keep.AS_IS
    if gpu is None and worker is Keep.AS_IS:
        gpu = Keep.AS_IS  # the running containerd may have been started through our launcher
    reboot = options.may_reboot_for_driver and host.needs_reboot(state)
    offer = _offer(state, gpu, unusable)
    folders = Keep.AS_IS if Part.WORKER in frozen else options.task_folders
    return Plan(
        tuple(problems), release, gpu, worker, web, choice, unusable, software, reboot, offer,
        folders, _engines(state, gpu),
    )  # fmt: skip


def _engines(state: UnitState, gpu: GpuPlan | Keep | None) -> EnginesPlan | Keep | None:
    options = state.options
    if Part.ENGINES in state.frozen or gpu is Keep.AS_IS:
        return Keep.AS_IS
    engines = options.container_engines
    if gpu is None or not engines.names:
        return None
    return EnginesPlan(engines.names, engines.default, nvidia=bool(gpu.nvidia_runtime))


def _gpu(state: UnitState, choice: gpus.Choice, problems: list[Problem]) -> GpuPlan | Keep | None:
    if Part.GPU in state.frozen and state.options.enable_gpu:
        return Keep.AS_IS
    if wrong := gpus.problem_with(state, choice):
        problems.append(wrong)
        return Keep.AS_IS
    if not choice.gpus:
        return None
    if gpus.are_all_quarantined(state, choice):
        problems.append(Problem(Reason.ALL_UNAVAILABLE))
    options, toolkit, inventory = state.options, state.machine.toolkit, state.inventory
    by_runtime = choice.gpus[0].vendor is Vendor.NVIDIA
    return GpuPlan(
        gpus=choice.gpus,
        nvidia_runtime=toolkit.path if by_runtime and toolkit else "",
        allocation=options.gpu_allocation,
        gpus_per_task=options.gpus_per_task,
        wait_timeout=concourse.wait_timeout(state),
        privileged_tasks="gpu" if options.gpu_for_privileged_tasks else "no-gpu",
        driver=inventory.driver if by_runtime and inventory else "",
        cuda=inventory.cuda if by_runtime and inventory else "",
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
