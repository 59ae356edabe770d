# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reads the state of this unit and its machine; changes nothing."""

import dataclasses
import pathlib
import typing

from ci import systems
from ci.system import CiSystem
from gpu_agent.availability import external_processes as foreign
from gpu_agent.availability import external_use, quarantine
from gpu_agent.availability import lease_report as leases
from gpu_agent.diagnosis import machine as facts
from gpu_agent.gpu.kernel import sysfs as kernel
from gpu_agent.gpu.vendors import detect, registry
from gpu_agent.gpu.vendors import device_nodes as nodes
from gpu_agent.health import service as health_service
from gpu_agent.model import errors
from gpu_agent.model.host import Driver, Machine, Packaged
from gpu_agent.model.inventory import Inventory
from gpu_agent.model.verdict import Verdict
from gpu_agent.runtime import policy
from gpu_selftest import verdict as last_test
from host import nvidia_toolkit as toolkit
from lifecycle import drain
from lifecycle import unit_record as memory
from lifecycle.driver_upgrade import record as driver_record
from lifecycle.driver_upgrade import steps as walk
from machine import packages
from options.table import Options
from parts import health_watch as watch
from plan import status
from plan.state import Quarantine, RememberedIds, UnitState
from relations import juju, offers, peers

Gpus = tuple[tuple[str, ...], Inventory | None, Verdict | None, tuple[Quarantine, ...]]
"""Device nodes before the GPUs are read, GPUs, last self-test, quarantined GPUs."""
_NO_GPUS: typing.Final[Gpus] = ((), None, None, ())


def at_unit(model: juju.Model, ci: CiSystem) -> UnitState:
    """Return the state of this unit.

    Raises:
        gpu_agent.model.errors.UnknownError: the machine cannot be read now.
    """
    room, wrong = systems.chosen(model.config)
    options = juju.read_options(model, room.options, wrong)
    asked = options.enable_gpu and options.has_worker
    try:
        seen, inventory, verdict, quarantined = at_gpus(options) if asked else _NO_GPUS
        idle = at_idle_gpus() if options.has_worker and not asked else 0
        drives, packaged, upgrade, rebooted_for = at_software(inventory)
        rests = drain.rests()
    except (OSError, packages.PackageError) as error:
        raise errors.unknown(error) from error
    return UnitState(
        options=options,
        unit=model.unit.name,
        machine=facts.machine() if options.has_worker else Machine(facts.architecture()),
        agent=ci.agent(options),
        ci=ci.observe(options),
        inventory=inventory,
        idle_gpus=idle,
        nodes=seen,
        driver=drives,
        packaged=packaged,
        rebooted_for=rebooted_for,
        upgrade=upgrade,
        external=foreign.look(inventory, leases.holders, external_use.read) if inventory else (),
        remembered=memory.remembered_ids() if asked else RememberedIds(),
        handed_out=policy.handed_out() if asked else (),
        quarantined=quarantined,
        verdict=verdict,
        wheels=juju.resource(model, juju.WHEELS) if asked else "",
        planned_units=peers.units(model),
        elsewhere=offers.read(model),
        rests=rests,
        leaving=memory.is_leaving(),
    )


def at_gpus(options: Options) -> Gpus:
    """Return the state of the GPUs.

    Raises:
        OSError: it cannot be read now.
    """
    seen, inventory = nodes.present(), detect.in_time(options.gpu_vendor)
    return seen, inventory, last_test.verdict(), quarantine.read()


def at_idle_gpus() -> int:
    """Return the number of GPUs here although enable-gpu is false.

    In a container /sys shows all GPUs of its host: without a device node none belongs to it.

    Raises:
        OSError: /sys or /dev cannot be read now.
    """
    contained = kernel.in_container(pathlib.Path("/"))
    return len(detect.cards()) if not contained or nodes.present() else 0


def at_software(inventory: Inventory | None) -> tuple[Driver, Packaged, str, str]:
    """Return the driver and container toolkit for these GPUs.

    Returns:
        Both, the text about the last driver upgrade, and the driver version of the last reboot by
        the charm.

    Raises:
        OSError, machine.packages.PackageError, gpu_agent.model.errors.UnknownError: they
        cannot be read now.
    """
    rebooted_for = memory.rebooted_for()
    if inventory is None:
        return Driver(), Packaged(), "", rebooted_for
    vendor = registry.find(inventory.vendor)
    drives = vendor.driver()
    if vendor.packaged_driver:
        drives = dataclasses.replace(drives, changing=driver_record.is_open())
    packaged = toolkit.look() if vendor.grant.by_runtime else Packaged()
    return drives, packaged, walk.said(), rebooted_for


def at_services(drainer: drain.Drainer) -> status.Running:
    """Return the current state of the agent's services and of a drain."""
    return status.Running(
        watch=health_service.is_running(),
        suspect=health_service.suspect(),
        rest=drainer.look(),
        metrics_taken=watch.taken_port(),
    )
