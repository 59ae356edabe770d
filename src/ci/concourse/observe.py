# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reads what there is of Concourse on this unit; changes nothing."""

import typing

from ci.concourse import release, service
from ci.concourse.plan.model import ConcourseState, IdleRelation, Rivals
from ci.concourse.plan.status import Running
from ci.concourse.web import health, local_postgresql, tls, web
from ci.concourse.worker import keys as worker_keys
from ci.concourse.worker import rivals, worker
from gpu_agent.runtime import task_mounts
from host import network
from options.table import Options
from plan.network import Network
from relations import juju, peers, postgresql, tls_certificates, tsa
from relations.model import Web

TARBALL: typing.Final = "concourse"


def at_unit(model: juju.Model, web_keys: peers.WebKeys, options: Options) -> ConcourseState:
    """Return what there is of Concourse on this unit.

    Raises:
        gpu_agent.model.errors.UnknownError: the machine's addresses cannot be read now.
    """
    installed = release.installed()
    return ConcourseState(
        worker_name=worker.name() or f"{model.name}-{model.unit.name.replace('/', '-')}",
        rivals=rivals.look() if options.has_worker else Rivals(),
        network=at_network(model) if options.has_web else Network(),
        tsa=tsa.read_webs(model),
        web=at_web(model, web_keys) if options.has_web else Web(),
        tarball=juju.resource(model, TARBALL, release.is_from),
        installed=installed.version if installed else "",
        local_database=local_postgresql.kept(),
        idle_relations=idle_relations(model, options),
    )


def at_network(model: juju.Model) -> Network:
    """Return the addresses at which others could reach this unit's web.

    Raises:
        gpu_agent.model.errors.UnknownError: the machine's addresses cannot be read now.
    """
    return tsa.network(model, network.interfaces(), web.peer_address())


def at_web(model: juju.Model, web_keys: peers.WebKeys) -> Web:
    """Return Juju's data about this unit's web: database, secrets and workers' keys."""
    offer = postgresql.read(model)
    shared, lost = web_keys.read()
    certified = tls_certificates.is_related(model)
    signed = tls_certificates.read(model, tls.pending())
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
        certificate=tls.certificate(signed.chain) if certified else None,
        certificate_refused=signed.refused,
        certificate_revoked=signed.revoked,
        tsa_next_public_key=web.next_public_key(shared) if shared else "",
        worker_keys=(*keys, *worker_keys.every()),
        refused=refused,
    )


def at_services() -> Running:
    """Return the current state of Concourse's services."""
    return Running(
        web=web.healthy(),
        certificate=health.certificate_end(),
        lost_database=health.lost_database(),
        worker=worker.healthy(),
        connected=worker.is_connected(),
        copies=worker.copies_volumes(),
        aside=local_postgresql.aside(),
        folder=task_mounts.refused(),
        failing=service.failing(),
        taken=service.taken(),
    )


def idle_relations(model: juju.Model, options: Options) -> tuple[IdleRelation, ...]:
    """Return the relations that do nothing for a unit of these options, which Juju does not say.

    A second relation to the same application says what the first one does; a unit without a web,
    or without a worker, has no use for those of one.
    """
    useless: list[str] = []
    if not options.deployment_mode:  # it can't be used, and says so
        return ()
    if not options.has_web:
        useless += ["web-tsa", "tsa", "postgresql", "certificates"]
    if not options.has_worker:
        useless += ["worker-tsa", "flight"]
    found = [IdleRelation(name, app) for name in useless for app in _related(model, name)]
    for first, second in (("web-tsa", "tsa"), ("worker-tsa", "flight")):
        if first not in useless:
            both = sorted({*_related(model, first)} & {*_related(model, second)})
            found += [IdleRelation(second, app, first) for app in both]
    return tuple(found)


def _related(model: juju.Model, endpoint: str) -> list[str]:
    """Return the applications on the other side of an endpoint's relations."""
    return sorted({one.app.name for one in model.relations[endpoint] if one.app})
