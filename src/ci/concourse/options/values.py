# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Checks the values of Concourse's options: each function returns the form that is used. Pure."""

import collections.abc
import ipaddress
import typing

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from ci.concourse.upstream import TSA_PORT
from options import values
from options.readers import Raw
from options.ssh import public_key

Fields = collections.abc.Mapping[str, str]


def fields(raw: Raw, option: str) -> Fields:
    """Return the fields of an option's secret; none if it is not set or cannot be read."""
    return typing.cast(Fields, raw.get(option) or {})


def tsa_host(item: str) -> str:
    """Check HOST:PORT of a TSA outside Juju."""
    match = values.HOST_PORT.fullmatch(item)
    if not match or not 0 < int(match.group(1)) < 65536:
        raise values.OptionError(
            "tsa-hosts", item, f"is not HOST:PORT: use ci.example.com:{TSA_PORT}"
        )
    return item


def tsa_public_keys(text: str) -> str:
    """Read the comma-separated host keys of a TSA outside Juju; each becomes a line."""
    try:
        return "\n".join(public_key(key) for key in text.split(","))
    except ValueError as error:
        raise values.OptionError(
            "tsa-public-keys", text, f"{error}: use the line of tsa_host_key.pub"
        ) from error


def private_key(pem: str) -> str:
    """Check an RSA key in PEM without a password."""
    # Concourse accepts only unencrypted RSA keys in PEM (concourse 8.2.5 flag/private_key.go).
    remedy = "has no RSA key in PEM without a password: put one into its field private-key"
    try:
        key = serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise values.OptionError("worker-private-key", "(secret)", remedy) from error
    if not isinstance(key, rsa.RSAPrivateKey):
        raise values.OptionError("worker-private-key", "(secret)", remedy)
    return pem


def advertised(text: str) -> str:
    """Return an address or network in Python's spelling, or a host name as given."""
    remedy = "is not an address, host name or network: use 10.0.0.7, ci.example.com or 10.0.0.0/16"
    if values.HOST_NAME.fullmatch(text) or not text:
        return text
    if "%" in text:  # such an address is valid on one link only
        raise values.OptionError("web-advertise-address", text, remedy)
    try:
        if "/" in text:
            return str(ipaddress.ip_network(text))
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise values.OptionError("web-advertise-address", text, remedy) from error
    local = address.is_loopback or address.is_link_local
    if local or address.is_unspecified or address.is_multicast:
        remedy = "cannot be reached from other machines: use an address that they can reach"
        raise values.OptionError("web-advertise-address", text, remedy)
    return str(address)
