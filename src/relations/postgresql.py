# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The web's database: postgresql_client v0, as the postgresql charm carries it."""

import dataclasses
import json
import re
import typing

import ops

from plan.state import Database
from relations import secrets

ENDPOINT: typing.Final = "postgresql"
DATABASE: typing.Final = "concourse"

_REQUESTED_SECRETS: typing.Final = ("username", "password", "tls", "tls-ca", "uris")
# A secret's name as Juju gives it (juju core/secrets/uri.go); of another it says "not valid".
_SECRET = re.compile(r"(?:secret:(?://[0-9a-f-]{36}/)?)?[0-9a-z]{20}")
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


def request(model: ops.Model) -> None:
    """Ask for a database and for credentials in secrets; the leader's word counts."""
    relation = model.get_relation(ENDPOINT)
    if relation and model.unit.is_leader():
        relation.data[model.app].update(
            {"database": DATABASE, "requested-secrets": json.dumps(_REQUESTED_SECRETS)}
        )


@dataclasses.dataclass(frozen=True)
class Offer:
    """What the other side has to offer.

    Attributes:
        related: whether the endpoint is in use.
        database: once its data is complete and sound.
        withheld: a secret with a part of that data is named, but not granted yet.
    """

    related: bool = False
    database: Database | None = None
    withheld: bool = False


def read(model: ops.Model) -> Offer:
    """What there is of the database by now."""
    relation = model.get_relation(ENDPOINT)
    if relation is None:
        return Offer()
    data = dict(relation.data[relation.app]) if relation.app else {}
    try:
        for uri in filter(None, (data.get("secret-user"), data.get("secret-tls"))):
            if not _SECRET.fullmatch(uri):
                return Offer(related=True)
            data.update(secrets.content(model, uri, refresh=True))
    except secrets.WithheldError:
        return Offer(related=True, withheld=True)
    # Several endpoints are one cluster's; the first is the primary's.
    match = _ENDPOINT.fullmatch(data.get("endpoints", "").split(",")[0].strip())
    user, password = data.get("username", ""), data.get("password", "")
    name = data.get("database") or DATABASE
    if not match or not user or not password or not f"{name}{user}{password}".isprintable():
        return Offer(related=True)
    database = Database(
        host=match.group(1).strip("[]"),
        port=int(match.group(2)),
        name=name,
        user=user,
        password=password,
        tls=data.get("tls", "").lower() == "true",
        ca=data.get("tls-ca", ""),
    )
    return Offer(related=True, database=database)
