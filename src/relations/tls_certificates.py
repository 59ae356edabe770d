# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Web's certificate by an application that signs some: tls-certificates v1, each unit for itself.

The keys and their JSON are those of charmlibs-interfaces-tls-certificates 1.12, which is not used
itself: its 3,700 lines observe events of their own, keep the private key and need pydantic.
"""

import collections.abc
import json
import typing

import ops

from plan import certificates

ENDPOINT: typing.Final = "certificates"

_REQUESTS: typing.Final = "certificate_signing_requests"


def is_related(model: ops.Model) -> bool:
    """Whether such an application is related."""
    return model.get_relation(ENDPOINT) is not None


def request(
    model: ops.Model,
    make: collections.abc.Callable[[tuple[str, ...]], str],
    names: tuple[str, ...],
) -> None:
    """Ask for this unit's certificate, where there is somebody to ask.

    Args:
        model: this unit's.
        make: makes the request for names, in PEM; empty: ask for none.
        names: what the certificate is to be for.
    """
    if relation := model.get_relation(ENDPOINT):
        pem = make(names)
        asked = [{"certificate_signing_request": pem.strip(), "ca": False}] if pem else []
        relation.data[model.unit][_REQUESTS] = json.dumps(asked)


def read(model: ops.Model, pem: str) -> str:
    """The certificate that was signed for a request, and those of who signed it, in PEM.

    Empty where there is none, or none that can be read.
    """
    relation = model.get_relation(ENDPOINT)
    if not relation or not relation.app or not pem:
        return ""
    try:
        told: object = json.loads(relation.data[relation.app].get("certificates", "[]"))
    except (ValueError, RecursionError):  # the latter: too many brackets in each other
        return ""
    for entry in typing.cast(list[object], told) if isinstance(told, list) else []:
        fields = typing.cast(dict[str, object], entry) if isinstance(entry, dict) else {}
        ours = str(fields.get("certificate_signing_request", "")).strip() == pem.strip()
        if ours and not fields.get("revoked"):
            return _chain(fields.get("certificate"), fields.get("chain"))
    return ""


def _chain(certificate: object, others: object) -> str:
    more = typing.cast(list[object], others) if isinstance(others, list) else []
    try:
        return certificates.chain(*(str(one) for one in (certificate, *more) if one))
    except ValueError:
        return ""
