# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Public keys that are well made and still of no use to Concourse are refused."""

import warnings

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ed25519
from cryptography.utils import CryptographyDeprecationWarning

from options.ssh import public_key


def certificate():
    key = ed25519.Ed25519PrivateKey.generate()
    builder = serialization.SSHCertificateBuilder().public_key(key.public_key()).serial(1)
    builder = builder.type(serialization.SSHCertificateType.HOST).key_id(b"web").valid_after(0)
    return builder.valid_for_all_principals().valid_before(2**40).sign(key).public_bytes()


def dss():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        return (
            dsa.generate_private_key(1024)
            .public_key()
            .public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        )


@pytest.mark.parametrize("make", [certificate, dss])
def test_keys_of_other_types_are_refused(make):
    with pytest.raises(ValueError, match=r"^is not an OpenSSH public key of a known type$"):
        public_key(make().decode())
