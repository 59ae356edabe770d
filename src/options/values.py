# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a value of an option may be: each function returns it as it is used. Pure."""

import ipaddress
import re
import typing
import urllib.parse

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

# What host-packages may name: programs for people and builds, which start no server, open no port,
# have no say in the kernel and need no other archive than Ubuntu's and Debian's.
HOST_PACKAGES: typing.Final = (
    *("btop", "htop", "iotop", "nvtop", "sysstat"),  # who is busy, and with what
    *("hwloc-nox", "lshw", "numactl", "pciutils", "usbutils"),  # what the machine is made of
    *("lsof", "psmisc", "strace"),  # what a process does
    *("ccache", "curl", "git", "git-lfs", "jq", "rsync", "unzip", "wget", "zstd"),
    *("less", "nano", "tmux", "tree", "vim"),
)

_PCI_ADDRESS = re.compile(r"(?:[0-9a-f]{4,8}:)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)
# Those of NVIDIA, of AMD, and of cards that have none (gpu_agent.model.inventory).
_UUID = re.compile(
    r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|GPU-[0-9a-f]{16}(?:-[0-9]{1,2})?"
    r"|PCI-[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]{1,2}",
    re.IGNORECASE,
)
# A name whose last part is a number is taken for an address by resolvers.
HOST_NAME = re.compile(
    r"(?=.{1,253}$)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?",
    re.IGNORECASE,
)
HOST_PORT = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")


class OptionError(ValueError):
    """An option's value can't be used; the text names option, value and what is allowed."""

    def __init__(self, option: str, value: object, remedy: str) -> None:
        text = str(value)
        shown = text if text.isprintable() else ascii(text)[1:-1]
        if len(shown) > 64:
            shown = f"{shown[:61]}..."
        super().__init__(f"{option} '{shown}' {remedy}")
        self.option = option


def tag(item: str) -> str:
    """One tag of the operator's own."""
    if not item.isprintable():
        raise OptionError("tag", item, "has a character that can't be printed: remove it")
    return item


def host_package(item: str) -> str:
    """A package of the distribution that the operator may want on the machine."""
    if item not in HOST_PACKAGES:
        remedy = f"is none of those that can be had: use {', '.join(sorted(HOST_PACKAGES))}"
        raise OptionError("host-packages", item, remedy)
    return item


def name_server(item: str) -> str:
    """A name server that containers can reach."""
    remedy = "is no IP address: use addresses such as 10.0.0.53"
    if "%" in item:  # a container has no interface of that name, and anything may follow it
        raise OptionError("container-dns-servers", item, remedy)
    try:
        address = ipaddress.ip_address(item)
    except ValueError as error:
        raise OptionError("container-dns-servers", item, remedy) from error
    # A container has a loopback of its own; 127.0.0.53 is what resolv.conf of Ubuntu says.
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        remedy = "is out of reach for containers: use addresses such as 10.0.0.53"
        raise OptionError("container-dns-servers", item, remedy)
    return str(address)


def private_key(pem: str) -> str:
    """An RSA key in PEM without a password, or nothing."""
    # Concourse takes unencrypted RSA keys in PEM only (concourse 8.2.5 flag/private_key.go).
    if not pem:
        return ""
    remedy = "holds no unencrypted RSA key in PEM: put one under the key private-key"
    try:
        key = serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise OptionError("worker-private-key", "(secret)", remedy) from error
    if not isinstance(key, rsa.RSAPrivateKey):
        raise OptionError("worker-private-key", "(secret)", remedy)
    return pem


def certificates(pem: str) -> str:
    """Certificates in PEM, without what stands between them; or nothing."""
    if not pem:
        return ""
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
    except ValueError as error:
        remedy = "holds no certificates in PEM: use the text of a file such as ca.crt"
        raise OptionError("ca-certificates", f"{pem[:27]}...", remedy) from error
    return "".join(one.public_bytes(serialization.Encoding.PEM).decode() for one in found)


def url(option: str, text: str) -> str:
    """A URL of HTTP without a slash at its end, or nothing."""
    if not text:
        return ""
    try:
        url = urllib.parse.urlsplit(text)
        # A password in it would be shown to everybody who opens the page.
        good = url.scheme in ("http", "https") and bool(url.hostname) and url.username is None
        good = good and url.port != 0 and not url.query and not url.fragment
    except ValueError:  # an IPv6 address or a port that is none
        good = False
    if not good or not re.fullmatch(r"[!-~]+", text):
        raise OptionError(option, text, "is no URL: use http://HOST or https://HOST")
    return text.rstrip("/")


def pgp_key(text: str) -> str:
    """A public key of OpenPGP in ASCII armour, or nothing."""
    armour = r"-----BEGIN PGP PUBLIC KEY BLOCK-----\s[\s!-~]*-----END PGP PUBLIC KEY BLOCK-----"
    if text and not re.fullmatch(armour, text):
        remedy = "is no public key in ASCII armour: use the text of the mirror's gpgkey"
        raise OptionError("nvidia-toolkit-key", text, remedy)
    return f"{text}\n" if text else ""


def device_ids(text: str) -> tuple[str, ...]:
    """Indexes as decimal numbers, UUIDs and PCI addresses in NVML's spelling; empty for all."""
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
                "is no id of a GPU: use all, or indexes, UUIDs (GPU-...) or PCI addresses "
                "(0000:01:00.0), comma-separated",
            )
    return tuple(ids)
