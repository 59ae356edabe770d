# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What all web units of the application share, in a Juju secret that the peers point at."""

import collections.abc
import typing

import ops

from found import WebSecrets

ENDPOINT: typing.Final = "peers"

_POINTER: typing.Final = "web-secrets"


def web_secrets(
    model: ops.Model, make: collections.abc.Callable[[], WebSecrets]
) -> WebSecrets | None:
    """The web's keys and admin password; the leader makes them where there are none yet.

    Returns:
        None before the peer relation exists or before the leader has made them.
    """
    relation = model.get_relation(ENDPOINT)
    if relation is None:
        return None
    if uri := relation.data[model.app].get(_POINTER):
        content = model.get_secret(id=uri).get_content()
        return WebSecrets(
            admin_password=content["admin-password"],
            tsa_host_key=content["tsa-host-key"],
            session_signing_key=content["session-signing-key"],
        )
    if not model.unit.is_leader():
        return None
    secrets = make()
    secret = model.app.add_secret(
        {
            "admin-password": secrets.admin_password,
            "tsa-host-key": secrets.tsa_host_key,
            "session-signing-key": secrets.session_signing_key,
        },
        description="Concourse web: admin password, TSA host key, session signing key",
    )
    relation.data[model.app][_POINTER] = secret.id or ""
    return secrets
