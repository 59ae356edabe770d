# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Certificates for tests, each signed by itself or by another one of these."""

import datetime
import functools
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from tests import once

NOW = datetime.datetime.now(datetime.UTC)


@functools.cache
def made(*hosts, key=1, days=90, signer=None, authority=False, request=None):
    """A certificate in PEM.

    Args:
        hosts: names and addresses that it is for.
        key: number of the key of tests.once that it has.
        days: after which it ends; negative: it has ended.
        signer: number of the key of the authority `ca(signer)` that signs it; None: it itself.
        authority: whether it may sign others.
        request: one for certificates, in PEM, whose key it has in place of `key`.
    """
    own = private(key)
    public = own.public_key()
    if request:
        public = x509.load_pem_x509_csr(request.encode()).public_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"test {key}")])
    issuer = name if signer is None else x509.Name(_name(signer))
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - datetime.timedelta(days=200))
        .not_valid_after(NOW + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    signed = builder.sign(own if signer is None else private(signer), hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode()


def ca(key=9):
    """The certificate of an authority."""
    return made(key=key, authority=True, days=3650)


@functools.cache
def private(key):
    return serialization.load_pem_private_key(once.rsa_key(key).encode(), password=None)


def _name(key):
    return [x509.NameAttribute(NameOID.COMMON_NAME, f"test {key}")]


def _host(text):
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
