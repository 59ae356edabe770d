# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""RSA keys as Concourse wants them: PEM for the private half, a line of OpenSSH for the public."""

import typing

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

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


def public_key_line(pem: str) -> str:
    """The public half of a private key, as `ssh-rsa AAAA...` without a line end.

    Raises:
        ValueError: if the text is no unencrypted private key in PEM.
    """
    try:
        key = serialization.load_pem_private_key(
            pem.encode(), password=None, unsafe_skip_rsa_key_validation=True
        )
    except TypeError as error:
        raise ValueError("the private key is encrypted") from error
    public = key.public_key()
    if not isinstance(public, rsa.RSAPublicKey):
        raise ValueError("the private key is not of type RSA")
    return public.public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    ).decode()
