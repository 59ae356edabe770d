# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Certificates in PEM, as relations and secrets bring them. Pure."""

from cryptography import x509


def is_sound(pem: str) -> bool:
    """Whether a text has certificates in PEM, and none that can't be read."""
    try:
        return bool(x509.load_pem_x509_certificates(pem.encode()))
    except ValueError:
        return False
