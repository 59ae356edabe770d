# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The web's database: postgresql_client v0, as the postgresql charm carries it."""

import dataclasses
import json
import re
import typing

import ops

from options import certificates
from relations import secrets
from relations.model import Database

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
        refused: what of that data can't be used, and why; or empty.
    """

    related: bool = False
    database: Database | None = None
    withheld: bool = False
    refused: str = ""


def read(model: ops.Model) -> Offer:
    """What there is of the database by now."""
    relation = model.get_relation(ENDPOINT)
    if relation is None:
        return Offer()
    data = dict(relation.data[relation.app]) if relation.app else {}
    try:
        for key in filter(data.get, ("secret-user", "secret-tls")):
            if not _SECRET.fullmatch(data[key]):
                return Offer(related=True, refused=f"{key} names no secret")
            data.update(secrets.content(model, data[key], refresh=True))
    except secrets.WithheldError:
        return Offer(related=True, withheld=True)
    hosts, port = _hosts(data.get("endpoints", ""))
    user, password = data.get("username", ""), data.get("password", "")
    name, ca = data.get("database") or DATABASE, data.get("tls-ca", "")
    if not data.get("endpoints") or not user or not password:
        return Offer(related=True)
    refused = "" if hosts else "endpoints is not a list of ADDRESS:PORT"
    if not f"{name}{user}{password}".isprintable():
        refused = "database, username or password is not a line of text"
    if ca and not certificates.is_sound(ca):
        refused = "tls-ca is not a certificate in PEM"
    if refused:
        return Offer(related=True, refused=refused)
    database = Database(
        host=hosts[0],
        others=hosts[1:],
        port=port,
        name=name,
        user=user,
        password=password,
        tls=data.get("tls", "").lower() == "true",
        ca=ca,
    )
    return Offer(related=True, database=database)


def _hosts(endpoints: str) -> tuple[tuple[str, ...], int]:
    """The hosts of a cluster, the primary's first, and their port; none where one is malformed.

    Concourse takes several hosts but one port, so a host with another port is left out.
    """
    found: list[tuple[str, int]] = []
    for text in endpoints.split(","):
        match = _ENDPOINT.fullmatch(text.strip())
        if not match or not 0 < int(match.group(2)) < 65536:
            return (), 0
        found.append((match.group(1).strip("[]"), int(match.group(2))))
    port = found[0][1]
    return tuple(dict.fromkeys(host for host, own in found if own == port)), port
