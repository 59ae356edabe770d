# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reads the state of this unit and its machine; changes nothing."""

import dataclasses
import pathlib
import typing

from ci.concourse import release, service
from ci.concourse.web import health as web_health
from ci.concourse.web import local_postgresql, web
from ci.concourse.web import tls as web_tls
from ci.concourse.worker import keys as worker_keys
from ci.concourse.worker import worker
from gpu_agent.availability import external_processes as foreign
from gpu_agent.availability import external_use, quarantine
from gpu_agent.availability import lease_report as leases
from gpu_agent.diagnosis import machine as facts
from gpu_agent.gpu.kernel import device_nodes as nodes
from gpu_agent.gpu.kernel import sysfs as kernel
from gpu_agent.gpu.vendors import detect
from gpu_agent.gpu.vendors.nvidia import driver_state
from gpu_agent.health import service as health_service
from gpu_agent.model import errors
from gpu_agent.model.host import Driver, Machine, Packaged
from gpu_agent.model.inventory import Inventory, Vendor
from gpu_agent.model.verdict import Verdict
from gpu_agent.runtime import policy
from gpu_agent.runtime import task_mounts as folders
from gpu_selftest import verdict as last_test
from host import network
from host import nvidia_toolkit as toolkit
from lifecycle import drain
from lifecycle import unit_record as memory
from lifecycle.driver_upgrade import record as driver_record
from lifecycle.driver_upgrade import steps as walk
from machine import packages
from options.table import Options
from parts import health_watch as watch
from plan import status
from plan.network import Network
from plan.state import Quarantine, RememberedIds, UnitState
from relations import juju, offers, peers, postgresql, tls_certificates, tsa
from relations.model import Web

Gpus = tuple[tuple[str, ...], Inventory | None, Verdict | None, tuple[Quarantine, ...]]
"""Device nodes before the GPUs are read, GPUs, last self-test, quarantined GPUs."""
_NO_GPUS: typing.Final[Gpus] = ((), None, None, ())


def at_unit(model: juju.Model, web_keys: peers.WebKeys) -> UnitState:
    """Return the state of this unit.

    Raises:
        gpu_agent.model.errors.UnknownError: the machine cannot be read now.
    """
    options = juju.read_options(model)
    asked = options.enable_gpu and options.has_worker
    try:
        seen, inventory, verdict, quarantined = at_gpus(options) if asked else _NO_GPUS
        idle = at_idle_gpus() if options.has_worker and not asked else 0
        drives, packaged, upgrade, rebooted_for = at_software(inventory)
    except (OSError, packages.PackageError) as error:
        raise errors.unknown(error) from error
    return UnitState(
        options=options,
        unit=model.unit.name,
        worker_name=worker.name() or f"{model.name}-{model.unit.name.replace('/', '-')}",
        machine=facts.machine() if options.has_worker else Machine(facts.architecture()),
        network=at_network(model) if options.has_web else Network(),
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
        tarball=juju.resource(model, juju.TARBALL, release.is_from),
        wheels=juju.resource(model, juju.WHEELS) if asked else "",
        installed=current.version if (current := release.installed()) else "",
        tsa=tsa.read_webs(model),
        web=at_web(model, web_keys) if options.has_web else Web(),
        planned_units=peers.units(model),
        elsewhere=offers.read(model),
        local_database=local_postgresql.kept(),
        idle_relations=juju.idle_relations(model, options),
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
    if inventory.vendor is not Vendor.NVIDIA:
        found = Driver(container=kernel.in_container(pathlib.Path("/")))
        return found, Packaged(), walk.said(), rebooted_for
    found = dataclasses.replace(driver_state.look(), changing=driver_record.is_open())
    return found, toolkit.look(), walk.said(), rebooted_for


def at_network(model: juju.Model) -> Network:
    """Return the addresses at which others could reach this unit's web.

    Raises:
        gpu_agent.model.errors.UnknownError: the machine's addresses cannot be read now.
    """
    return tsa.network(model, network.interfaces(), web.peer_address())


def at_services() -> status.Running:
    """Return the current state of this unit's services."""
    return status.Running(
        web=web.healthy(),
        certificate=web_health.certificate_end(),
        lost_database=web_health.lost_database(),
        worker=worker.healthy(),
        connected=worker.is_connected(),
        copies=worker.copies_volumes(),
        watch=health_service.is_running(),
        suspect=health_service.suspect(),
        aside=local_postgresql.aside(),
        folder=folders.refused(),
        rest=drain.look(),
        failing=service.failing(),
        taken=service.taken(),
        metrics_taken=watch.taken_port(),
    )


def at_web(model: juju.Model, web_keys: peers.WebKeys) -> Web:
    """Return Juju's data about this unit's web: database, secrets and workers' keys."""
    offer = postgresql.read(model)
    shared, lost = web_keys.read()
    certified = tls_certificates.is_related(model)
    signed = tls_certificates.read(model, web_tls.pending())
    keys, refused = tsa.read_worker_keys(model)
    return Web(
        database_related=offer.related,
        database=offer.database,
        database_withheld=offer.withheld,
        database_refused=offer.refused,
        secrets=shared,
        secrets_lost=lost,
        tsa_public_key=web.public_key(shared) if shared else "",
        certificates_related=certified,
        certificate=web_tls.certificate(signed.chain) if certified else None,
        certificate_refused=signed.refused,
        certificate_revoked=signed.revoked,
        tsa_next_public_key=web.next_public_key(shared) if shared else "",
        worker_keys=(*keys, *worker_keys.every()),
        refused=refused,
    )
