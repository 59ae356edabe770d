# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What Juju itself tells this unit: options with their secrets, resources, addresses."""

import collections.abc
import os
import pathlib
import re
import typing

import ops

from options.declaration import CiOptions
from options.table import OPTIONS, Options, parse
from options.values import OptionError
from plan.network import Offer
from plan.unit_id import UnitId
from relations import secrets

# For modules that only pass it on: this package and charm.py alone import ops.
Model = ops.Model
Charm = ops.CharmBase

WHEELS: typing.Final = "selftest-wheels"

# The message of resource-get for a resource that is not attached (juju 4.0
# apiserver/internal/handlers/resources/resources.go).
_NOT_ATTACHED = re.compile(r"resource.* not found")


def unit_id(charm: ops.CharmBase) -> UnitId:
    """Who this unit is, on a machine that may have others."""
    model = charm.model
    return UnitId(charm.unit.name, model.name, model.uuid, str(charm.charm_dir.parent))


def read_options(model: ops.Model, ci: CiOptions, wrong: tuple[OptionError, ...] = ()) -> Options:
    """Return the options with the contents of their secrets; unusable ones are listed.

    Args:
        model: this unit's.
        ci: the options of the CI system on this unit.
        wrong: options that are known to be unusable.
    """
    raw: dict[str, object] = dict(model.config)
    faults = [*wrong]
    for option in (one.name for one in (*OPTIONS, *ci.declared) if one.is_secret):
        try:
            raw[option] = _fields(model, option, str(raw.get(option) or ""))
        except OptionError as error:
            faults.append(error)
            raw[option] = None
    return parse(raw, ci, faults)


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


def relations_but(model: ops.Model, *used: str) -> tuple[tuple[str, str], ...]:
    """Endpoint and application of each relation, but for those of these endpoints."""
    return tuple(
        (endpoint, relation.app.name)
        for endpoint in sorted(model.relations)
        for relation in model.relations[endpoint]
        if endpoint not in used and relation.app
    )


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
