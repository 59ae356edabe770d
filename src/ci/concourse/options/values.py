# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a value of an option of Concourse may be: each function returns it as it is used. Pure."""

import ipaddress

from ci.concourse.upstream import TSA_PORT
from options import values
from options.ssh import public_key


def tsa_host(item: str) -> str:
    """HOST:PORT of a TSA outside Juju."""
    match = values.HOST_PORT.fullmatch(item)
    if not match or not 0 < int(match.group(1)) < 65536:
        raise values.OptionError(
            "tsa-host", item, f"is no HOST:PORT: use ci.example.com:{TSA_PORT}"
        )
    return item


def tsa_public_key(text: str) -> str:
    """The host keys of a TSA outside Juju, comma-separated, as a line each."""
    try:
        return "\n".join(public_key(key) for key in text.split(","))
    except ValueError as error:
        raise values.OptionError(
            "tsa-public-key", text, f"{error}: use the line of tsa_host_key.pub"
        ) from error


def advertised(text: str) -> str:
    """An address or network in Python's spelling, or a host name as given."""
    remedy = "is no address, host name or network: use 10.0.0.7, ci.example.com or 10.0.0.0/16"
    if values.HOST_NAME.fullmatch(text) or not text:
        return text
    if "%" in text:  # it holds on one link alone
        raise values.OptionError("advertise-address", text, remedy)
    try:
        if "/" in text:
            return str(ipaddress.ip_network(text))
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise values.OptionError("advertise-address", text, remedy) from error
    local = address.is_loopback or address.is_link_local
    if local or address.is_unspecified or address.is_multicast:
        remedy = "is out of reach for other machines: use one that they know this unit by"
        raise values.OptionError("advertise-address", text, remedy)
    return str(address)
