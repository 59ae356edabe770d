# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A sick GPU is reset, or a reboot asked for, where gpu-recovery allows it: never under a job."""

import collections.abc
import dataclasses
import datetime
import logging
import time
import typing

from gpu_agent.availability import lease_report as leases
from gpu_agent.availability import quarantine, retests
from gpu_agent.gpu.vendors import detect
from gpu_agent.gpu.vendors.nvidia import kernel_modules
from gpu_agent.gpu.vendors.nvidia import nvml_health as health
from gpu_agent.gpu.vendors.nvidia import reset as gpu_reset
from gpu_agent.gpu.vendors.nvidia.nvml_health import Health
from gpu_agent.model.inventory import Gpu, State, Vendor
from gpu_selftest import service
from lifecycle import remediation_record as recovery_record
from machine import isolated_call as apart
from machine import locks
from options.part import Part
from plan import gpu_remediation as gpu_recovery
from plan.gpu_remediation import Patient, Site, Step
from plan.model import Plan
from plan.state import Quarantine, UnitState

# What has the GPUs open beside their jobs.
WATCH: typing.Final = "gpu-ci-health.service"

# How long the driver may take, in seconds.
_PATIENCE: typing.Final = 10.0

_log = logging.getLogger(__name__)
_Progress = collections.abc.Callable[[str], None]


def ensure(state: UnitState, wanted: Plan, progress: _Progress) -> tuple[str, ...]:
    """Reset what a reset helps, and have it tested; tell what a reboot would help.

    Args:
        state: what was found.
        wanted: what this unit is to be.
        progress: told what is done.

    Returns:
        The GPUs that the machine is to be rebooted for as soon as no job runs: for reboot.prepare.
    """
    told = state.inventory is not None and Part.UNIT not in state.frozen
    if state.options.gpu_recovery == "none" or not told or state.leaving:
        return ()
    try:
        for uuid in recovery_record.returned():
            _have_tested(uuid, "the machine was rebooted for it")
        while True:
            # What the self-test or the operator has brought back meanwhile is out no more.
            site = _site(state, wanted, [one for one in quarantine.read() if one.level])
            cure = gpu_recovery.decide(site)
            if cure.step is not Step.RESET:
                _tell_why_not(site)
                return cure.uuids
            _reset(cure.uuids[0], progress)
    except OSError as error:
        # What can't be noted is not done: the next event tries again.
        _log.warning("gpu-recovery: %s", error)
        return ()


def _site(state: UnitState, wanted: Plan, out: list[Quarantine]) -> Site:
    """What the decision rests on.

    Raises:
        OSError: that can't be told now.
    """
    inventory, held = state.inventory, leases.holders()
    ready = inventory is not None and inventory.state is State.READY
    gpus = {gpu.uuid: gpu for gpu in inventory.gpus} if inventory and ready else {}
    told = _ask(tuple(one.uuid for one in out if one.uuid in gpus))
    asked = {ask.uuid for ask in retests.read()}
    occupied = [lease for lease in (held or {}).values() if lease.occupied]
    used = {device for lease in occupied for device in lease.devices}
    used |= {uuid for uuid, _ in state.cordoned}
    nvidia = inventory is not None and inventory.vendor is Vendor.NVIDIA
    # Another state is the driver's, and auto-reboot's.
    known = ready or (inventory is not None and inventory.state is State.HUNG)
    others = held is None or not known or wanted.reboot or state.driver.changing
    return Site(
        wish=state.options.gpu_recovery,
        patients=tuple(
            dataclasses.replace(
                _patient(one, gpus.get(one.uuid), told, used), asked=one.uuid in asked
            )
            for one in out
        ),
        made=recovery_record.read().made,
        now=time.time(),
        boot=kernel_modules.boot(kernel_modules.ROOT),
        uptime=time.clock_gettime(time.CLOCK_BOOTTIME),
        can_reset=nvidia and not state.driver.container,
        joined=state.driver.nvswitch,
        all_idle=all(used.isdisjoint({gpu.uuid, *gpu.devices}) for gpu in gpus.values()),
        engaged=others or _is_engaged(),
    )


def _is_engaged() -> bool:
    """Whether a self-test or a reset is at the GPUs."""
    testing = service.running() is not None or bool(locks.holder(service.LOCK))
    return testing or gpu_reset.is_running()


def _ask(uuids: tuple[str, ...]) -> dict[str, Health]:
    """What the driver says of these GPUs; nothing of any where it does not answer."""
    try:
        return apart.call(lambda: health.read(uuids), _PATIENCE, note=detect.HANGS)
    except apart.HungError:
        return {}


def _patient(
    entry: Quarantine, gpu: Gpu | None, told: dict[str, Health], used: set[str]
) -> Patient:
    found = told.get(entry.uuid)
    since = datetime.datetime.fromisoformat(entry.since.replace("Z", "+00:00") or "1970-01-01")
    patient = Patient(entry.uuid, entry.level, entry.check, since.timestamp(), answers=False)
    if gpu is None or found is None or found.failure:
        return patient
    rows, pages = found.remapped_rows, found.retired_pages_pending
    return dataclasses.replace(
        patient,
        answers=True,
        action=found.recovery_action,
        pending=bool(rows and rows.pending) or bool(pages),
        uncorrected=(found.uncorrected_volatile or 0)
        + (found.sram.uncorrected_volatile if found.sram else 0),
        idle=used.isdisjoint({gpu.uuid, *gpu.devices}) and not found.computing,
        whole=not gpu.mig_enabled,
    )


def _reset(uuid: str, progress: _Progress) -> None:
    """Reset a GPU, and have it tested if that went well.

    Raises:
        OSError: it can't be noted, so that it was not made.
    """
    persistent = bool((_ask((uuid,)).get(uuid) or Health()).persistence)
    recovery_record.begin(Step.RESET, (uuid,))
    progress(f"Resetting {uuid}, which nobody uses")
    why = gpu_reset.reset(uuid, persistent=persistent, beside=WATCH)
    recovery_record.conclude(why or "it was reset")
    _log.warning("gpu-recovery: %s: %s", uuid, f"no reset: {why}" if why else "it was reset")
    if not why:
        _have_tested(uuid, "it was reset")


def _have_tested(uuid: str, why: str) -> None:
    entry = quarantine.find(uuid)
    if entry and entry.level:
        retests.ask(uuid, entry.level, why)


def _tell_why_not(site: Site) -> None:
    needs = {one.uuid: gpu_recovery.need(one, site) for one in site.patients}
    sick = ", ".join(uuid for uuid, step in needs.items() if step is not Step.NOTHING)
    if sick and not site.can_reset:
        _log.warning(
            "gpu-recovery: nothing can be done for %s from here: a reset is for GPUs of NVIDIA's, "
            "and where this is a container, for its host",
            sick,
        )
