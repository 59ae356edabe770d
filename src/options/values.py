# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Checks the value of an option: each function returns the form that is used. Pure."""

import ipaddress
import re
import urllib.parse

from cryptography import x509
from cryptography.hazmat.primitives import serialization

_PCI_ADDRESS = re.compile(r"(?:[0-9a-f]{4,8}:)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)
# UUIDs of NVIDIA and of AMD, and the substitute for the UUID of a GPU that has none
# (gpu_agent.model.inventory).
_UUID = re.compile(
    r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|GPU-[0-9a-f]{16}(?:-[0-9]{1,2})?"
    r"|PCI-[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]{1,2}",
    re.IGNORECASE,
)
# Resolvers take a name whose last part is a number for an address.
HOST_NAME = re.compile(
    r"(?=.{1,253}$)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?",
    re.IGNORECASE,
)
HOST_PORT = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")


class OptionError(ValueError):
    """An option's value cannot be used; the text names the option, the value and the remedy."""

    def __init__(self, option: str, value: object, remedy: str) -> None:
        text = str(value)
        shown = text if text.isprintable() else ascii(text)[1:-1]
        if len(shown) > 64:
            shown = f"{shown[:61]}..."
        super().__init__(f"{option} '{shown}' {remedy}")
        self.option = option


def tag(item: str) -> str:
    """Check one of the operator's tags."""
    if not item.isprintable():
        raise OptionError("extra-tags", item, "has an unprintable character: remove it")
    return item


def name_server(text: str) -> str:
    """Check the address of a DNS server that containers can reach.

    Raises:
        ValueError: it is not one; the text continues a sentence that begins with the address.
    """
    try:
        # A zone, after a %, names an interface that a container does not have.
        address = ipaddress.ip_address("" if "%" in text else text)
    except ValueError as error:
        raise ValueError("is not an IP address: use one such as 10.0.0.53") from error
    # A container has a loopback interface of its own; resolv.conf of Ubuntu names 127.0.0.53.
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        raise ValueError("cannot be reached from a container: use one such as 10.0.0.53")
    return str(address)


def certificates(pem: str) -> str:
    """Check certificates in PEM and remove the text between them; empty if there are none."""
    if not pem:
        return ""
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
    except ValueError as error:
        remedy = "has no certificates in PEM: use the text of a file such as ca.crt"
        raise OptionError("worker-ca-certificates", f"{pem[:27]}...", remedy) from error
    return "".join(one.public_bytes(serialization.Encoding.PEM).decode() for one in found)


def url(option: str, text: str) -> str:
    """Check an HTTP or HTTPS URL and remove a slash at its end; empty if there is none."""
    if not text:
        return ""
    try:
        url = urllib.parse.urlsplit(text)
        # Everybody who opens the page would see a password in it.
        good = url.scheme in ("http", "https") and bool(url.hostname) and url.username is None
        good = good and url.port != 0 and not url.query and not url.fragment
    except ValueError:  # a malformed IPv6 address or port
        good = False
    if not good or not re.fullmatch(r"[!-~]+", text):
        raise OptionError(option, text, "is not a URL: use http://HOST or https://HOST")
    return text.rstrip("/")


def pgp_key(text: str) -> str:
    """Check an OpenPGP public key in ASCII armour; empty if there is none."""
    armour = r"-----BEGIN PGP PUBLIC KEY BLOCK-----\s[\s!-~]*-----END PGP PUBLIC KEY BLOCK-----"
    if text and not re.fullmatch(armour, text):
        remedy = "is not a public key in ASCII armour: use the text of the mirror's gpgkey"
        raise OptionError("nvidia-toolkit-key", text, remedy)
    return f"{text}\n" if text else ""


def device_ids(text: str) -> tuple[str, ...]:
    """Read ids of GPUs; indexes become decimal, other ids have NVML's spelling; empty: all."""
    if text.lower() == "all":
        return ()
    ids: dict[str, None] = {}
    for item in (part.strip() for part in text.split(",")):
        if re.fullmatch(r"[0-9]{1,4}", item):
            ids[str(int(item))] = None
        elif _UUID.fullmatch(item):
            ids[item[:4].upper() + item[4:].lower()] = None
        elif match := _PCI_ADDRESS.fullmatch(item):
            domain = item[: match.start(1)].rstrip(":") or "0"
            ids[f"{int(domain, 16):04x}:{match.group(1).lower()}"] = None
        else:
            raise OptionError(
                "gpu-device-ids",
                item,
                "is not an id of a GPU: use all, or indexes, UUIDs (GPU-...) or PCI addresses "
                "(0000:01:00.0), comma-separated",
            )
    return tuple(ids)
