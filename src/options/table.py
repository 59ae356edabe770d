# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The options, typed and validated. Pure: a bad value is an OptionError, never a silent "off"."""

import collections.abc
import dataclasses
import re
import typing

from ci.concourse.options import release as release_options
from ci.concourse.options import web as web_options
from ci.concourse.options import worker as worker_options
from ci.concourse.options.release import ReleaseOptions
from ci.concourse.options.web import WebOptions
from ci.concourse.options.worker import WorkerOptions
from gpu_agent.runtime.settings import Folder
from options import part
from options import values as option_values
from options.readers import Raw, Readers, choice, items, number, pattern, port, text
from options.values import OptionError

MODES: typing.Final = ("worker", "web", "all")
VENDORS: typing.Final = ("auto", "nvidia", "amd", "intel")
ALLOCATIONS: typing.Final = ("exclusive", "shared")
PRIVILEGED: typing.Final = ("no-gpu", "gpu")
HEALTH: typing.Final = ("on", "observe", "off")
JOB_LOG: typing.Final = ("on", "faults", "off")
UNUSED: typing.Final = ("ignore", "warn", "fail")
RECOVERY: typing.Final = ("none", "reset", "reboot")
ENGINES: typing.Final = ("podman", "docker")


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


# The part that each option is about; all that are not here are about the GPUs.
_PARTS: typing.Final = {
    "deployment-mode": part.Part.UNIT,
    **dict.fromkeys(
        (
            *("gpu-driver", "nvidia-container-toolkit-version", "nvidia-toolkit-mirror"),
            *("nvidia-toolkit-key", "host-packages"),
        ),
        part.Part.HOST,
    ),
    **dict.fromkeys(
        (
            *("gpu-health", "max-quarantined", "job-log", "gpu-unused", "gpu-metrics-port"),
            "gpu-recovery",
        ),
        part.Part.WATCH,
    ),
    "gpu-run-group": part.Part.RUN,
    **dict.fromkeys(("container-engines", "engine-default-runtime"), part.Part.ENGINES),
    **dict.fromkeys(release_options.NAMES, part.Part.RELEASE),
    **dict.fromkeys(worker_options.NAMES, part.Part.WORKER),
    **dict.fromkeys(web_options.NAMES, part.Part.WEB),
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
        gpu_run_group: whose members may use gpu-run; empty: there is none.
        host_packages: further packages of the distribution that the machine is to have.
        container_engines: whose containers can have GPUs by lease: some of ENGINES.
        engine_default_runtime: whether our runtime is that of containers that name none.
        minimums: what the self-test asks of the machine and of each GPU.
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
    gpu_metrics_port: int = 335
    gpu_recovery: str = "none"
    gpu_run_group: str = ""
    host_packages: tuple[str, ...] = ()
    container_engines: tuple[str, ...] = ()
    engine_default_runtime: bool = False
    minimums: Minimums = Minimums()
    release: ReleaseOptions = ReleaseOptions()
    worker: WorkerOptions = WorkerOptions()
    web: WebOptions = WebOptions()
    wrong: tuple[Wrong, ...] = ()

    @property
    def has_worker(self) -> bool:
        """Whether this unit runs CI steps."""
        return self.deployment_mode in ("worker", "all")

    @property
    def task_folders(self) -> tuple[Folder, ...]:
        """The folders of this machine that tasks get; none without a worker."""
        return self.worker.folders if self.has_worker else ()

    @property
    def has_web(self) -> bool:
        """Whether this unit serves the web UI and the TSA."""
        return self.deployment_mode in ("web", "all")

    @property
    def frozen(self) -> frozenset[part.Part]:
        """The parts that stay as they are, since an option of theirs can't be used."""
        parts = {_PARTS.get(one.option, part.Part.GPU) for one in self.wrong}
        # Whose GPUs are used decides what the host needs for them.
        if any(one.option == "gpu-vendor" for one in self.wrong):
            parts.add(part.Part.HOST)
        return frozenset(parts)


def parse(raw: Raw, wrong: collections.abc.Iterable[OptionError] = ()) -> Options:
    """Make Options of Juju's config.

    A value that can't be used takes nothing but its own part from this unit: it is listed in
    `wrong`, and its field has the default, which nobody may act on.

    Args:
        raw: option name (with hyphens) to value; for `worker-private-key` the PEM text itself.
        wrong: what could not even be read.
    """
    faults = {error.option: error for error in wrong}
    read = _read(_READERS, raw, faults)
    release = ReleaseOptions(**_read(release_options.READERS, raw, faults))
    worker = WorkerOptions(**_read(worker_options.READERS, raw, faults))
    web = WebOptions(**_read(web_options.READERS, raw, faults))
    said = tuple(Wrong(name, str(why)) for name, why in faults.items())
    return Options(**read, release=release, worker=worker, web=web, wrong=said)


def _read(readers: Readers, raw: Raw, faults: dict[str, OptionError]) -> dict[str, typing.Any]:
    """The fields whose values can be used; the faults of the others are added."""
    read: dict[str, typing.Any] = {}
    for field, reader in readers.items():
        try:
            read[field] = reader(raw)
        except OptionError as error:
            faults.setdefault(error.option, error)
    return read


def gpu_vendor(raw: Raw) -> str:
    """Whose GPUs are looked for, whatever the other options say.

    Args:
        raw: as for `parse`.

    Raises:
        OptionError: if gpu-vendor can't be used.
    """
    return choice(raw, "gpu-vendor", VENDORS)


def _toolkit_version(raw: Raw) -> str:
    remedy = "is no version: use one such as 1.20.0-1, or leave it empty for the newest known good"
    allowed = r"(?:[0-9]{1,3}(?:\.[0-9]{1,3}){2}(?:-[0-9]{1,3})?)?"
    version = pattern(raw, "nvidia-container-toolkit-version", allowed, remedy)
    # NVIDIA's packages of a release have the revision 1.
    return f"{version}-1" if version and "-" not in version else version


def _toolkit_mirror(raw: Raw) -> str:
    option = "nvidia-toolkit-mirror"
    url = option_values.url(option, text(raw, option))
    if url.lower().startswith("http:") and not text(raw, "nvidia-toolkit-key"):
        remedy = "gives its key unencrypted: use https, or give the key with nvidia-toolkit-key"
        raise OptionError(option, url, remedy)
    return url


def _minimums(raw: Raw) -> Minimums:
    return Minimums(
        number(raw, "min-gpu-memory-gib", 9999),
        _minimum(raw, "min-compute-capability", r"[0-9]{1,2}\.[0-9]", "7.0"),
        _minimum(raw, "min-driver-version", r"[0-9]{3,4}(\.[0-9]{1,4}){0,2}", "580.65.06"),
        number(raw, "min-cpus", 9999),
        number(raw, "min-memory-gib", 99999),
    )


def _minimum(raw: Raw, option: str, allowed: str, example: str) -> str:
    remedy = f"is no minimum: use a number such as {example}, or leave it empty for none"
    return pattern(raw, option, f"(?:{allowed})?", remedy)


def _engine(item: str) -> str:
    if item not in ENGINES:
        remedy = f"is unknown: use {' or '.join(ENGINES)}, both, or leave it empty"
        raise OptionError("container-engines", item, remedy)
    return item


def _metrics_port(raw: Raw) -> int:
    # Where this unit's web listens too.
    has_web = text(raw, "deployment-mode") in ("web", "all")
    web = text(raw, "web-port") if has_web else ""
    others = (int(web),) if re.fullmatch(r"[0-9]{1,5}", web) else ()
    return port(raw, "gpu-metrics-port", others, 0)


# What makes each field of Options of Juju's config; each may raise an OptionError.
_READERS: typing.Final[Readers] = {
    "deployment_mode": lambda raw: choice(raw, "deployment-mode", MODES),
    "enable_gpu": lambda raw: bool(raw.get("enable-gpu", False)),
    "gpu_device_ids": lambda raw: option_values.device_ids(text(raw, "gpu-device-ids")),
    "gpu_vendor": gpu_vendor,
    "gpu_allocation": lambda raw: choice(raw, "gpu-allocation", ALLOCATIONS),
    "gpus_per_task": lambda raw: number(raw, "gpus-per-task", 128),
    "gpu_wait_timeout": lambda raw: number(raw, "gpu-wait-timeout", 1800),
    "hijack_gpu_limit": lambda raw: number(raw, "hijack-gpu-limit", 1440),
    "privileged_tasks": lambda raw: choice(raw, "privileged-tasks", PRIVILEGED),
    "gpu_driver": lambda raw: pattern(
        raw,
        "gpu-driver",
        r"auto|none|[0-9]{3,4}(?:-server)?(?:-open)?",
        "is no driver: use auto, none, or a branch such as 580-server",
    ),
    "auto_reboot": lambda raw: bool(raw.get("auto-reboot", False)),
    "toolkit_version": _toolkit_version,
    "allow_vulnerable_toolkit": lambda raw: bool(raw.get("allow-vulnerable-toolkit", False)),
    "toolkit_mirror": _toolkit_mirror,
    "toolkit_key": lambda raw: option_values.pgp_key(text(raw, "nvidia-toolkit-key")),
    "selftest_on_start": lambda raw: bool(raw.get("selftest-on-start", True)),
    "gpu_health": lambda raw: choice(raw, "gpu-health", HEALTH),
    "max_quarantined": lambda raw: number(raw, "max-quarantined", 100, 1),
    "job_log": lambda raw: choice(raw, "job-log", JOB_LOG),
    "gpu_unused": lambda raw: choice(raw, "gpu-unused", UNUSED),
    "gpu_metrics_port": _metrics_port,
    "gpu_recovery": lambda raw: choice(raw, "gpu-recovery", RECOVERY),
    # What a group may be called: systemd's own rule for SocketGroup= (valid_user_group_name).
    "gpu_run_group": lambda raw: pattern(
        raw,
        "gpu-run-group",
        r"(?:[A-Za-z_][A-Za-z0-9_-]{0,30})?",
        "is no group's name: use one such as gpu-users, or leave it empty for no gpu-run",
    ),
    "host_packages": lambda raw: items(raw, "host-packages", option_values.host_package),
    "container_engines": lambda raw: items(raw, "container-engines", _engine),
    "engine_default_runtime": lambda raw: bool(raw.get("engine-default-runtime", False)),
    "minimums": _minimums,
}
