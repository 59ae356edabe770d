# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The options, typed and validated. Pure: a bad value is an OptionError, never a silent "off"."""

import collections.abc
import dataclasses
import enum
import re
import typing

from ci.concourse.upstream import TAKEN_PORTS
from plan import option_values
from plan.option_values import OptionError

MODES: typing.Final = ("worker", "web", "all")
VENDORS: typing.Final = ("auto", "nvidia", "amd", "intel")
ALLOCATIONS: typing.Final = ("exclusive", "shared")
PRIVILEGED: typing.Final = ("no-gpu", "gpu")
HEALTH: typing.Final = ("on", "observe", "off")
JOB_LOG: typing.Final = ("on", "faults", "off")
UNUSED: typing.Final = ("ignore", "warn", "fail")
RECOVERY: typing.Final = ("none", "reset", "reboot")

# supported-driver-capabilities of nvidia-container-toolkit 1.20.
CAPABILITIES: typing.Final = (
    "compat32", "compute", "display", "graphics", "ngx", "utility", "video",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Minimums:
    """What the machine and each of its GPUs must have, or they fail the self-test.

    Attributes:
        gpu_memory_gib: its memory as sold; 0: any.
        compute_capability: CUDA's, such as `7.0`; empty: any.
        driver_version: of its driver, such as `535` or `580.65.06`; empty: any.
        cpus: how many processors the machine has at least; 0: any number.
        memory_gib: its memory as sold, the same.
    """

    gpu_memory_gib: int = 0
    compute_capability: str = ""
    driver_version: str = ""
    cpus: int = 0
    memory_gib: int = 0


@dataclasses.dataclass(frozen=True)
class Wrong:
    """An option whose value can't be used, and the sentence that says so."""

    option: str
    text: str


class Part(enum.Enum):
    """What of a unit can be kept as it is while the rest goes on."""

    UNIT = "unit"
    HOST = "host"
    RELEASE = "release"
    GPU = "gpu"
    WATCH = "watch"
    WORKER = "worker"
    WEB = "web"


# The part that each option is about; all that are not here are about the GPUs.
_PARTS: typing.Final = {
    "deployment-mode": Part.UNIT,
    **dict.fromkeys(
        (
            *("gpu-driver", "nvidia-container-toolkit-version", "nvidia-toolkit-mirror"),
            *("nvidia-toolkit-key", "host-packages"),
        ),
        Part.HOST,
    ),
    **dict.fromkeys(
        (
            *("gpu-health", "max-quarantined", "job-log", "gpu-unused", "gpu-metrics-port"),
            "gpu-recovery",
        ),
        Part.WATCH,
    ),
    "concourse-version": Part.RELEASE,
    "concourse-sha256": Part.RELEASE,
    **dict.fromkeys(
        ("tag", "tsa-host", "tsa-public-key", "worker-private-key", "container-dns-servers"),
        Part.WORKER,
    ),
    **dict.fromkeys(("web-port", "external-url", "advertise-address"), Part.WEB),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """All options of this unit after validation; empty strings mean "not set".

    Attributes:
        deployment_mode: one of MODES; empty where its value can't be used.
        gpu_device_ids: the ids asked for, normalised; empty means all GPUs.
        gpus_per_task: how many GPUs, or MIG devices, a task gets that does not say.
        gpu_wait_timeout: how long a task may wait for them, in seconds.
        hijack_gpu_limit: how long a hijack may keep them after the step, in minutes; 0: no limit.
        nvidia_driver_capabilities: as NVIDIA_DRIVER_CAPABILITIES is to say it.
        gpu_driver: `auto`, `none`, or the branch of NVIDIA's driver to have, such as `580-server`.
        auto_reboot: whether the machine may be rebooted where the driver needs it.
        toolkit_version: of NVIDIA's container toolkit as its packages have it, such as `1.20.0-1`;
            empty: the newest that is known to be good.
        allow_vulnerable_toolkit: whether one with known vulnerabilities may be used.
        toolkit_mirror: base URL of its repository, without a slash at its end.
        toolkit_key: the repository's public key, ASCII-armoured; empty: NVIDIA's own.
        selftest_on_start: whether the self-test runs by itself.
        gpu_health: whether the GPUs are watched: one of HEALTH.
        max_quarantined: of how many of them the watch may believe at once that they are broken, in
            percent.
        job_log: what jobs' logs are told of their GPUs: one of JOB_LOG.
        gpu_unused: what becomes of a step that does not use its GPU: one of UNUSED.
        gpu_metrics_port: TCP port of the GPUs' metrics; 0: none.
        gpu_recovery: what may be done by itself for a GPU that needs it: one of RECOVERY.
        host_packages: further packages of the distribution that the machine is to have.
        minimums: what the self-test asks of the machine and of each GPU.
        tags: the operator's own tags, in order, without repeats.
        advertise_address: where others reach this unit's web: an address, a name, or the network
            that has the address, with its `/`.
        worker_private_key: PEM text out of the Juju secret; empty: the charm makes one.
        wrong: those whose values can't be used; each keeps its own part as it is.
    """

    deployment_mode: str = ""
    enable_gpu: bool = False
    gpu_device_ids: tuple[str, ...] = ()
    gpu_vendor: str = "auto"
    gpu_allocation: str = "exclusive"
    gpus_per_task: int = 1
    gpu_wait_timeout: int = 240
    hijack_gpu_limit: int = 30
    privileged_tasks: str = "no-gpu"
    nvidia_driver_capabilities: str = "compute,utility"
    gpu_driver: str = "auto"
    auto_reboot: bool = False
    toolkit_version: str = ""
    allow_vulnerable_toolkit: bool = False
    toolkit_mirror: str = ""
    toolkit_key: str = ""
    selftest_on_start: bool = True
    gpu_health: str = "on"
    max_quarantined: int = 50
    job_log: str = "on"
    gpu_unused: str = "warn"
    gpu_metrics_port: int = 19835
    gpu_recovery: str = "none"
    host_packages: tuple[str, ...] = ()
    minimums: Minimums = Minimums()
    tags: tuple[str, ...] = ()
    concourse_version: str = ""
    concourse_sha256: str = ""
    tsa_hosts: tuple[str, ...] = ()
    tsa_public_key: str = ""
    worker_private_key: str = dataclasses.field(default="", repr=False)
    web_port: int = 8080
    external_url: str = ""
    advertise_address: str = ""
    container_dns_servers: tuple[str, ...] = ()
    wrong: tuple[Wrong, ...] = ()

    @property
    def has_worker(self) -> bool:
        """Whether this unit runs CI steps."""
        return self.deployment_mode in ("worker", "all")

    @property
    def has_web(self) -> bool:
        """Whether this unit serves the web UI and the TSA."""
        return self.deployment_mode in ("web", "all")

    @property
    def frozen(self) -> frozenset[Part]:
        """The parts that stay as they are, since an option of theirs can't be used."""
        parts = {_PARTS.get(one.option, Part.GPU) for one in self.wrong}
        # Whose GPUs are used decides what the host needs for them.
        if any(one.option == "gpu-vendor" for one in self.wrong):
            parts.add(Part.HOST)
        return frozenset(parts)


def parse(
    raw: collections.abc.Mapping[str, object], wrong: collections.abc.Iterable[OptionError] = ()
) -> Options:
    """Make Options of Juju's config.

    A value that can't be used takes nothing but its own part from this unit: it is listed in
    `wrong`, and its field has the default, which nobody may act on.

    Args:
        raw: option name (with hyphens) to value; for `worker-private-key` the PEM text itself.
        wrong: what could not even be read.
    """
    read: dict[str, typing.Any] = {}
    faults = {error.option: error for error in wrong}
    for field, reader in _READERS.items():
        try:
            read[field] = reader(raw)
        except OptionError as error:
            faults.setdefault(error.option, error)
    return Options(**read, wrong=tuple(Wrong(name, str(why)) for name, why in faults.items()))


def gpu_vendor(raw: collections.abc.Mapping[str, object]) -> str:
    """Whose GPUs are looked for, whatever the other options say.

    Args:
        raw: as for `parse`.

    Raises:
        OptionError: if gpu-vendor can't be used.
    """
    return _choice(raw, "gpu-vendor", VENDORS)


def _outside_tsa(raw: collections.abc.Mapping[str, object]) -> tuple[tuple[str, ...], str]:
    """Addresses and host key of a TSA outside Juju; both empty where there is none."""
    hosts, key = _list(raw, "tsa-host", option_values.tsa_host), _text(raw, "tsa-public-key")
    if bool(hosts) == bool(key):
        return hosts, option_values.tsa_public_key(key) if key else ""
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


def _number(
    raw: collections.abc.Mapping[str, object], option: str, most: int, least: int = 0
) -> int:
    text = _text(raw, option)
    number = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else most + 1
    if not least <= number <= most:
        raise OptionError(option, text, f"is out of range: use {least} to {most}")
    return number


def _pattern(
    raw: collections.abc.Mapping[str, object], option: str, pattern: str, remedy: str
) -> str:
    value = _text(raw, option)
    if not re.fullmatch(pattern, value):
        raise OptionError(option, value, remedy)
    return value


def _toolkit_version(raw: collections.abc.Mapping[str, object]) -> str:
    remedy = "is no version: use one such as 1.20.0-1, or leave it empty for the newest known good"
    pattern = r"(?:[0-9]{1,3}(?:\.[0-9]{1,3}){2}(?:-[0-9]{1,3})?)?"
    version = _pattern(raw, "nvidia-container-toolkit-version", pattern, remedy)
    # NVIDIA's packages of a release have the revision 1.
    return f"{version}-1" if version and "-" not in version else version


def _minimums(raw: collections.abc.Mapping[str, object]) -> Minimums:
    return Minimums(
        _number(raw, "min-gpu-memory-gib", 9999),
        _minimum(raw, "min-compute-capability", r"[0-9]{1,2}\.[0-9]", "7.0"),
        _minimum(raw, "min-driver-version", r"[0-9]{3,4}(\.[0-9]{1,4}){0,2}", "580.65.06"),
        _number(raw, "min-cpus", 9999),
        _number(raw, "min-memory-gib", 99999),
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


def _port(
    raw: collections.abc.Mapping[str, object], option: str, others: tuple[int, ...], least: int
) -> int:
    text, taken = _text(raw, option), (*TAKEN_PORTS, *others)
    port = int(text) if re.fullmatch(r"[0-9]{1,5}", text) else -1
    if not least <= port < 65536 or port in taken:
        listed = ", ".join(map(str, taken))
        raise OptionError(option, text, f"can't be used: use {least} to 65535 but not {listed}")
    return port


def _metrics_port(raw: collections.abc.Mapping[str, object]) -> int:
    # Where this unit's web listens too.
    has_web = _text(raw, "deployment-mode") in ("web", "all")
    web = _text(raw, "web-port") if has_web else ""
    others = (int(web),) if re.fullmatch(r"[0-9]{1,5}", web) else ()
    return _port(raw, "gpu-metrics-port", others, 0)


# What makes each field of Options of Juju's config; each may raise an OptionError.
_READERS: typing.Final[
    collections.abc.Mapping[
        str, collections.abc.Callable[[collections.abc.Mapping[str, object]], object]
    ]
] = {
    "deployment_mode": lambda raw: _choice(raw, "deployment-mode", MODES),
    "enable_gpu": lambda raw: bool(raw.get("enable-gpu", False)),
    "gpu_device_ids": lambda raw: option_values.device_ids(_text(raw, "gpu-device-ids")),
    "gpu_vendor": gpu_vendor,
    "gpu_allocation": lambda raw: _choice(raw, "gpu-allocation", ALLOCATIONS),
    "gpus_per_task": lambda raw: _number(raw, "gpus-per-task", 128),
    "gpu_wait_timeout": lambda raw: _number(raw, "gpu-wait-timeout", 1800),
    "hijack_gpu_limit": lambda raw: _number(raw, "hijack-gpu-limit", 1440),
    "privileged_tasks": lambda raw: _choice(raw, "privileged-tasks", PRIVILEGED),
    "nvidia_driver_capabilities": _capabilities,
    "gpu_driver": lambda raw: _pattern(
        raw,
        "gpu-driver",
        r"auto|none|[0-9]{3,4}(?:-server)?(?:-open)?",
        "is no driver: use auto, none, or a branch such as 580-server",
    ),
    "auto_reboot": lambda raw: bool(raw.get("auto-reboot", False)),
    "toolkit_version": _toolkit_version,
    "allow_vulnerable_toolkit": lambda raw: bool(raw.get("allow-vulnerable-toolkit", False)),
    "toolkit_mirror": lambda raw: option_values.url(
        "nvidia-toolkit-mirror", _text(raw, "nvidia-toolkit-mirror")
    ),
    "toolkit_key": lambda raw: option_values.pgp_key(_text(raw, "nvidia-toolkit-key")),
    "selftest_on_start": lambda raw: bool(raw.get("selftest-on-start", True)),
    "gpu_health": lambda raw: _choice(raw, "gpu-health", HEALTH),
    "max_quarantined": lambda raw: _number(raw, "max-quarantined", 100, 1),
    "job_log": lambda raw: _choice(raw, "job-log", JOB_LOG),
    "gpu_unused": lambda raw: _choice(raw, "gpu-unused", UNUSED),
    "gpu_metrics_port": _metrics_port,
    "gpu_recovery": lambda raw: _choice(raw, "gpu-recovery", RECOVERY),
    "host_packages": lambda raw: _list(raw, "host-packages", option_values.host_package),
    "minimums": _minimums,
    "tags": lambda raw: _list(raw, "tag", option_values.tag),
    "concourse_version": lambda raw: _pattern(
        raw, "concourse-version", r"[0-9]{1,3}(\.[0-9]{1,3}){2}", "is no release: use X.Y.Z"
    ),
    "concourse_sha256": lambda raw: _pattern(
        raw, "concourse-sha256", r"(?:[0-9a-fA-F]{64})?", "is no SHA-256: use 64 hex digits"
    ).lower(),
    "tsa_hosts": lambda raw: _outside_tsa(raw)[0],
    "tsa_public_key": lambda raw: _outside_tsa(raw)[1],
    "worker_private_key": lambda raw: option_values.private_key(
        str(raw.get("worker-private-key") or "")
    ),
    "web_port": lambda raw: _port(raw, "web-port", (), 1),
    "external_url": lambda raw: option_values.url("external-url", _text(raw, "external-url")),
    "advertise_address": lambda raw: option_values.advertised(_text(raw, "advertise-address")),
    "container_dns_servers": lambda raw: _list(
        raw, "container-dns-servers", option_values.name_server
    ),
}
