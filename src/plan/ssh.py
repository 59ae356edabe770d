# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""OpenSSH public keys that come from others: one line, one key, a known type. Pure."""

import typing

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

# No certificates, and not ssh-dss, which OpenSSH 10.0 dropped.
_KEY_TYPES: typing.Final = (
    "ssh-rsa", "ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521",
)  # fmt: skip


def public_key(text: str) -> str:
    """One OpenSSH public key as `type base64`, encoded anew, its comment dropped.

    Raises:
        ValueError: if the text is more than one line, has options, or is no key of a known type.
    """
    if len(text.strip().splitlines()) != 1:
        raise ValueError("is not one line")
    words = text.split()
    if len(words) < 2:
        raise ValueError("is no OpenSSH public key")
    if words[0] not in _KEY_TYPES:
        raise ValueError("is no OpenSSH public key of a known type")
    try:
        loaded = serialization.load_ssh_public_key(" ".join(words[:2]).encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError("is no OpenSSH public key of a known type") from error
    # Reading passes over what is no base64.
    return loaded.public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    ).decode()
