# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reads the state of this unit and its machine; changes nothing."""

import collections.abc
import dataclasses
import pathlib

from ci import systems
from ci.system import CiSystem
from gpu_agent.availability import external_processes as foreign
from gpu_agent.availability import external_use, quarantine
from gpu_agent.availability import lease_report as leases
from gpu_agent.diagnosis import machine as facts
from gpu_agent.gpu.kernel import sysfs as kernel
from gpu_agent.gpu.vendors import detect, registry
from gpu_agent.gpu.vendors import device_nodes as nodes
from gpu_agent.gpu.vendors.vendor import Vendor
from gpu_agent.health import service as health_service
from gpu_agent.model import errors
from gpu_agent.model.host import Driver, Machine, Packaged
from gpu_agent.model.inventory import Inventory
from gpu_agent.model.verdict import Verdict
from gpu_agent.runtime import policy
from gpu_runtime.unavailable import Unavailable
from gpu_selftest import verdict as last_test
from host.nvidia_toolkit import NvidiaToolkit
from lifecycle.drain import Drainer
from lifecycle.driver_upgrade import record as driver_record
from lifecycle.driver_upgrade import steps as walk
from lifecycle.records import Records
from machine import packages
from parts import health_watch
from plan import status
from plan.state import Quarantine, RememberedIds, UnitState
from relations import juju, offers, peers

External = tuple[tuple[str, Unavailable], ...]
"""UUIDs of GPUs that are in use outside CI, each with the cause."""


def idle_gpus() -> int:
    """Return the number of GPUs here although enable-gpu is false.

    In a container /sys shows all GPUs of its host: without a device node none belongs to it.

    Raises:
        OSError: /sys or /dev cannot be read now.
    """
    contained = kernel.in_container(pathlib.Path("/"))
    return len(detect.cards()) if not contained or nodes.present() else 0


def driver(vendor: Vendor) -> Driver:
    """Return the state of the driver of a vendor's GPUs.

    Raises:
        OSError, machine.packages.PackageError, gpu_agent.model.errors.UnknownError: it cannot be
            read now.
    """
    found = vendor.driver()
    if vendor.packaged_driver:
        return dataclasses.replace(found, changing=driver_record.is_open())
    return found


def external(inventory: Inventory) -> External:
    """Return the GPUs that are in use outside CI."""
    return foreign.look(inventory, leases.holders, external_use.read)


@dataclasses.dataclass(frozen=True)
class Looks:
    """The calls by which a hook looks at the machine and its GPUs; the defaults are the real ones.

    None of them changes anything. A test hands in answers.

    Attributes:
        machine: the machine, for a unit with a worker.
        architecture: the machine's architecture, for a unit without one.
        nodes: the device nodes of GPUs.
        gpus: the GPUs; takes the option gpu-vendor.
        idle_gpus: the number of GPUs although enable-gpu is false.
        verdict: the verdict of the last self-test.
        quarantined: the quarantined GPUs.
        handed_out: the UUIDs of the GPUs that tasks may get.
        external: the GPUs that are in use outside CI.
        driver: the driver of a vendor's GPUs.
        toolkit: the container toolkit as packages.
        upgrade: the text about the last driver upgrade.
        watches: whether the GPU health service runs.
        suspect: why the GPU health service quarantines no further GPU; empty: it does.
        metrics_taken: the port of the GPU metrics if another program has it; else 0.
    """

    machine: collections.abc.Callable[[], Machine] = facts.machine
    architecture: collections.abc.Callable[[], str] = facts.architecture
    nodes: collections.abc.Callable[[], tuple[str, ...]] = nodes.present
    gpus: collections.abc.Callable[[str], Inventory] = detect.in_time
    idle_gpus: collections.abc.Callable[[], int] = idle_gpus
    verdict: collections.abc.Callable[[], Verdict | None] = last_test.verdict
    quarantined: collections.abc.Callable[[], tuple[Quarantine, ...]] = quarantine.read
    handed_out: collections.abc.Callable[[], tuple[str, ...]] = policy.handed_out
    external: collections.abc.Callable[[Inventory], External] = external
    driver: collections.abc.Callable[[Vendor], Driver] = driver
    toolkit: collections.abc.Callable[[], Packaged] = NvidiaToolkit().look
    upgrade: collections.abc.Callable[[], str] = walk.said
    watches: collections.abc.Callable[[], bool] = health_service.is_running
    suspect: collections.abc.Callable[[], str] = health_service.suspect
    metrics_taken: collections.abc.Callable[[], int] = health_watch.taken_port


def at_unit(model: juju.Model, ci: CiSystem, looks: Looks, records: Records) -> UnitState:
    """Return the state of this unit.

    Args:
        model: Juju's, as this hook sees it.
        ci: the unit's CI system.
        looks: the calls that look at the machine.
        records: what the unit keeps on its machine.

    Raises:
        gpu_agent.model.errors.UnknownError: the machine cannot be read now.
    """
    room, wrong = systems.chosen(model.config)
    options = juju.read_options(model, room.options, wrong)
    asked = options.enable_gpu and options.has_worker
    try:
        # The device nodes before the GPUs are read.
        seen = looks.nodes() if asked else ()
        inventory = looks.gpus(options.gpu_vendor) if asked else None
        verdict = looks.verdict() if asked else None
        quarantined = looks.quarantined() if asked else ()
        idle = looks.idle_gpus() if options.has_worker and not asked else 0
        drives, packaged, upgrade = at_software(inventory, looks)
        rebooted_for, rests = records.unit.rebooted_for(), records.drain.rests()
    except (OSError, packages.PackageError) as error:
        raise errors.unknown(error) from error
    return UnitState(
        options=options,
        unit=model.unit.name,
        machine=looks.machine() if options.has_worker else Machine(looks.architecture()),
        agent=ci.agent(options),
        ci=ci.observe(options),
        inventory=inventory,
        idle_gpus=idle,
        nodes=seen,
        driver=drives,
        packaged=packaged,
        rebooted_for=rebooted_for,
        upgrade=upgrade,
        external=looks.external(inventory) if inventory else (),
        remembered=records.unit.remembered_ids() if asked else RememberedIds(),
        handed_out=looks.handed_out() if asked else (),
        quarantined=quarantined,
        verdict=verdict,
        wheels=juju.resource(model, juju.WHEELS) if asked else "",
        planned_units=peers.units(model),
        elsewhere=offers.read(model),
        rests=rests,
        leaving=records.unit.is_leaving(),
    )


def at_software(inventory: Inventory | None, looks: Looks) -> tuple[Driver, Packaged, str]:
    """Return driver and container toolkit for these GPUs, and the text about a driver upgrade.

    Raises:
        OSError, machine.packages.PackageError, gpu_agent.model.errors.UnknownError: they
        cannot be read now.
    """
    if inventory is None:
        return Driver(), Packaged(), ""
    vendor = registry.find(inventory.vendor)
    packaged = looks.toolkit() if vendor.grant.by_runtime else Packaged()
    return looks.driver(vendor), packaged, looks.upgrade()


def at_services(drainer: Drainer, looks: Looks) -> status.Running:
    """Return the current state of the agent's services and of a drain."""
    return status.Running(
        watch=looks.watches(),
        suspect=looks.suspect(),
        rest=drainer.look(),
        metrics_taken=looks.metrics_taken(),
    )
