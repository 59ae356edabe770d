# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reads what there is of Concourse on this unit; changes nothing."""

import typing

from ci.concourse import release
from ci.concourse.looks import Looks
from ci.concourse.outside import Outside
from ci.concourse.plan.model import ConcourseState, IdleRelation, Rivals
from ci.concourse.plan.status import Running
from ci.concourse.web import health, web
from options.table import Options
from plan.network import Network
from relations import juju, peers, postgresql, tls_certificates, tsa
from relations.model import Web

TARBALL: typing.Final = "concourse"


def at_unit(
    model: juju.Model, web_keys: peers.WebKeys, options: Options, outside: Outside
) -> ConcourseState:
    """Return what there is of Concourse on this unit.

    Args:
        model: Juju's, as this hook sees it.
        web_keys: the keys that all webs share.
        options: the unit's.
        outside: what of Concourse is on the machine.

    Raises:
        gpu_agent.model.errors.UnknownError: the machine's addresses cannot be read now.
    """
    looks, installed = outside.looks, outside.releases.installed()
    own = looks.worker_name() or f"{model.name}-{model.unit.name.replace('/', '-')}"
    return ConcourseState(
        worker_name=own,
        rivals=looks.rivals() if options.has_worker else Rivals(),
        network=at_network(model, looks) if options.has_web else Network(),
        tsa=tsa.read_webs(model),
        web=at_web(model, web_keys, outside) if options.has_web else Web(),
        tarball=juju.resource(model, TARBALL, release.is_from),
        installed=installed.version if installed else "",
        local_database=outside.database.kept(),
        idle_relations=idle_relations(model, options),
    )


def at_network(model: juju.Model, looks: Looks) -> Network:
    """Return the addresses at which others could reach this unit's web.

    Raises:
        gpu_agent.model.errors.UnknownError: the machine's addresses cannot be read now.
    """
    return tsa.network(model, looks.interfaces(), looks.peer_address())


def at_web(model: juju.Model, web_keys: peers.WebKeys, outside: Outside) -> Web:
    """Return Juju's data about this unit's web: database, secrets and workers' keys."""
    offer = postgresql.read(model)
    shared, lost = web_keys.read()
    certified = tls_certificates.is_related(model)
    signing = outside.signing
    signed = tls_certificates.read(model, signing.pending())
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
        certificate=signing.certificate(signed.chain) if certified else None,
        certificate_refused=signed.refused,
        certificate_revoked=signed.revoked,
        tsa_next_public_key=web.next_public_key(shared) if shared else "",
        worker_keys=(*keys, *outside.keys.every()),
        refused=refused,
    )


def at_services(outside: Outside) -> Running:
    """Return the current state of Concourse's services."""
    looks = outside.looks
    return Running(
        web=looks.web_runs(),
        certificate=health.certificate_end(outside.signing.shown),
        lost_database=looks.lost_database(),
        worker=looks.worker_runs(),
        connected=looks.is_connected(),
        copies=looks.copies_volumes(),
        aside=outside.database.aside(),
        folder=looks.folder(),
        failing=looks.failing(),
        taken=looks.taken(),
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
