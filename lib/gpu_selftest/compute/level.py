# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run the checks of level compute: PyTorch and ONNX Runtime on each GPU, reserved for them.

GPUs are tested one after another: their copies from the host would slow each other down, and power
supply and cooling are the burn-in's subject.
"""

import collections.abc
import contextlib
import dataclasses
import pathlib
import secrets
import typing

from gpu_agent.gpu.vendors.vendor import QueryError
from gpu_agent.model.inventory import Gpu
from gpu_agent.runtime import policy
from gpu_agent.runtime import runc as runcs
from gpu_runtime.policy import SELF_TEST_CONTAINER
from gpu_runtime.refusal import Refused
from gpu_selftest.check import Obstacle, Outcome, Progress, Result, Said
from gpu_selftest.compute import answers, judge, work
from gpu_selftest.compute.baseline import Baseline
from gpu_selftest.compute.environment import Environment, UnavailableError
from gpu_selftest.compute.equipment import Equipment
from gpu_selftest.compute.measurements import Findings, Rate, Target
from gpu_selftest.compute.work import UnsupportedError, WorkFailedError
from gpu_selftest.isolation import containers, rootfs
from gpu_selftest.isolation.containers import ContainerError, Containers, Step
from gpu_selftest.isolation.rootfs import Mount
from gpu_selftest.settings import Settings
from gpu_selftest.starvation_clock import StarvedError
from machine import process

CHECKS: typing.Final = (
    answers.ENVIRONMENT,
    answers.RESULTS,
    *answers.RATES.values(),
    answers.COPY,
    answers.HOST,
    answers.MEMORY,
    answers.ONNX,
    answers.CONTAINER,
    answers.PEER,
)

_EACH: typing.Final = tuple(check for check in CHECKS if check.each_gpu)

# The beginnings of the names of the driver's libraries (its README, "Installed Components").
_OF_DRIVER: typing.Final = ("libcuda", "libnvidia", "libnvcuvid")


@dataclasses.dataclass(frozen=True)
class _Site:
    """Where and with what the work is done.

    Attributes:
        key: names the measuring software, so that only comparable rates are compared.
    """

    settings: Settings
    environment: Environment
    device: str
    key: str
    progress: Progress
    equipment: Equipment


def run(
    settings: Settings,
    gpus: tuple[Gpu, ...],
    device: str,
    progress: Progress,
    equipment: Equipment,
) -> list[Result]:
    """Make the checks on each of these GPUs that no job uses.

    Args:
        settings: those of this unit.
        gpus: the GPUs; with `cpu` none of them is used.
        device: `cuda`; or `cpu`, to do the same on the CPU, which the results say.
        progress: called with each step.
        equipment: what they work with.
    """
    found = Findings(device, settings.unit, Baseline(equipment.home))
    driver_of_cuda = equipment.vendor(gpus[0].vendor).cuda if device == "cuda" else None
    if device == "cuda" and driver_of_cuda is None:
        why = "these checks support NVIDIA's GPUs only"
        return [check.result(Outcome.SKIPPED, why) for check in CHECKS]
    nobody = Target(None, "")
    targets = [Target(gpu, uuid) for gpu in gpus for uuid in gpu.devices]
    targets = targets if device == "cuda" else [nobody]
    try:
        cuda, driver = driver_of_cuda.versions() if driver_of_cuda else ("", "")
        made = equipment.pytorch(cuda, settings.wheels, settings.application, progress)
    except (QueryError, UnavailableError) as error:
        found.not_run([answers.ENVIRONMENT], nobody, str(error))
        for target in targets:
            found.not_run(_EACH, target, f"{answers.ENVIRONMENT.id} is not available")
        return found.results
    text = f"the environment {made.key} is installed and loads"
    found.add(answers.ENVIRONMENT, nobody, Said(Outcome.PASSED, text))
    site = _Site(settings, made, device, f"{made.key} {driver}", progress, equipment)
    free = [
        target
        for gpu in dict.fromkeys(target.gpu for target in targets)
        for target in _alone(site, gpu, [one for one in targets if one.gpu == gpu], found)
    ]
    _peers(site, targets, free, found)
    found.judge(site.key)
    return sorted(found.results, key=lambda result: _ORDER[result.check])


_ORDER: typing.Final = {check.id: place for place, check in enumerate(CHECKS)}


@contextlib.contextmanager
def _reserved(
    site: _Site, gpus: collections.abc.Sequence[Gpu | None]
) -> collections.abc.Generator[tuple[str, Obstacle | None]]:
    """Reserve these GPUs; yield the id of the container that has them, and the obstacle if any.

    The CPU needs no lease.
    """
    name = f"{SELF_TEST_CONTAINER}{secrets.token_hex(6)}"
    wanted = [gpu.uuid for gpu in gpus if gpu]
    if not wanted:
        yield name, None
        return
    with site.equipment.alone(name, wanted) as why:
        yield name, why


def _alone(site: _Site, gpu: Gpu | None, targets: list[Target], found: Findings) -> list[Target]:
    """Make all checks of one GPU and its MIG devices, except copies to other GPUs.

    Returns:
        The targets that were tested; none if a job uses the GPU.
    """
    with _reserved(site, [gpu]) as (name, why):
        if why:
            for target in targets:
                found.not_run(_EACH, target, why.text, why.cause)
            return []
        for target in targets:
            _work(site, target, found)
        _in_container(site, name, targets, found)
        return targets


def _work(site: _Site, target: Target, found: Findings) -> None:
    """Make the checks of one target on the machine itself, not in a container."""
    others = [*answers.RATES.values(), answers.COPY, answers.HOST, answers.MEMORY, answers.ONNX]
    site.progress(f"{target.name}: comparing matrix products with those of the CPU")
    try:
        answer = _ask(site, "results", [target])
    except WorkFailedError as error:
        found.add(answers.RESULTS, target, answers.broken(answers.RESULTS, error))
        found.not_run(others, target, f"{answers.RESULTS.id} failed")
        return
    except UnsupportedError as error:
        found.not_run([answers.RESULTS, *others], target, f"{error}: {_other_wheels(site)}")
        return
    except StarvedError as error:
        found.not_run([answers.RESULTS, *others], target, str(error))
        return
    found.add(answers.RESULTS, target, answers.results(answer))
    steps = (
        ("rates", "measuring matrix products", tuple(answers.RATES.values()), _rates),
        ("bandwidth", "measuring copies", (answers.COPY, answers.HOST), _bandwidth),
        ("memory", "writing and reading its memory", (answers.MEMORY,), _memory),
        ("onnx", "running a model with ONNX Runtime", (answers.ONNX,), _onnx),
    )
    for mode, what, checks, take in steps:
        site.progress(f"{target.name}: {what}")
        try:
            take(_ask(site, mode, [target]), target, found)
        except WorkFailedError as error:
            found.add(checks[0], target, answers.broken(checks[0], error))
            found.not_run(checks[1:], target, f"{checks[0].id} failed")
        except StarvedError as error:
            found.not_run(checks, target, str(error))


def _ask(site: _Site, mode: str, targets: list[Target]) -> dict[str, typing.Any]:
    return work.ask(
        site.environment,
        mode,
        site.device,
        [target.device for target in targets],
        timeout=site.equipment.times.work,
        clock=site.equipment.clock(),
    )


def _other_wheels(site: _Site) -> str:
    return (
        "attach wheels of a PyTorch that has it (juju attach-resource "
        f"{site.settings.application} selftest-wheels=wheels.tar.gz)"
    )


def _rates(answer: dict[str, typing.Any], target: Target, found: Findings) -> None:
    for name, check in answers.RATES.items():
        if name not in answer["formats"]:
            why = "the GPU's hardware does not have this format"
            found.add(check, target, Said(Outcome.SKIPPED, why))
            continue
        value, size = (answer["formats"][name][key] for key in ("tflops", "size"))
        text = f"{value:.4g} TFLOPS with matrices of {size} by {size}"
        found.rates.append(Rate(check, target, value, text, name, judge.OF_GPU))


def _bandwidth(answer: dict[str, typing.Any], target: Target, found: Findings) -> None:
    within, there, back = (answer[key] for key in ("within", "to_device", "to_host"))
    text = f"{within:.4g} GB/s within the GPU, read and written"
    found.rates.append(Rate(answers.COPY, target, within, text, "within", judge.OF_GPU))
    text = f"{there:.4g} GB/s from the host, {back:.4g} GB/s to it"
    slower = min(there, back)
    found.rates.append(Rate(answers.HOST, target, slower, text, "host", judge.OF_LINK))


def _memory(answer: dict[str, typing.Any], target: Target, found: Findings) -> None:
    found.add(answers.MEMORY, target, answers.memory(answer))


def _onnx(answer: dict[str, typing.Any], target: Target, found: Findings) -> None:
    found.add(answers.ONNX, target, answers.onnx(answer))


def _in_container(site: _Site, name: str, targets: list[Target], found: Findings) -> None:
    """Check the results once more in a container, through the GPU runtime, as a task does."""
    target = targets[0]
    site.progress(f"{target.name}: the same in a task's container")
    runc = runcs.for_tasks(site.settings.runc)
    if missing := containers.missing(runc):
        found.not_run([answers.CONTAINER], target, f"{missing} is missing")
        return
    python = site.environment.python
    folders = (str(site.environment.folder), str(work.PROGRAM))
    count = len(targets) if site.device == "cuda" else 0
    timeout = site.equipment.times.work
    try:
        # PyTorch loads the driver's libraries too. In the container the runtime adds them.
        needed = [
            mount
            for mount in rootfs.interpreter(python, ["numpy", "torch"])
            if not pathlib.PurePath(mount.source).name.startswith(_OF_DRIVER)
        ]
        mounts = [*needed, *(Mount(folder, folder) for folder in folders)]
        step = Step(params=[f"GPU_COUNT={count}"], mounts=mounts)
        tasks = policy.task_folders()
        with Containers(runc, tasks) as made, made.create(name, step) as box:
            argv = work.argv(site.environment, "results", site.device)
            done = box.exec(argv, timeout=timeout)
        if done.returncode:
            raise WorkFailedError(work.broke_off(done.returncode, done.stderr, timeout))
        said = answers.results(work.answer(done.stdout))
    except UnsupportedError as error:
        said = Said(Outcome.NOT_RUN, f"{error}: {_other_wheels(site)}")
    except (process.CommandError, StarvedError) as error:
        said = Said(Outcome.NOT_RUN, str(error))
    except WorkFailedError as error:
        said = answers.broken(answers.CONTAINER, error)
    except (ContainerError, Refused) as error:
        why = f"no container with the GPU: {error}"
        said = Said(Outcome.FAILED, why, remedy="Fix what the level isolation finds")
    found.add(answers.CONTAINER, target, said)


def _peers(site: _Site, targets: list[Target], free: list[Target], found: Findings) -> None:
    """Check copies between all free whole GPUs, in one process that has all of them."""
    whole = [target for target in free if not (target.gpu and target.gpu.mig_enabled)]
    if site.device == "cuda" and len(whole) < 2:
        busy = len(free) < len(targets)
        why = "no other GPU is free" if busy else "there is no other whole GPU to copy to"
        for target in free:
            outcome = Outcome.NOT_RUN if busy else Outcome.SKIPPED
            found.add(answers.PEER, target, Said(outcome, why))
        return
    with _reserved(site, [target.gpu for target in whole]) as (_, why):
        if why:
            for target in whole:
                found.not_run([answers.PEER], target, why.text, why.cause)
            return
        site.progress("Copying between the GPUs")
        try:
            pairs = _ask(site, "peer", whole)["pairs"]
        except (WorkFailedError, UnsupportedError, StarvedError) as error:
            for target in whole:
                found.not_run([answers.PEER], target, str(error))
            return
    blamed = answers.blamed(pairs, len(whole))
    for index, target in enumerate(whole):
        mine = [pair for pair in pairs if pair["from"] == index]
        slowest = min(pair["gbps"] for pair in mine)
        text = f"{slowest:.4g} GB/s to the slowest of {len(mine)}"
        if not all(pair["direct"] for pair in mine):
            text += ", through the host's memory"
        if index in blamed:
            wrong = sum(p["wrong"] for p in pairs if index in (p["from"], p["to"]))
            text = f"copies to other GPUs wrong: {wrong} words to or from this GPU"
            found.add(answers.PEER, target, Said(Outcome.FAILED, text, slowest))
        else:
            rate = Rate(answers.PEER, target, slowest, text, "peer", judge.OF_LINK)
            found.rates.append(rate)
