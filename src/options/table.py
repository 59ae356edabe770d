# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The table of options, and their values, typed and validated. Pure.

A value that cannot be used is an OptionError, never a silent default. `scripts/tables` writes
config.yaml and docs/reference/options.md from the table.
"""

import collections.abc
import dataclasses
import re
import typing

from gpu_agent.engines import registry as engines
from gpu_agent.gpu.vendors import registry as vendors
from options import readers, values
from options.declaration import CiOptions, Group, Option
from options.part import Part
from options.readers import Raw, text
from options.values import OptionError

MODES: typing.Final = ("worker", "web", "all")
VENDORS: typing.Final = ("auto", *vendors.NAMES)
ENGINES: typing.Final = tuple(engine.name for engine in engines.ALL)


@dataclasses.dataclass(frozen=True)
class Minimums:
    """The least that the self-test accepts of the machine and of each GPU.

    Attributes:
        cpus: processors of the machine; 0: any number.
        memory_gib: memory of the machine in GiB, as sold; 0: any size.
        gpu_memory_gib: memory of each GPU in GiB, as sold; 0: any size.
        compute_capability: CUDA compute capability of each GPU, such as `7.0`; empty: any.
        driver_version: version of the driver, such as `535` or `580.65.06`; empty: any.
    """

    cpus: int = 0
    memory_gib: int = 0
    gpu_memory_gib: int = 0
    compute_capability: str = ""
    driver_version: str = ""


@dataclasses.dataclass(frozen=True)
class Engines:
    """The engines whose containers may use GPUs; some of ENGINES.

    Attributes:
        names: all of them.
        default: those whose containers get our runtime if they name none.
    """

    names: tuple[str, ...] = ()
    default: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Wrong:
    """An option whose value cannot be used, the sentence that says why, and its part."""

    option: str
    text: str
    part: Part


@dataclasses.dataclass(frozen=True)
class Options:
    """All options of this unit after validation; empty strings mean "not set".

    Attributes:
        ci_system: the name of the CI system on this unit.
        deployment_mode: one of MODES; empty if its value cannot be used.
        gpu_device_ids: the ids that the operator chose, normalised; empty: all GPUs.
        gpus_per_task: GPUs, or MIG devices, of a task that sets no GPU_COUNT.
        gpu_wait_timeout: maximum time that a task waits for them, in seconds.
        gpu_driver: `auto`, `none`, or the branch of the NVIDIA driver, such as `580-server`.
        auto_reboot: when the charm may reboot the machine: `none`, `driver`, `gpu` or `all`.
        toolkit_version: version of the container toolkit's packages, such as `1.20.0-1`; empty:
            the newest that is known to be good.
        toolkit_mirror: base URL of its repository, without a slash at its end.
        toolkit_key: public key of the repository, in ASCII armour; empty: NVIDIA's own.
        quarantine_limit_percent: share of the GPUs that may fail at once for the same reason.
        gpu_metrics_port: TCP port of the GPU metrics; 0: none.
        gpu_run_group: the group whose members may use gpu-run; empty: gpu-run is not available.
        extra_tags: the operator's own tags, in order, without repeats.
        drain_timeout: maximum time to wait for running jobs, in seconds; 0: do not wait.
        ci: the options of the CI system, which only the CI system reads.
        wrong: the options whose values cannot be used; each leaves its own part unchanged.
    """

    ci_system: str
    deployment_mode: str
    enable_gpu: bool
    gpu_device_ids: tuple[str, ...]
    gpu_vendor: str
    gpu_allocation: str
    gpus_per_task: int
    gpu_wait_timeout: int
    gpu_for_privileged_tasks: bool
    container_engines: Engines
    gpu_run_group: str
    gpu_driver: str
    auto_reboot: str
    toolkit_version: str
    allow_vulnerable_toolkit: bool
    toolkit_mirror: str
    toolkit_key: str
    selftest_on_start: bool
    minimums: Minimums
    gpu_health: str
    quarantine_limit_percent: int
    gpu_recovery: str
    job_log: str
    idle_gpu_action: str
    gpu_metrics_port: int
    extra_tags: tuple[str, ...]
    drain_timeout: int
    ci: object
    wrong: tuple[Wrong, ...] = ()

    @property
    def has_worker(self) -> bool:
        """Whether this unit runs jobs."""
        return self.deployment_mode in ("worker", "all")

    @property
    def has_web(self) -> bool:
        """Whether this unit serves the CI system's web UI and scheduler."""
        return self.deployment_mode in ("web", "all")

    @property
    def may_reboot_for_driver(self) -> bool:
        """Whether the charm may reboot the machine if the driver needs it."""
        return self.auto_reboot in ("driver", "all")

    @property
    def may_reboot_for_gpu(self) -> bool:
        """Whether the charm may reboot the machine if a quarantined GPU needs it."""
        return self.auto_reboot in ("gpu", "all")

    @property
    def frozen(self) -> frozenset[Part]:
        """The parts that stay unchanged because an option of theirs cannot be used."""
        parts = {one.part for one in self.wrong}
        # The vendor of the GPUs decides what the host needs for them.
        if any(one.option == "gpu-vendor" for one in self.wrong):
            parts.add(Part.HOST)
        return frozenset(parts)


