# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Bring this machine to what its settings ask for: GPUs, engines, self-test, health service."""

import collections.abc
import dataclasses
import pathlib
import typing

from gpu_agent import paths
from gpu_agent.availability import external_processes, external_use
from gpu_agent.availability import lease_report as leases
from gpu_agent.diagnosis import machine as machine_facts
from gpu_agent.diagnosis import states
from gpu_agent.diagnosis.facts import Facts, Options
from gpu_agent.engines import registry as engines
from gpu_agent.engines.engine import EnginesPlan
from gpu_agent.gpu.vendors import detect, registry
from gpu_agent.gpu_run import service as gpu_run_service
from gpu_agent.health import service as health_service
from gpu_agent.health import settings as health_settings
from gpu_agent.model import inventory as model_inventory
from gpu_agent.model.card import Card
from gpu_agent.model.host import Machine
from gpu_agent.model.inventory import Gpu, Inventory
from gpu_agent.runtime import install as runtime
from gpu_agent.runtime import policy
from gpu_agent.runtime import runc as runcs
from gpu_agent.runtime.settings import GpuPlan
from gpu_runtime.unavailable import UNUSABLE, Unavailable
from gpu_selftest import due as next_test
from gpu_selftest import last_pass
from gpu_selftest import service as selftest_service
from gpu_selftest import settings as selftest_settings
from gpu_selftest.check import Level
from gpu_selftest.last_pass import Records
from gpu_selftest.results import Report
from gpu_selftest.retests import Retests
from gpu_standalone import installation, owner
from gpu_standalone.installation import Say
from gpu_standalone.settings import Settings
from gpu_standalone.wording import without_juju
from machine import files, process
from machine.errors import PartError

# How long a self-test is followed, in seconds: isolation takes 60 at most, and ends itself after
# 90. One by hand or at boot is waited for as long: all but compute and burn-in end.
_PATIENCE: typing.Final = 120
_RUNC_REMEDY: typing.Final = "install the package runc"


