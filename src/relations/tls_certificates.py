# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Web's certificate by an application that signs some: tls-certificates v1, each unit for itself.

The keys and their JSON are those of charmlibs-interfaces-tls-certificates 1.12, which is not used
itself: its 3,700 lines observe events of their own, keep the private key and need pydantic.
"""

import collections.abc
import dataclasses
import json
import typing

import ops

from options import certificates

ENDPOINT: typing.Final = "certificates"

_REQUESTS: typing.Final = "certificate_signing_requests"
_LONGEST: typing.Final = 120  # characters of what the other side says


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came of a request.

    Attributes:
        chain: the certificate that was signed, and those of who signed it, in PEM; empty where
            there is none, or none that can be read.
        refused: why there is none, for the operator; empty where nothing is said.
        revoked: whether it was taken back.
    """

    chain: str = ""
    refused: str = ""
    revoked: bool = False


def is_related(model: ops.Model) -> bool:
    """Whether such an application is related."""
    return model.get_relation(ENDPOINT) is not None


def request(
    model: ops.Model,
    make: collections.abc.Callable[[tuple[str, ...]], str],
    names: tuple[str, ...],
) -> None:
    """Request this unit's certificate if a TLS provider is related.

    Args:
        model: this unit's.
        make: makes the request for names, in PEM; empty: ask for none.
        names: what the certificate is to be for.
    """
    if relation := model.get_relation(ENDPOINT):
        pem = make(names)
        asked = [{"certificate_signing_request": pem.strip(), "ca": False}] if pem else []
        relation.data[model.unit][_REQUESTS] = json.dumps(asked)


def read(model: ops.Model, pem: str) -> Answer:
    """What the application that is to sign says of a request, in PEM."""
    relation = model.get_relation(ENDPOINT)
    if not relation or not relation.app or not pem:
        return Answer()
    told, refused, revoked = relation.data[relation.app], "", False
    for fields in _objects(told.get("certificates")):
        if not _is(fields.get("certificate_signing_request"), pem):
            continue
        if not fields.get("revoked"):
            return Answer(_chain(fields.get("certificate"), fields.get("chain")))
        revoked = True
    for fields in _objects(told.get("request_errors")):
        if _is(fields.get("csr"), pem):
            refused = _reason(fields.get("error"))
    return Answer(refused=refused, revoked=revoked)


def _objects(text: str | None) -> list[dict[str, object]]:
    """The objects of a list in JSON; none where it is none."""
    try:
        told: object = json.loads(text or "[]")
    except (ValueError, RecursionError):  # the latter: too many brackets in each other
        return []
    entries = typing.cast(list[object], told) if isinstance(told, list) else []
    return [typing.cast(dict[str, object], one) for one in entries if isinstance(one, dict)]


def _is(request: object, pem: str) -> bool:
    return str(request or "").strip() == pem.strip()


def _reason(error: object) -> str:
    """The name and the message of an error of the other side's, which is not trusted."""
    fields = typing.cast(dict[str, object], error) if isinstance(error, dict) else {}
    said = ": ".join(str(fields[name]) for name in ("name", "message") if fields.get(name))
    short = "".join(one if one.isprintable() else " " for one in said[:_LONGEST])
    return short.strip() or "no reason is given"


def _chain(certificate: object, others: object) -> str:
    more = typing.cast(list[object], others) if isinstance(others, list) else []
    try:
        return certificates.chain(*(str(one) for one in (certificate, *more) if one))
    except ValueError:
        return ""