def parse(raw: Raw, ci: CiOptions, wrong: collections.abc.Iterable[OptionError] = ()) -> Options:
    """Make Options of Juju's config; options that are not in it have their defaults.

    An option whose value cannot be used is listed in `wrong`, and its part of the unit stays
    unchanged. Its field has the default, which must not be acted on.

    Args:
        raw: option name (with hyphens) to value; of a secret the fields, or None if they cannot
            be read.
        ci: the options of the CI system that `raw` chooses.
        wrong: the options that could not even be read.
    """
    table = (*OPTIONS, *ci.declared)
    standard = defaults(table)
    given = {**standard, **raw}
    faults = {error.option: error for error in wrong}

    def read(declared: tuple[Option, ...]) -> dict[str, typing.Any]:
        found: dict[str, typing.Any] = {}
        for option in declared:
            try:
                found[option.field] = option.value(given)
            except OptionError as error:
                faults.setdefault(error.option, error)
                found[option.field] = option.value(standard)
        return found

    fields = read(OPTIONS)
    own = ci.make(read)
    try:
        readers.port(given, "gpu-metrics-port", ci.ports(given), 0)
    except OptionError as error:
        faults["gpu-metrics-port"] = error
        fields["gpu_metrics_port"] = standard["gpu-metrics-port"]
    if {"deployment-mode", "ci-system"} & faults.keys():
        fields["deployment_mode"] = ""
    part = {"ci-system": Part.UNIT, **{option.name: option.part for option in table}}
    said = tuple(Wrong(name, str(why), part[name]) for name, why in faults.items())
    return Options(**fields, ci_system=ci.name, ci=own, wrong=said)


def defaults(table: collections.abc.Iterable[Option]) -> Raw:
    """Return the defaults of these options by their names; a secret has none."""
    return {option.name: option.default for option in table if not option.is_secret}


def drain_timeout(raw: Raw) -> int:
    """Read how long to wait for running builds, in seconds, whatever the other options say.

    Raises:
        OptionError: drain-timeout cannot be used.
    """
    return readers.duration(raw, "drain-timeout")


