# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reads OpenSSH public keys, and makes them of private keys. Pure."""

import typing

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

# No certificates, and not ssh-dss, which OpenSSH 10.0 dropped.
_KEY_TYPES: typing.Final = (
    "ssh-rsa", "ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521",
)  # fmt: skip
_RSA_BITS: typing.Final = range(1024, 8193)


def public_key(text: str) -> str:
    """Return one OpenSSH public key as `type base64`, re-encoded and without its comment.

    Raises:
        ValueError: the text is not one line, has options, or is not a key of a known type.
    """
    if len(text.strip().splitlines()) != 1:
        raise ValueError("is not one line")
    words = text.split()
    if len(words) < 2:
        raise ValueError("is not an OpenSSH public key")
    if words[0] not in _KEY_TYPES:
        raise ValueError("is not an OpenSSH public key of a known type")
    try:
        loaded = serialization.load_ssh_public_key(" ".join(words[:2]).encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError("is not an OpenSSH public key of a known type") from error
    if isinstance(loaded, rsa.RSAPublicKey) and not _is_usable(loaded):
        raise ValueError("is an RSA key of a size that cannot be used")
    # cryptography ignores characters that are not base64.
    return loaded.public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    ).decode()


def _is_usable(key: rsa.RSAPublicKey) -> bool:
    """Whether programs in Go can use it (golang.org/x/crypto ssh/keys.go; Go's crypto/rsa)."""
    return key.key_size in _RSA_BITS and key.public_numbers().e.bit_length() <= 24


def public_key_line(pem: str) -> str:
    """Return the public half of a private key, as `ssh-rsa AAAA...` without a line end.

    Raises:
        ValueError: the text is not an unencrypted RSA private key in PEM.
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
