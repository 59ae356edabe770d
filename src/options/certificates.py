# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reads certificates in PEM from relations and secrets. Pure."""

import dataclasses

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization


@dataclasses.dataclass(frozen=True)
class Tls:
    """The certificate of a server and its private key.

    Attributes:
        chain: its certificate, followed by those of its issuers; PEM.
        key: its private key; PEM.
    """

    chain: str
    key: str = dataclasses.field(repr=False)


def is_sound(pem: str) -> bool:
    """Whether a text has certificates in PEM, all of them readable."""
    try:
        return bool(x509.load_pem_x509_certificates(pem.encode()))
    except ValueError:
        return False


def chain(*pems: str) -> str:
    """Join texts of certificates; each certificate is in the result once.

    Raises:
        ValueError: a certificate cannot be read.
    """
    found: dict[str, None] = {}
    for pem in filter(None, pems):
        for one in x509.load_pem_x509_certificates(pem.encode()):
            found[one.public_bytes(serialization.Encoding.PEM).decode()] = None
    return "".join(found)


def fits(pem: str, key: str) -> bool:
    """Whether a private key, without a password, belongs to the first certificate of a text."""
    try:
        first = x509.load_pem_x509_certificates(pem.encode())[0]
        private = serialization.load_pem_private_key(key.encode(), password=None)
        encoding, form = (
            serialization.Encoding.DER,
            serialization.PublicFormat.SubjectPublicKeyInfo,
        )
        own = private.public_key().public_bytes(encoding, form)
        return first.public_key().public_bytes(encoding, form) == own
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def lifetime(pem: str) -> tuple[float, float, str]:
    """Return when the first certificate of a text is valid: from, until, and the last day.

    Times are seconds since the epoch; the day is in ISO format.

    Raises:
        ValueError: the certificate cannot be read.
    """
    first = x509.load_pem_x509_certificates(pem.encode())[0]
    end = first.not_valid_after_utc
    return first.not_valid_before_utc.timestamp(), end.timestamp(), end.date().isoformat()
