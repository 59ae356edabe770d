# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Certificates in PEM, as relations and secrets bring them. Pure."""

import dataclasses

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization


@dataclasses.dataclass(frozen=True)
class Tls:
    """What a server shows and proves that it is by.

    Attributes:
        chain: its certificate, and then those of who signed it; PEM.
        key: its private key; PEM.
    """

    chain: str
    key: str = dataclasses.field(repr=False)


def is_sound(pem: str) -> bool:
    """Whether a text has certificates in PEM, and none that can't be read."""
    try:
        return bool(x509.load_pem_x509_certificates(pem.encode()))
    except ValueError:
        return False


def chain(*pems: str) -> str:
    """Several texts of certificates as one, each certificate once. An empty text has none.

    Raises:
        ValueError: one can't be read.
    """
    found: dict[str, None] = {}
    for pem in filter(None, pems):
        for one in x509.load_pem_x509_certificates(pem.encode()):
            found[one.public_bytes(serialization.Encoding.PEM).decode()] = None
    return "".join(found)


def fits(pem: str, key: str) -> bool:
    """Whether the first certificate of a text is that of a private key, which has no password."""
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
    """When the first certificate of a text begins and ends: seconds since 1970, and the last day.

    Raises:
        ValueError: it can't be read.
    """
    first = x509.load_pem_x509_certificates(pem.encode())[0]
    end = first.not_valid_after_utc
    return first.not_valid_before_utc.timestamp(), end.timestamp(), end.date().isoformat()
