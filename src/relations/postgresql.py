# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The web's database: postgresql_client v0, as the postgresql charm carries it."""

import json
import re
import typing

import ops

from found import Database

ENDPOINT: typing.Final = "postgresql"
DATABASE: typing.Final = "concourse"

_REQUESTED_SECRETS: typing.Final = ("username", "password", "tls", "tls-ca", "uris")
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


def request(model: ops.Model) -> None:
    """Ask for a database and for credentials in secrets; the leader's word counts."""
    relation = model.get_relation(ENDPOINT)
    if relation and model.unit.is_leader():
        relation.data[model.app].update(
            {"database": DATABASE, "requested-secrets": json.dumps(_REQUESTED_SECRETS)}
        )


def read(model: ops.Model) -> tuple[bool, Database | None]:
    """Whether the endpoint is in use, and the database once its data is complete and sound."""
    relation = model.get_relation(ENDPOINT)
    if relation is None:
        return False, None
    data = dict(relation.data[relation.app]) if relation.app else {}
    try:
        data.update(_secret(model, data.get("secret-user")))
        data.update(_secret(model, data.get("secret-tls")))
    except ops.SecretNotFoundError:
        return True, None
    # Several endpoints are one cluster's; the first is the primary's.
    match = _ENDPOINT.fullmatch(data.get("endpoints", "").split(",")[0].strip())
    user, password = data.get("username", ""), data.get("password", "")
    name = data.get("database") or DATABASE
    if not match or not user or not password or not f"{name}{user}{password}".isprintable():
        return True, None
    return True, Database(
        host=match.group(1).strip("[]"),
        port=int(match.group(2)),
        name=name,
        user=user,
        password=password,
        tls=data.get("tls", "").lower() == "true",
        ca=data.get("tls-ca", ""),
    )


def _secret(model: ops.Model, uri: str | None) -> dict[str, str]:
    if not uri:
        return {}
    return model.get_secret(id=uri).get_content(refresh=True)
