# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Resets a quarantined GPU or asks for a reboot, if the options allow it: never under a job."""

import collections.abc
import dataclasses
import datetime
import logging
import pathlib
import typing

from gpu_agent.availability import lease_report as leases
from gpu_agent.availability import quarantine, retests
from gpu_agent.gpu.vendors import detect, registry
from gpu_agent.gpu.vendors.nvidia import reset as gpu_reset
from gpu_agent.gpu.vendors.vendor import Reset, Vendor
from gpu_agent.model.gpu_health import Health
from gpu_agent.model.inventory import Gpu, Inventory, State
from gpu_agent.model.leases import Lease
from gpu_selftest import service
from lifecycle.remediation_record import RemediationRecord
from machine import isolated_call as apart
from machine import locks
from options.part import Part
from plan import gpu_remediation as gpu_recovery
from plan.gpu_remediation import Patient, Site, Step
from plan.model import Plan
from plan.state import Quarantine, UnitState

# This service has the GPUs open, and is stopped for a reset.
WATCH: typing.Final = "gpu-ci-health.service"

# How long the driver may take, in seconds.
_PATIENCE: typing.Final = 10.0

_log = logging.getLogger(__name__)
_Progress = collections.abc.Callable[[str], None]


class Gpus:
    """The GPUs of this machine, as a remedy meets them."""

    def __init__(self, patience: float = _PATIENCE, hangs: pathlib.Path = detect.HANGS) -> None:
        """Ask the driver nothing yet.

        Args:
            patience: how long the driver may take, in seconds.
            hangs: file that marks a call of the driver that still hangs.
        """
        self._patience, self._hangs = patience, hangs

    def quarantined(self) -> tuple[Quarantine, ...]:
        """Return the GPUs that are out of use, those that an operator has cordoned too."""
        return quarantine.read()

    def retests(self) -> set[str]:
        """Return the GPUs for which a self-test has been requested."""
        return {ask.uuid for ask in retests.read()}

    def have_tested(self, uuid: str, level: str, why: str) -> None:
        """Request a self-test of a quarantined GPU."""
        retests.ask(uuid, level, why)

    def holders(self) -> collections.abc.Mapping[str, Lease] | None:
        """Return the leases by their holders; None: they are not known."""
        return leases.holders()

    def is_engaged(self) -> bool:
        """Whether a self-test or a reset is at the GPUs."""
        testing = service.running() is not None or bool(locks.holder(service.LOCK))
        return testing or gpu_reset.is_running()

    def health(
        self, vendor: Vendor, uuids: tuple[str, ...]
    ) -> collections.abc.Mapping[str, Health]:
        """Return the driver's report on these GPUs; empty if the driver does not answer."""
        try:
            return apart.call(lambda: vendor.health(uuids), self._patience, note=self._hangs)
        except apart.HungError:
            return {}

    def reset(self, reset: Reset, uuid: str, *, persistent: bool) -> str:
        """Reset a GPU; return why that failed, one line, or an empty text."""
        return reset(uuid, persistent=persistent, beside=WATCH)