def _listed(names: collections.abc.Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def gpu_vendor(raw: Raw) -> str:
    """Read whose GPUs are looked for, whatever the other options say.

    Args:
        raw: as for `parse`.

    Raises:
        OptionError: gpu-vendor cannot be used.
    """
    return readers.choice(raw, "gpu-vendor", VENDORS)


def _toolkit_version(raw: Raw) -> str:
    remedy = (
        "is not a version: use one such as 1.20.0-1, or leave it empty for the newest good one"
    )
    allowed = r"(?:[0-9]{1,3}(?:\.[0-9]{1,3}){2}(?:-[0-9]{1,3})?)?"
    version = readers.pattern(raw, "nvidia-container-toolkit-version", allowed, remedy)
    # NVIDIA's packages of a release have the revision 1.
    return f"{version}-1" if version and "-" not in version else version


def _toolkit_mirror(raw: Raw) -> str:
    option = "nvidia-toolkit-mirror"
    url = values.url(option, text(raw, option))
    if url.lower().startswith("http:") and not text(raw, "nvidia-toolkit-key"):
        remedy = "would send its key unencrypted: use https, or set nvidia-toolkit-key"
        raise OptionError(option, url, remedy)
    return url


def _minimums(raw: Raw) -> Minimums:
    fields = {
        "cpus": ("cpus", readers.in_range(9999)),
        "memory": ("memory_gib", readers.in_range(99999, "GiB")),
        "gpu-memory": ("gpu_memory_gib", readers.in_range(9999, "GiB")),
        "compute-capability": ("compute_capability", _like(r"[0-9]{1,2}\.[0-9]", "7.0")),
        "driver": ("driver_version", _like(r"[0-9]{3,4}(\.[0-9]{1,4}){0,2}", "580.65.06")),
    }
    known = {name: check for name, (_, check) in fields.items()}
    given = readers.settings(raw, "minimums", known)
    return Minimums(**{fields[name][0]: found for name, (found,) in given.items()})


def _like(allowed: str, example: str) -> collections.abc.Callable[[str], str]:
    def check(value: str) -> str:
        if not re.fullmatch(allowed, value):
            raise ValueError(f"is not a version: use one such as {example}")
        return value

    return check


def _engines(raw: Raw) -> Engines:
    found: dict[str, bool] = {}
    for item in readers.split(text(raw, "container-engines")):
        name, _, said = item.partition("=")
        if name not in ENGINES or item not in (name, f"{name}=default"):
            *most, last = (word for one in ENGINES for word in (one, f"{one}=default"))
            remedy = f"is unknown: use {', '.join(most)} or {last}"
            raise OptionError("container-engines", item, remedy)
        if name in found:
            raise OptionError("container-engines", item, f"repeats {name}: give it once")
        found[name] = bool(said)
    return Engines(tuple(found), tuple(name for name, is_default in found.items() if is_default))


OPTIONS: typing.Final = (
    Option(
        "deployment-mode",
        default="worker",
        text=(
            "What this unit runs: `worker` (CI steps), `web` (the CI system's web UI and its "
            "scheduler, where workers register) or `all` (both on one machine). With "
            "ci-system=none only `worker` is possible."
        ),
        group=Group.EVERYDAY,
        part=Part.UNIT,
        field="deployment_mode",
        values=MODES,
    ),
    Option(
        "enable-gpu",
        default=False,
        text=(
            "Give the GPUs of this worker to CI tasks. Setting it to false removes the GPU "
            "runtime, the GPU tags and their configuration from the worker."
        ),
        group=Group.EVERYDAY,
        part=Part.GPU,
        field="enable_gpu",
    ),
    Option(
        "gpu-device-ids",
        default="all",
        text=(
            "GPUs that tasks may use: `all`, or a comma-separated list of indexes, UUIDs "
            "(GPU-...) or PCI addresses (0000:01:00.0). Indexes are resolved once, when the "
            "option is set: if the numbering changes later, tasks keep the same cards. If the "
            "list cannot be used, tasks keep the GPUs of the last usable list."
        ),
        group=Group.EVERYDAY,
        part=Part.GPU,
        field="gpu_device_ids",
        read=lambda raw: values.device_ids(text(raw, "gpu-device-ids")),
    ),
    Option(
        "gpus-per-task",
        default=1,
        text=(
            "Number of GPUs (or MIG devices) of a task that does not set GPU_COUNT, 0 to 128. "
            "With gpu-allocation=shared, 0 means none and any other number means all."
        ),
        group=Group.EVERYDAY,
        part=Part.GPU,
        field="gpus_per_task",
        read=lambda raw: readers.number(raw, "gpus-per-task", 128),
    ),
    Option(
        "gpu-vendor",
        default="auto",
        text=(
            f"Vendor of the GPUs to use: {_listed(vendors.NAMES)}, or `auto`: the first of these "
            "vendors with a usable GPU on the machine, not counting GPUs that are part of a "
            "processor. A worker uses the GPUs of one vendor."
        ),
        group=Group.GPUS,
        part=Part.GPU,
        field="gpu_vendor",
        values=VENDORS,
    ),
    Option(
        "gpu-allocation",
        default="exclusive",
        text=(
            "`exclusive`: a GPU (or MIG device) belongs to one task at a time, and other tasks "
            "wait for it. `shared`: every task sees all GPUs that gpu-device-ids allows."
        ),
        group=Group.GPUS,
        part=Part.GPU,
        field="gpu_allocation",
        values=("exclusive", "shared"),
    ),
    Option(
        "gpu-wait-timeout",
        default="4m",
        text=(
            "Maximum time that a task waits for its GPUs before it fails: `0s` to `30m`. Limited "
            "to `4m40s` with a web that this charm does not run (such a web aborts a step after 5 "
            "minutes)."
        ),
        group=Group.GPUS,
        part=Part.GPU,
        field="gpu_wait_timeout",
        read=lambda raw: readers.duration(raw, "gpu-wait-timeout", most="30m"),
    ),
    Option(
        "gpu-for-privileged-tasks",
        default=False,
        text=(
            "Allow privileged tasks to have GPUs. A privileged task can reach beyond its "
            "container."
        ),
        group=Group.GPUS,
        part=Part.GPU,
        field="gpu_for_privileged_tasks",
    ),
    Option(
        "container-engines",
        default="",
        text=(
            "Container engines whose containers may use GPUs, in the same queue as CI tasks: "
            f"one or more of {_listed(ENGINES)}, comma-separated. The charm registers the runtime "
            "gpu-ci with these engines; it does not install them. `=default` after a name, as in "
            f"`{ENGINES[0]}=default`, also makes gpu-ci the default runtime of the engine, so "
            "that `--gpus` and CDI device names work without `--runtime gpu-ci`. "
            + "".join(f"{one.about} " for one in engines.ALL if one.about)
            + "Empty: no engine."
        ),
        group=Group.ENGINES,
        part=Part.ENGINES,
        field="container_engines",
        read=_engines,
    ),
    Option(
        "gpu-run-group",
        default="",
        text=(
            "Group of the worker's machine whose members may run commands on the GPUs with "
            "`gpu-run`, in the same queue as CI tasks. The group must already exist; the charm "
            "does not manage its members. Empty: no gpu-run."
        ),
        group=Group.ENGINES,
        part=Part.RUN,
        field="gpu_run_group",
        read=lambda raw: readers.pattern(
            raw,
            "gpu-run-group",
            r"(?:[A-Za-z_][A-Za-z0-9_-]{0,30})?",
            "is not a group name: use one such as gpu-users, or leave it empty for no gpu-run",
        ),
    ),
    Option(
        "gpu-driver",
        default="auto",
        text=(
            "NVIDIA driver. `auto`: use the installed driver unchanged; if there is none, install "
            "the recommended server branch. `none`: never install a driver. Or a branch to "
            "install, such as `580-server`. A new value does not change an installed driver: use "
            "the action upgrade-driver. The charm never replaces a driver that it did not install."
        ),
        group=Group.DRIVER,
        part=Part.HOST,
        field="gpu_driver",
        read=lambda raw: readers.pattern(
            raw,
            "gpu-driver",
            r"auto|none|[0-9]{3,4}(?:-server)?(?:-open)?",
            "is not a driver: use auto, none, or a branch such as 580-server",
        ),
    ),
    Option(
        "auto-reboot",
        default="none",
        text=(
            "When the charm may reboot the machine: `none` (never), `driver` (if the NVIDIA "
            "driver needs it), `gpu` (if a quarantined GPU needs it) or `all` (both). For the "
            "driver, the charm waits for running builds for at most drain-timeout, interrupts "
            "those that still run, and reboots once for each driver version. For a GPU, the charm "
            "reboots only while no build runs, at most once a day, and after a reset if "
            "gpu-recovery=reset. If the driver needs a reboot that this option does not allow, "
            "status says so."
        ),
        group=Group.DRIVER,
        part=Part.HOST,
        field="auto_reboot",
        values=("none", "driver", "gpu", "all"),
    ),
    Option(
        "nvidia-container-toolkit-version",
        default="",
        text=(
            "Version of the NVIDIA Container Toolkit that the charm installs and holds, such as "
            "`1.20.0-1`. Empty: the newest version that this charm knows to be good. A toolkit "
            "that the charm did not install is used unchanged."
        ),
        group=Group.DRIVER,
        part=Part.HOST,
        field="toolkit_version",
        read=_toolkit_version,
    ),
    Option(
        "allow-vulnerable-toolkit",
        default=False,
        text=(
            "Allow a container toolkit with known vulnerabilities, through which an image can "
            "harm the host. Status names the vulnerabilities as long as the toolkit has them."
        ),
        group=Group.DRIVER,
        part=Part.GPU,
        field="allow_vulnerable_toolkit",
    ),
    Option(
        "nvidia-toolkit-mirror",
        default="",
        text=(
            "Base URL of a mirror of the container toolkit's package repository, with gpgkey and "
            "stable/deb/ below it. Empty: https://nvidia.github.io/libnvidia-container. A mirror "
            "by plain http requires nvidia-toolkit-key."
        ),
        group=Group.DRIVER,
        part=Part.HOST,
        field="toolkit_mirror",
        read=_toolkit_mirror,
    ),
    Option(
        "nvidia-toolkit-key",
        default="",
        text=(
            "Public key in ASCII armour, for a mirror that signs the repository with its own key. "
            "Empty: use the mirror's gpgkey and require the fingerprint of NVIDIA's key."
        ),
        group=Group.DRIVER,
        part=Part.HOST,
        field="toolkit_key",
        read=lambda raw: values.pgp_key(text(raw, "nvidia-toolkit-key")),
    ),
    Option(
        "selftest-on-start",
        default=True,
        text=(
            "Run the self-test automatically: level isolation, which includes quick, before the "
            "worker runs GPU tasks and after each change of driver, toolkit or GPU runtime; level "
            "quick at each boot."
        ),
        group=Group.CHECKS,
        part=Part.GPU,
        field="selftest_on_start",
    ),
    Option(
        "minimums",
        default="",
        text=(
            "What the machine and each GPU must have at least, or the self-test fails: a "
            "comma-separated list such as "
            "`cpus=4,memory=16GiB,gpu-memory=8GiB,compute-capability=7.0,driver=535`. Each of the "
            "five may be left out. cpus and memory are those of the machine, gpu-memory and "
            "compute-capability those of each GPU. Memory is the nominal size in "
            "whole GiB: a GPU sold with 16 GiB meets gpu-memory=16GiB, although its driver "
            "reports less. A GPU below a minimum is quarantined; if the machine or the driver is, "
            "all GPUs are. Empty: no minimums."
        ),
        group=Group.CHECKS,
        part=Part.GPU,
        field="minimums",
        read=_minimums,
    ),
    Option(
        "gpu-health",
        default="enabled",
        text=(
            "GPU health service. `enabled`: it quarantines a faulty GPU within seconds. "
            "`observe`: it only logs what it would do; metrics and job-log lines continue, but "
            "the job log has no line about a failed GPU. "
            "`disabled`: it does not run. Then there are also no GPU metrics, no job-log lines, "
            "no usage records and no idle-gpu-action, and quarantined GPUs stay quarantined."
        ),
        group=Group.CHECKS,
        part=Part.WATCH,
        field="gpu_health",
        values=("enabled", "observe", "disabled"),
    ),
    Option(
        "quarantine-limit-percent",
        default=50,
        text=(
            "Circuit breaker of the GPU health service, 1 to 100. If more than this share of the "
            "GPUs fails within five minutes for the same reason, the charm assumes a driver or "
            "host fault: it reports the fault in status and quarantines no more GPUs for it. At "
            "least two GPUs must have failed, so a single failing GPU is always quarantined. GPUs "
            "that are quarantined by then stay quarantined."
        ),
        group=Group.CHECKS,
        part=Part.WATCH,
        field="quarantine_limit_percent",
        read=lambda raw: readers.number(raw, "quarantine-limit-percent", 100, 1),
    ),
    Option(
        "gpu-recovery",
        default="none",
        text=(
            "Automatic repair of a quarantined NVIDIA GPU while nothing uses it: `none`, or "
            "`reset` to reset the GPU, each GPU at most three times a week. With `reset`, a GPU "
            "whose memory waits for a reset to remap rows is quarantined once it is idle, reset, "
            "and tested. In an LXD container the charm resets no GPU. Unless gpu-health=enabled, "
            "only a self-test quarantines GPUs, and none is quarantined to remap rows. See "
            "auto-reboot for what a reset does not repair."
        ),
        group=Group.CHECKS,
        part=Part.WATCH,
        field="gpu_recovery",
        values=("none", "reset"),
    ),
    Option(
        "job-log",
        default="enabled",
        text=(
            "What the charm writes about GPUs into the log of the job that has them: `enabled` "
            "(which GPUs, how much of them was used, and faults), `faults` (only faults) or "
            "`disabled`. Requires gpu-health."
        ),
        group=Group.REPORTS,
        part=Part.WATCH,
        field="job_log",
        values=("enabled", "faults", "disabled"),
    ),
    Option(
        "idle-gpu-action",
        default="warn",
        text=(
            "Action for a step that has held a GPU for 10 minutes and has never used it: "
            "`ignore`, `warn` (write a line into the job's log) or `fail` (write the line and, if "
            "the step uses none of its GPUs, kill its processes). Requires gpu-health."
        ),
        group=Group.REPORTS,
        part=Part.WATCH,
        field="idle_gpu_action",
        values=("ignore", "warn", "fail"),
    ),
    Option(
        "gpu-metrics-port",
        default=335,
        text=(
            "TCP port of the GPU metrics for Prometheus, 1 to 65535 except those that the CI "
            "system uses. 0: no GPU metrics. The port is on 127.0.0.1 only; a collector related "
            "by cos-agent runs on the same machine. Requires gpu-health. Any user of the machine "
            "can occupy a port from 1024 on before the charm does, and serve false metrics."
        ),
        group=Group.REPORTS,
        part=Part.WATCH,
        field="gpu_metrics_port",
        read=lambda raw: readers.port(raw, "gpu-metrics-port", (), 0),
    ),
    Option(
        "extra-tags",
        default="",
        text=(
            "Worker tags to add after those that the charm makes from the GPUs, comma-separated. "
            "A worker with tags runs only steps that request one or more of its tags."
        ),
        group=Group.EVERYDAY,
        part=Part.WORKER,
        field="extra_tags",
        read=lambda raw: readers.items(raw, "extra-tags", values.tag),
    ),
    Option(
        "drain-timeout",
        default="2h",
        text=(
            "Maximum time to wait for running builds before an upgrade of the CI system or of the "
            "driver, or before a reboot for the driver: `0s` to `7d`, such as `2h` or `1h30m`. "
            "Builds still running then are interrupted. `0s`: do not wait. Removing a unit never "
            "waits longer than 5 minutes. With ci-system=none, leases of GPUs take the place of "
            "builds."
        ),
        group=Group.LIFECYCLE,
        part=Part.WORKER,
        field="drain_timeout",
        read=drain_timeout,
    ),
)
