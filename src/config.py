# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The options, typed and validated. Pure: a bad value is an OptionError, never a silent "off"."""

import collections.abc
import dataclasses
import ipaddress
import re
import typing
import urllib.parse

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

TSA_PORT: typing.Final = 2222

# Seconds after which a web of this charm gives up a call to a worker; Concourse's own are 300. A
# task that waits for its GPU is such a call.
WEB_REQUEST_TIMEOUT: typing.Final = 2100

# sha256 of concourse-<version>-linux-amd64.tgz, from config/blobs.yml of concourse-bosh-release at
# the tag of each version. Upstream publishes SHA-1 files only, and nothing for arm64.
PINNED_SHA256: typing.Final = {
    "8.0.0": "e772bc43c62ebf546c46d1f0cd52a69d57a44af9f336e1e3a7c43869ceccb68a",
    "8.0.1": "52fee46a10f638581e022b32052b9d28e116a04f113f607a5eae20b0e34132b8",
    "8.0.2": "f4ad1ff8a60af08e52c81cab61d7a612dedd84422245b2d4607d144bf85b7144",
    "8.1.0": "32ac985baea09cecafd4eb026135376237683d41b69327a2f3f86a732072f606",
    "8.1.1": "6497d7861d595ca4988d9807b389b573df01dc430992b69b36532d18cfe3a0bf",
    "8.2.0": "d8c8c2e18e7691eaf7018561a200493db8febcca3296db7b01dba190db11e400",
    "8.2.1": "f38bdc46ca67c6741d690cc15501541605d406ffcd9dac926eee04867e5da145",
    "8.2.2": "6807298891dc0ad0843099ea367aef9cbf6e1c268c7675f7ca635911250483d6",
    "8.2.3": "6e1e911d6cb2bd5f5b04e480b1ad1d2e81ea9d0aab59ee33ba577b26afa5fd40",
    "8.2.4": "ed2bb4ddf0e750bbf3c420e316236a9b6a9539c7d1d97ecabc0163401314a537",
    "8.2.5": "8d6f0cc8cbcf49b6a6b4decb8320bbdf5c957a153883d57d01ea0dc664d685ac",
    "8.3.0": "320b0cde214893378213d1f2f38eb515c55d0d8128185b076fd7ce555bf09e2c",
}

# What Concourse itself listens on (8.2.5 tsa/tsacmd/command.go:33-36, atc/atccmd/command.go:158,
# worker/workercmd/worker.go:33-39, worker/baggageclaim/baggageclaimcmd/command_linux.go:26-29).
_TAKEN_PORTS: typing.Final = (2221, TSA_PORT, 7776, 7777, 7787, 7788, 8079, 8888)

MODES: typing.Final = ("worker", "web", "all")
VENDORS: typing.Final = ("auto", "nvidia", "amd", "intel")
ALLOCATIONS: typing.Final = ("exclusive", "shared")
PRIVILEGED: typing.Final = ("no-gpu", "gpu")

# supported-driver-capabilities of nvidia-container-toolkit 1.20.
CAPABILITIES: typing.Final = (
    "compat32", "compute", "display", "graphics", "ngx", "utility", "video",
)  # fmt: skip

# No certificates, and not ssh-dss, which OpenSSH 10.0 dropped.
_KEY_TYPES: typing.Final = (
    "ssh-rsa", "ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521",
)  # fmt: skip