class Remediation:
    """Resets the quarantined GPUs that a reset may repair, and finds those that need a reboot."""

    def __init__(self, record: RemediationRecord, gpus: Gpus) -> None:
        """Begin with nothing.

        Args:
            record: the resets and reboots so far.
            gpus: those of this machine.
        """
        self._record, self._gpus = record, gpus

    def ensure(self, state: UnitState, wanted: Plan, progress: _Progress) -> tuple[str, ...]:
        """Reset and test the GPUs that a reset may repair; return those that need a reboot.

        Args:
            state: what was found.
            wanted: what this unit is to be.
            progress: reports each step.

        Returns:
            The GPUs that need a reboot of the machine, for reboot.Reboots.
        """
        inventory, options = state.inventory, state.options
        may_repair = options.gpu_recovery == "reset" or options.may_reboot_for_gpu
        if not may_repair or inventory is None or Part.UNIT in state.frozen or state.leaving:
            return ()
        vendor = registry.find(inventory.vendor)
        try:
            for uuid in self._record.returned():
                self._have_tested(uuid, "the machine was rebooted for it")
            while True:
                # The self-test or the operator may have returned GPUs to use meanwhile.
                out = [one for one in self._gpus.quarantined() if one.level]
                site = self._site(state, inventory, wanted, out)
                cure = gpu_recovery.decide(site)
                if cure.step is not Step.RESET or vendor.reset is None:
                    _tell_why_not(site)
                    return cure.uuids
                self._reset(vendor, vendor.reset, cure.uuids[0], progress)
        except OSError as error:
            # A step that cannot be noted is not made: the next event tries again.
            _log.warning("gpu-recovery: %s", error)
            return ()

    def _site(
        self, state: UnitState, inventory: Inventory, wanted: Plan, out: list[Quarantine]
    ) -> Site:
        """Return the facts for the decision.

        Raises:
            OSError: they cannot be read now.
        """
        vendor, held = registry.find(inventory.vendor), self._gpus.holders()
        ready = inventory.state is State.READY
        gpus = {gpu.uuid: gpu for gpu in inventory.gpus} if ready else {}
        told = self._gpus.health(vendor, tuple(one.uuid for one in out if one.uuid in gpus))
        asked = self._gpus.retests()
        occupied = [lease for lease in (held or {}).values() if lease.occupied]
        used = {device for lease in occupied for device in lease.devices}
        used |= {uuid for uuid, _ in state.external}
        # In another state the driver needs a remedy first.
        known = ready or inventory.state is State.HUNG
        others = held is None or not known or wanted.reboot or state.driver.changing
        clock = self._record.clock
        return Site(
            may_reset=state.options.gpu_recovery == "reset",
            may_reboot=state.options.may_reboot_for_gpu,
            patients=tuple(
                dataclasses.replace(
                    _patient(one, gpus.get(one.uuid), told, used), asked=one.uuid in asked
                )
                for one in out
            ),
            made=self._record.read().made,
            now=clock.now(),
            boot=clock.boot(),
            uptime=clock.since_boot(),
            can_reset=vendor.reset is not None and not state.driver.container,
            joined=state.driver.nvswitch,
            all_idle=all(used.isdisjoint({gpu.uuid, *gpu.devices}) for gpu in gpus.values()),
            engaged=others or self._gpus.is_engaged(),
        )

    def _reset(self, vendor: Vendor, reset: Reset, uuid: str, progress: _Progress) -> None:
        """Reset a GPU, and request a test if that succeeded.

        Raises:
            OSError: the reset cannot be noted and was not made.
        """
        health = self._gpus.health(vendor, (uuid,)).get(uuid) or Health()
        self._record.begin(Step.RESET, (uuid,))
        progress(f"Resetting idle GPU {uuid}")
        why = self._gpus.reset(reset, uuid, persistent=bool(health.persistence))
        self._record.conclude(why or "it was reset")
        _log.warning("gpu-recovery: %s: %s", uuid, f"no reset: {why}" if why else "it was reset")
        if not why:
            self._have_tested(uuid, "it was reset")

    def _have_tested(self, uuid: str, why: str) -> None:
        for entry in self._gpus.quarantined():
            if entry.uuid == uuid and entry.level:
                self._gpus.have_tested(uuid, entry.level, why)


def _patient(
    entry: Quarantine, gpu: Gpu | None, told: collections.abc.Mapping[str, Health], used: set[str]
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


def _tell_why_not(site: Site) -> None:
    needs = {one.uuid: gpu_recovery.need(one, site) for one in site.patients}
    sick = ", ".join(uuid for uuid, step in needs.items() if step is not Step.NOTHING)
    if sick and not site.can_reset:
        _log.warning(
            "gpu-recovery: cannot reset %s here: only NVIDIA GPUs can be reset, and those of a "
            "container only by its host",
            sick,
        )