class StartError(PartError):
    """The GPUs of this machine cannot be handed out; the text says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Started:
    """What `start` has brought about.

    Attributes:
        gpus: the GPUs that are handed out, in the order of their indexes.
        report: the report of the self-test that ran; None if none was due, or it still runs.
    """

    gpus: tuple[Gpu, ...]
    report: Report | None


@dataclasses.dataclass(frozen=True)
class Found:
    """The machine and what is to be done with it.

    Attributes:
        settings: of this machine.
        inventory: its GPUs.
        machine: its other facts.
        gpus: the GPUs to hand out, in the order of their indexes.
    """

    settings: Settings
    inventory: Inventory
    machine: Machine
    gpus: tuple[Gpu, ...]


def look() -> None:
    """Look for external use and unusable GPUs by the defaults: the settings cannot be read."""
    _look(Settings(), detect.in_time(), machine_facts.machine())


def _look(settings: Settings, inventory: Inventory, machine: Machine) -> states.Finding | None:
    """Close the GPUs that are in use outside or unusable; return what keeps all from use."""
    wrong = _obstacle(settings, inventory, machine)
    outside = external_processes.look(inventory, leases.holders, external_use.read)
    external_use.ensure((*outside, *unusable(policy.handed_out(), inventory.gpus, wrong)))
    return wrong


def unusable(
    handed_out: collections.abc.Iterable[str], gpus: tuple[Gpu, ...], wrong: states.Finding | None
) -> tuple[tuple[str, Unavailable], ...]:
    """Return the GPUs that requests cannot use now, each with the cause, as plan.gpus does.

    Args:
        handed_out: UUIDs of the GPUs that requests may get.
        gpus: all that the machine has.
        wrong: what keeps all from use; None: nothing.
    """
    if wrong:
        cause = Unavailable(UNUSABLE, "host-state", wrong.what)
        return tuple((uuid, cause) for uuid in handed_out)
    missing = Unavailable(UNUSABLE, "missing", "not on this machine")
    no_mig = Unavailable(UNUSABLE, "mig-without-devices", "in MIG mode without a MIG device")
    here = {gpu.uuid: gpu for gpu in gpus}
    return tuple(
        (uuid, no_mig if uuid in here else missing)
        for uuid in handed_out
        if uuid not in here or not here[uuid].devices
    )


def _obstacle(settings: Settings, inventory: Inventory, machine: Machine) -> states.Finding | None:
    """Return what keeps the GPUs from use, such as a driver or runc that is missing."""
    vendor = registry.find(inventory.vendor)
    options = Options(
        gpu_vendor=settings.gpu_vendor,
        gpu_driver="none",
        may_reboot=False,
        toolkit_version="",
        allow_vulnerable_toolkit=settings.allow_vulnerable_toolkit,
    )
    facts = Facts(
        inventory=inventory,
        unit=owner.NAME,
        options=options,
        driver=vendor.driver(),
        toolkit=machine.toolkit,
        instance=machine.instance,
    )
    if wrong := states.blocking(facts):
        return wrong
    if not pathlib.Path(runcs.for_tasks("")).exists():
        return states.Finding("No runc on this machine", _RUNC_REMEDY, "runc-missing")
    return None


def chosen(settings: Settings, gpus: tuple[Gpu, ...], say: Say) -> tuple[Gpu, ...]:
    """Return the GPUs that gpu-device-ids names; an index means what the driver now calls so.

    Args:
        settings: of this machine.
        gpus: all that it has.
        say: reports ids that no GPU here has, as of a card that was removed.

    Raises:
        StartError: none is left, one is in MIG mode without MIG devices, or they are fewer than
            gpus-per-task.
    """
    here = ", ".join(f"{gpu.index} ({gpu.uuid}, {gpu.pci_address})" for gpu in gpus)
    asked = {text.lower() for text in settings.gpu_device_ids}
    found = tuple(gpu for gpu in gpus if not asked or not asked.isdisjoint(_names(gpu)))
    missing = sorted(asked.difference(*map(_names, gpus)))
    if missing:
        text = f'"gpu-device-ids": no GPU {", ".join(missing)} on this machine, which has {here}'
        if not found:
            raise StartError(f"{text}. Name some of these, or all")
        say(f"Warning: {text}")
    if empty := [str(gpu.index) for gpu in found if not gpu.devices]:
        raise StartError(
            f"GPU {', '.join(empty)} is in MIG mode without MIG devices: create them (sudo "
            "nvidia-smi mig -cgi <profiles> -C), or leave MIG mode"
        )
    have = len(model_inventory.devices(found))
    if settings.gpus_per_task > have:
        raise StartError(
            f'"gpus-per-task" is {settings.gpus_per_task}, and {have} can be handed out: use '
            f"{have} or less"
        )
    return found


def _names(gpu: Gpu) -> frozenset[str]:
    return frozenset({str(gpu.index), gpu.uuid.lower(), gpu.pci_address.lower()})


def _hand_out(found: Found) -> bool:
    """Install the GPU runtime. Return True if it changed."""
    settings, inventory, toolkit = found.settings, found.inventory, found.machine.toolkit
    by_runtime = registry.find(inventory.vendor).grant.by_runtime
    plan = GpuPlan(
        gpus=found.gpus,
        nvidia_runtime=toolkit.path if by_runtime and toolkit else "",
        allocation=settings.gpu_allocation,
        gpus_per_task=settings.gpus_per_task,
        wait_timeout=settings.gpu_wait_timeout,
        privileged_tasks="gpu" if settings.gpu_for_privileged_tasks else "no-gpu",
        driver=inventory.driver if by_runtime else "",
        cuda=inventory.cuda if by_runtime else "",
    )
    return runtime.apply(plan)


def _register(found: Found) -> None:
    """Register the GPU runtime with the engines, and with no others."""
    settings = found.settings
    by_runtime = registry.find(found.inventory.vendor).grant.by_runtime
    named = EnginesPlan(settings.engines, settings.default_engines, nvidia=by_runtime)
    engines.ensure(named if named.names else None)


def _serve_gpu_run(settings: Settings) -> None:
    if settings.gpu_run_group:
        gpu_run_service.install(settings.gpu_run_group)
    else:
        gpu_run_service.remove()


def _for_selftest(settings: Settings, gpus: tuple[Gpu, ...]) -> selftest_settings.Settings:
    least = settings.minimums
    return selftest_settings.Settings(
        unit=owner.NAME,
        vendor=settings.gpu_vendor,
        gpus=gpus,
        allocation=settings.gpu_allocation,
        min_gpu_memory_gib=least.gpu_memory,
        min_compute_capability=least.compute_capability,
        min_driver_version=least.driver,
        min_cpus=least.cpus,
        min_memory_gib=least.memory,
        gpu_driver="none",
        allow_vulnerable_toolkit=settings.allow_vulnerable_toolkit,
        files=runtime.installed(),
        wheels=settings.selftest_wheels,
        runc_remedy=_RUNC_REMEDY,
    )


def _watch(found: Found) -> None:
    """Run the GPU health service, which wakes no charm, or stop it."""
    settings, inventory, boot = found.settings, found.inventory, found.machine.boot
    if settings.gpu_health == "disabled":
        health_service.stop()
        return
    health_service.install(
        health_settings.Settings(
            unit="",
            dispatch=str(installation.COMMAND),
            mode=settings.gpu_health,
            vendor=inventory.vendor,
            boot=boot,
            cards=_cards(settings, inventory, boot, found.gpus),
            driver=inventory.driver,
            cuda=inventory.cuda,
            store=str(paths.STORE),
            unavailable_folders=(
                str(paths.EXTERNAL), str(paths.QUARANTINE), str(paths.CLOSED),
            ),
            max_quarantined=settings.quarantine_limit_percent,
            job_log="disabled",
            unused="ignore",
            metrics_port=settings.gpu_metrics_port,
        )
    )  # fmt: skip


def _cards(
    settings: Settings, inventory: Inventory, boot: str, gpus: tuple[Gpu, ...]
) -> tuple[Card, ...]:
    """Return what the health service watches: these GPUs, and those lost since the boot."""
    here = [
        Card(gpu.uuid, gpu.index, gpu.pci_address, registry.without_maker(gpu.model), gpu.devices)
        for gpu in gpus
    ]
    try:
        earlier = health_settings.parse(files.read_text(health_settings.PATH) or "")
    except ValueError:
        return tuple(here)
    known = earlier.cards if earlier.boot == boot else ()
    # Another card may be in the slot of a lost one.
    there = {gpu.uuid for gpu in inventory.gpus} | {gpu.pci_address for gpu in inventory.gpus}
    asked = {text.lower() for text in settings.gpu_device_ids}
    for card in known:
        names = {str(card.index), card.uuid.lower(), card.pci_address.lower()}
        if there.isdisjoint({card.uuid, card.pci_address}) and (not asked or asked & names):
            here.append(card)
    return tuple(sorted(here, key=lambda card: (card.index, card.uuid)))


def _test(found: Found, say: Say, *, repaired: bool) -> Report | None:
    """Install the self-test; run it if it is due, and those that the health service has requested.

    Raises:
        gpu_agent.install.AppError: the machine has no room for its programs.
        gpu_selftest.service.SelftestError: it ended without a verdict.
    """
    asked = found.settings.selftest_on_start
    selftest_service.install(on_start=asked, before="", needs="")
    kept = _for_selftest(found.settings, found.gpus)
    selftest_settings.write(kept)
    subject = last_pass.subject(kept, found.inventory, found.machine)
    report = None
    if asked and (level := next_test.due(subject, Records(), repaired=repaired)):
        now = selftest_service.running()
        if now and not Level.ISOLATION.includes(now.level):
            say(f"Self-test not started: one of level {now.level.value} still runs")
        else:
            report = run_test(level, say)
    Retests().ensure(say)
    return report


def run_test(
    level: Level, say: Say, *, gpu: str = "", minutes: int = 0, seconds: float = _PATIENCE
) -> Report | None:
    """Run the self-test and follow it. Return its report; None if it still runs.

    Args:
        level: the level.
        say: reports each step.
        gpu: index or UUID of the only GPU to test; empty: all that are handed out.
        minutes: the duration of a burn-in; 0: the self-test's default.
        seconds: how long it is followed.

    Raises:
        gpu_selftest.service.SelftestError: it cannot start, or ended without a verdict.
    """
    if other := selftest_service.wait_for_others(_PATIENCE):
        raise selftest_service.SelftestError(f"Another self-test still runs: {other}")
    name = selftest_service.start(level, gpu=gpu, minutes=minutes)
    return selftest_service.follow(
        name, seconds, lambda line: say(f"Self-test: {without_juju(line)}")
    )


@dataclasses.dataclass(frozen=True)
class Steps:
    """The calls by which `start` looks at the machine and changes it.

    The defaults are the real ones; a test hands in its own.

    Attributes:
        detect: finds the GPUs.
        machine: reads the other facts.
        look: closes GPUs that are in use outside or unusable; returns what keeps all from use.
        schedule: has `start` called again, at each boot and every five minutes.
        hand_out: installs the GPU runtime; returns whether it changed.
        reopen: lets requests get GPUs.
        watch: runs the GPU health service.
        test: installs the self-test and runs it if it is due.
        register: registers the GPU runtime with the engines.
        serve_gpu_run: installs gpu-run, or removes it.
    """

    detect: collections.abc.Callable[[str], Inventory] = detect.in_time
    machine: collections.abc.Callable[[], Machine] = machine_facts.machine
    look: collections.abc.Callable[[Settings, Inventory, Machine], states.Finding | None] = _look
    schedule: collections.abc.Callable[[], object] = installation.ensure_timer
    hand_out: collections.abc.Callable[[Found], bool] = _hand_out
    reopen: collections.abc.Callable[[], object] = installation.reopen
    watch: collections.abc.Callable[[Found], object] = _watch
    test: collections.abc.Callable[..., Report | None] = _test
    register: collections.abc.Callable[[Found], object] = _register
    serve_gpu_run: collections.abc.Callable[[Settings], object] = _serve_gpu_run


_STEPS: typing.Final = Steps()


def start(settings: Settings, say: Say, do: Steps = _STEPS) -> Started:
    """Hand out the GPUs as the settings say. What runs keeps its GPUs.

    If this is killed at any point, it can be called again. If the state of the machine is unknown,
    nothing changes, as in a hook of the charm: requests get what the records allow.

    Args:
        settings: of this machine.
        say: reports each step.
        do: the calls that look at the machine and change it.

    Raises:
        StartError: the GPUs cannot be used, or runc is missing: those that are handed out are
            closed. Or parts cannot be set up; the other parts are. Without the GPU runtime, that
            is the GPU health service alone.
        gpu_agent.model.errors.UnknownError, OSError: the machine cannot be read now.
    """
    inventory, machine = do.detect(settings.gpu_vendor), do.machine()
    if wrong := do.look(settings, inventory, machine):
        raise StartError(without_juju(str(wrong)))
    found = Found(settings, inventory, machine, chosen(settings, inventory.gpus, say))
    do.schedule()
    changed: list[bool] = []
    reports: list[Report | None] = []

    def hand_out() -> None:
        changed.append(do.hand_out(found))
        # A removal that was refused or killed has closed them.
        do.reopen()

    failed = failures(hand_out)
    if failed:
        failed += failures(lambda: do.watch(found))
    else:
        failed += failures(
            lambda: do.watch(found),
            lambda: reports.append(do.test(found, say, repaired=changed[0])),
            lambda: do.register(found),
            lambda: do.serve_gpu_run(settings),
        )
    if failed:
        raise StartError("\n".join(failed))
    return Started(found.gpus, reports[0])


def failures(*parts: collections.abc.Callable[[], object]) -> list[str]:
    """Set up each of these parts, also after one that fails. Return the texts of all errors."""
    failed: list[str] = []
    for part in parts:
        try:
            part()
        except (PartError, process.CommandError, OSError) as error:
            failed.append(str(error))
    return failed
