# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What Juju itself tells this unit: options with their secrets, resources, addresses."""

import collections.abc
import os
import pathlib
import re
import typing

import ops

from options.table import SECRETS, Options, parse
from options.values import OptionError
from plan.network import Offer
from plan.state import IdleRelation
from plan.unit_id import UnitId
from relations import secrets

# For modules that only pass it on: this package and charm.py alone import ops.
Model = ops.Model

TARBALL: typing.Final = "concourse"
WHEELS: typing.Final = "selftest-wheels"

# The message of resource-get for a resource that is not attached (juju 4.0
# apiserver/internal/handlers/resources/resources.go).
_NOT_ATTACHED = re.compile(r"resource.* not found")


def unit_id(charm: ops.CharmBase) -> UnitId:
    """Who this unit is, on a machine that may have others."""
    model = charm.model
    return UnitId(charm.unit.name, model.name, model.uuid, str(charm.charm_dir.parent))


def read_options(model: ops.Model) -> Options:
    """Return the options with the contents of their secrets; unusable ones are listed."""
    raw: dict[str, object] = dict(model.config)
    faults: list[OptionError] = []
    for option in SECRETS:
        try:
            raw[option] = _fields(model, option, str(raw.get(option) or ""))
        except OptionError as error:
            faults.append(error)
            raw[option] = None
    return parse(raw, faults)


def _fields(model: ops.Model, option: str, uri: str) -> dict[str, str]:
    """What is in the secret of an option; nothing where the option is not set."""
    if not uri:
        return {}
    try:
        return secrets.content(model, uri, refresh=True)
    except secrets.WithheldError as error:
        raise OptionError(
            option, uri, f"cannot be read: juju grant-secret <secret> {model.app.name}"
        ) from error


def resource(
    model: ops.Model,
    name: str,
    is_taken: collections.abc.Callable[[pathlib.Path], bool] = lambda _: False,
) -> str | None:
    """Path of a file given as a charm resource; empty if none, or an empty one, was attached.

    Args:
        model: this unit's.
        name: of the resource.
        is_taken: whether the charm has already used this very file. For each request Juju reads
            the whole file, which takes seconds for a release. A new file comes with an
            upgrade-charm event, so an update-status or a wake need not ask.

    Returns:
        None if Juju does not answer, as while its controller cannot be reached.
    """
    if os.environ.get("JUJU_DISPATCH_PATH") == "hooks/update-status":
        folder = pathlib.Path(os.environ.get("JUJU_CHARM_DIR", ".")).resolve().parent / "resources"
        # Juju 4 has it in that folder itself, 3 in one of the resource's.
        for path in (*folder.glob(f"{name}.*"), *folder.glob(f"{name}/{name}.*")):
            if is_taken(path):
                return str(path)
    try:
        path = model.resources.fetch(name)
    except ops.ModelError as error:
        return "" if _NOT_ATTACHED.search(str(error)) else None
    return str(path) if path.stat().st_size else ""


def idle_relations(model: ops.Model, options: Options) -> tuple[IdleRelation, ...]:
    """The relations that do nothing for a unit of these options, which Juju makes without a word.

    A second one to the same application says what the first does; a unit without a web, or a
    worker, has no use for those of one.
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


def _related(model: ops.Model, endpoint: str) -> list[str]:
    """The applications on the other side of an endpoint's relations."""
    return sorted({one.app.name for one in model.relations[endpoint] if one.app})


def offer(model: ops.Model, binding: str | ops.Relation, published: str) -> Offer:
    """What Juju says of the addresses of an endpoint or relation; empty while it doesn't know.

    Args:
        model: this unit's.
        binding: the endpoint or relation.
        published: the address that was published before; or empty.
    """
    network = model.get_binding(binding).network
    return Offer(
        ingress=tuple(str(one) for one in network.ingress_addresses if one),
        bound=tuple(str(one.address) for one in network.interfaces if one.address),
        published=published,
    )