_PCI_ADDRESS = re.compile(r"(?:[0-9a-f]{4,8}:)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)
# Those of NVIDIA, of AMD, and of cards that have none (gpu/inventory.py).
_UUID = re.compile(
    r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|GPU-[0-9a-f]{16}(?:-[0-9]{1,2})?"
    r"|PCI-[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]{1,2}",
    re.IGNORECASE,
)
_HOST_PORT = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")


class OptionError(ValueError):
    """An option's value can't be used; the text names option, value and what is allowed."""

    def __init__(self, option: str, value: object, remedy: str) -> None:
        text = str(value)
        shown = text if text.isprintable() else ascii(text)[1:-1]
        if len(shown) > 64:
            shown = f"{shown[:61]}..."
        super().__init__(f"{option} '{shown}' {remedy}")
        self.option = option


@dataclasses.dataclass(frozen=True)
class Minimums:
    """What each GPU must have, or it fails the self-test.

    Attributes:
        gpu_memory_gib: its memory as sold; 0: any.
        compute_capability: CUDA's, such as `7.0`; empty: any.
        driver_version: of its driver, such as `535` or `580.65.06`; empty: any.
    """

    gpu_memory_gib: int = 0
    compute_capability: str = ""
    driver_version: str = ""


@dataclasses.dataclass(frozen=True)
class Options:
    """All options of this unit after validation; empty strings mean "not set".

    Attributes:
        gpu_device_ids: the ids asked for, normalised; empty means all GPUs.
        gpus_per_task: how many GPUs, or MIG devices, a task gets that does not say.
        gpu_wait_timeout: how long a task may wait for them, in seconds.
        hijack_gpu_limit: how long a hijack may keep them after the step, in minutes; 0: no limit.
        nvidia_driver_capabilities: as NVIDIA_DRIVER_CAPABILITIES is to say it.
        selftest_on_start: whether the self-test runs by itself.
        minimums: what the self-test asks of each GPU.
        tags: the operator's own tags, in order, without repeats.
        worker_private_key: PEM text out of the Juju secret; empty: the charm makes one.
    """

    deployment_mode: str
    enable_gpu: bool
    gpu_device_ids: tuple[str, ...]
    gpu_vendor: str
    gpu_allocation: str
    gpus_per_task: int
    gpu_wait_timeout: int
    hijack_gpu_limit: int
    privileged_tasks: str
    nvidia_driver_capabilities: str
    selftest_on_start: bool
    minimums: Minimums
    tags: tuple[str, ...]
    concourse_version: str
    concourse_sha256: str
    tsa_hosts: tuple[str, ...]
    tsa_public_key: str
    worker_private_key: str = dataclasses.field(repr=False)
    web_port: int
    external_url: str
    container_dns_servers: tuple[str, ...]

    @property
    def has_worker(self) -> bool:
        """Whether this unit runs CI steps."""
        return self.deployment_mode in ("worker", "all")

    @property
    def has_web(self) -> bool:
        """Whether this unit serves the web UI and the TSA."""
        return self.deployment_mode in ("web", "all")


def parse(raw: collections.abc.Mapping[str, object]) -> Options:
    """Make Options of Juju's config.

    Args:
        raw: option name (with hyphens) to value; for `worker-private-key` the PEM text itself.

    Raises:
        OptionError: if a value can't be used.
    """
    hosts, key = _outside_tsa(raw)
    return Options(
        deployment_mode=_choice(raw, "deployment-mode", MODES),
        enable_gpu=bool(raw.get("enable-gpu", False)),
        gpu_device_ids=_device_ids(_text(raw, "gpu-device-ids")),
        gpu_vendor=_choice(raw, "gpu-vendor", VENDORS),
        gpu_allocation=_choice(raw, "gpu-allocation", ALLOCATIONS),
        gpus_per_task=_number(raw, "gpus-per-task", 128),
        gpu_wait_timeout=_number(raw, "gpu-wait-timeout", 1800),
        hijack_gpu_limit=_number(raw, "hijack-gpu-limit", 1440),
        privileged_tasks=_choice(raw, "privileged-tasks", PRIVILEGED),
        nvidia_driver_capabilities=_capabilities(raw),
        selftest_on_start=bool(raw.get("selftest-on-start", True)),
        minimums=_minimums(raw),
        tags=_list(raw, "tag", _tag),
        concourse_version=_pattern(
            raw, "concourse-version", r"[0-9]{1,3}(\.[0-9]{1,3}){2}", "is no release: use X.Y.Z"
        ),
        concourse_sha256=_pattern(
            raw, "concourse-sha256", r"(?:[0-9a-fA-F]{64})?", "is no SHA-256: use 64 hex digits"
        ).lower(),
        tsa_hosts=hosts,
        tsa_public_key=key,
        worker_private_key=_private_key(str(raw.get("worker-private-key") or "")),
        web_port=_port(raw),
        external_url=_url(_text(raw, "external-url")),
        container_dns_servers=_list(raw, "container-dns-servers", _address),
    )


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


def _outside_tsa(raw: collections.abc.Mapping[str, object]) -> tuple[tuple[str, ...], str]:
    """Addresses and host key of a TSA outside Juju; both empty where there is none."""
    hosts, key = _list(raw, "tsa-host", _tsa_host), _text(raw, "tsa-public-key")
    if bool(hosts) == bool(key):
        return hosts, _option_key(key) if key else ""
    given, missing = ("tsa-host", "tsa-public-key") if hosts else ("tsa-public-key", "tsa-host")
    raise OptionError(given, raw[given], f"needs {missing} beside it: set both or none")


def _text(raw: collections.abc.Mapping[str, object], option: str) -> str:
    value = raw.get(option)
    return "" if value is None else str(value).strip()


def _choice(
    raw: collections.abc.Mapping[str, object], option: str, allowed: tuple[str, ...]
) -> str:
    value = _text(raw, option)
    if value not in allowed:
        raise OptionError(option, value, f"is unknown: use {', '.join(allowed)}")
    return value


def _number(raw: collections.abc.Mapping[str, object], option: str, most: int) -> int:
    text = _text(raw, option)
    number = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else most + 1
    if number > most:
        raise OptionError(option, text, f"is out of range: use 0 to {most}")
    return number


def _pattern(
    raw: collections.abc.Mapping[str, object], option: str, pattern: str, remedy: str
) -> str:
    value = _text(raw, option)
    if not re.fullmatch(pattern, value):
        raise OptionError(option, value, remedy)
    return value


def _minimums(raw: collections.abc.Mapping[str, object]) -> Minimums:
    return Minimums(
        int(_minimum(raw, "min-gpu-memory-gib", r"[0-9]{1,4}", "16") or 0),
        _minimum(raw, "min-compute-capability", r"[0-9]{1,2}\.[0-9]", "7.0"),
        _minimum(raw, "min-driver-version", r"[0-9]{3,4}(\.[0-9]{1,4}){0,2}", "580.65.06"),
    )


def _minimum(
    raw: collections.abc.Mapping[str, object], option: str, pattern: str, example: str
) -> str:
    remedy = f"is no minimum: use a number such as {example}, or leave it empty for none"
    return _pattern(raw, option, f"(?:{pattern})?", remedy)


def _list(
    raw: collections.abc.Mapping[str, object],
    option: str,
    check: collections.abc.Callable[[str], str],
) -> tuple[str, ...]:
    """The comma-separated items of an option, each checked, in order, without repeats."""
    items: dict[str, None] = {}
    for item in (part.strip() for part in _text(raw, option).split(",")):
        if item:
            items[check(item)] = None
    return tuple(items)


def _capabilities(raw: collections.abc.Mapping[str, object]) -> str:
    option = "nvidia-driver-capabilities"

    def check(item: str) -> str:
        if item not in CAPABILITIES:
            remedy = f"is unknown: use all, or some of {', '.join(CAPABILITIES)}"
            raise OptionError(option, item, remedy)
        return item

    text = _text(raw, option)
    # With none at all the step would see no library of the driver's.
    return text if text == "all" else ",".join(_list(raw, option, check)) or check(text)


def _tag(item: str) -> str:
    if not item.isprintable():
        raise OptionError("tag", item, "has a character that can't be printed: remove it")
    return item


def _address(item: str) -> str:
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


def _tsa_host(item: str) -> str:
    match = _HOST_PORT.fullmatch(item)
    if not match or not 0 < int(match.group(1)) < 65536:
        raise OptionError("tsa-host", item, f"is no HOST:PORT: use ci.example.com:{TSA_PORT}")
    return item


def _option_key(text: str) -> str:
    try:
        return public_key(text)
    except ValueError as error:
        raise OptionError(
            "tsa-public-key", text, f"{error}: use the line of tsa_host_key.pub"
        ) from error


def _private_key(pem: str) -> str:
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


def _port(raw: collections.abc.Mapping[str, object]) -> int:
    text = _text(raw, "web-port")
    port = int(text) if re.fullmatch(r"[0-9]{1,5}", text) else 0
    if not 0 < port < 65536 or port in _TAKEN_PORTS:
        taken = ", ".join(str(number) for number in _TAKEN_PORTS)
        raise OptionError("web-port", text, f"can't be used: use 1 to 65535 but not {taken}")
    return port


def _url(text: str) -> str:
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
        raise OptionError("external-url", text, "is no URL: use http://HOST or https://HOST")
    return text.rstrip("/")


def _device_ids(text: str) -> tuple[str, ...]:
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
