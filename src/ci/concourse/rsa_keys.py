# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""RSA keys as Concourse wants them: PEM for the private half, a line of OpenSSH for the public."""

import typing

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from options.ssh import public_key_line

__all__ = ("generate_private_key", "public_key_line")

_BITS: typing.Final = (
    4096  # what `concourse generate-key` makes (8.2.5 cmd/concourse/generate_key.go)
)


def generate_private_key() -> str:
    """Make a key, unencrypted in PKCS#1 PEM, which all Concourse releases read."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=_BITS)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    ).decode()
