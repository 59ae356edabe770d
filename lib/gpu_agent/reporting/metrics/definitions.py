# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The metrics by name, and their text as Prometheus reads it.

The format is Prometheus' text format 0.0.4, written by hand: prometheus_client would need 8 of the
40 MiB that the GPU health service may use, to write the same lines.
"""

import collections.abc
import dataclasses
import itertools
import math
import typing

CONTENT_TYPE: typing.Final = "text/plain; version=0.0.4; charset=utf-8"

GPU: typing.Final = ("gpu", "uuid", "model")


@dataclasses.dataclass(frozen=True)
class Metric:
    """One metric's name and meaning.

    Attributes:
        name: its name in Prometheus, which ends with the unit.
        kind: `gauge`, `counter` or `histogram`.
        labels: the names of its labels.
        help: its meaning and unit, one line.
        stays: whether it is published even if no recent observation exists.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    stays: bool = False


BUSY: typing.Final = Metric(
    "gpuci_gpu_busy_ratio", "gauge", GPU,
    "Share of the driver's last sampling period in which the GPU ran a compute kernel, 0 to 1",
)  # fmt: skip
MEMORY_USED: typing.Final = Metric(
    "gpuci_gpu_memory_used_bytes", "gauge", GPU,
    "Allocated GPU memory in bytes, without the driver's own reserve",
)  # fmt: skip
MEMORY_TOTAL: typing.Final = Metric(
    "gpuci_gpu_memory_total_bytes", "gauge", GPU, "Total GPU memory in bytes"
)
POWER: typing.Final = Metric("gpuci_gpu_power_watts", "gauge", GPU, "Power draw in watts")
POWER_LIMIT: typing.Final = Metric(
    "gpuci_gpu_power_limit_watts", "gauge", GPU, "Power limit in watts"
)
TEMPERATURE: typing.Final = Metric(
    "gpuci_gpu_temperature_celsius", "gauge", GPU, "Temperature of the GPU in degrees Celsius"
)
CLOCK: typing.Final = Metric(
    "gpuci_gpu_sm_clock_hertz", "gauge", GPU,
    "Clock of the streaming multiprocessors (SM) in hertz",
)  # fmt: skip
REASON: typing.Final = Metric(
    "gpuci_gpu_clock_reason", "gauge", (*GPU, "reason"),
    "1: the driver gives this reason for a lower clock; 0: it does not; "
    "reasons: docs/reference/metrics.md",
)  # fmt: skip
ENERGY: typing.Final = Metric(
    "gpuci_gpu_energy_joules_total", "counter", GPU,
    "Energy used in joules since the driver was loaded",
)  # fmt: skip
ECC_CORRECTED: typing.Final = Metric(
    "gpuci_gpu_ecc_corrected_total", "counter", GPU,
    "Memory errors that ECC corrected since the driver was loaded",
)  # fmt: skip
ECC_UNCORRECTED: typing.Final = Metric(
    "gpuci_gpu_ecc_uncorrected_total", "counter", GPU,
    "Memory errors that ECC could not correct since the driver was loaded",
)  # fmt: skip
REMAP_PENDING: typing.Final = Metric(
    "gpuci_gpu_remap_pending", "gauge", GPU,
    "1: memory rows are remapped at the next reset of the GPU; 0: none",
)  # fmt: skip
REMAP_FAILED: typing.Final = Metric(
    "gpuci_gpu_remap_failed", "gauge", GPU, "1: a memory row could not be remapped; 0: none"
)
ANSWERS: typing.Final = Metric(
    "gpuci_gpu_answers", "gauge", GPU,
    "1: the driver lists the GPU, and the GPU answered at the last successful poll; 0: not",
)  # fmt: skip
XIDS: typing.Final = Metric(
    "gpuci_gpu_xid_total", "counter", (*GPU, "xid"),
    "Xids since the GPU health service started; after 32 different numbers of a GPU, xid is other",
    stays=True,
)  # fmt: skip
LEASED: typing.Final = Metric(
    "gpuci_gpu_leased", "gauge", GPU,
    "1: a task, container or gpu-run command holds the GPU or a part of it; 0: none",
)  # fmt: skip
HANDING_OVER: typing.Final = Metric(
    "gpuci_gpu_handing_over", "gauge", GPU,
    "1: the GPU or a part of it passes from a holder that has ended to the next; 0: not",
)  # fmt: skip
TESTED: typing.Final = Metric(
    "gpuci_gpu_under_test", "gauge", GPU, "1: the self-test holds the GPU; 0: not"
)
QUARANTINED: typing.Final = Metric(
    "gpuci_gpu_quarantined", "gauge", GPU, "1: a fault took the GPU out of use; 0: none did"
)
CORDONED: typing.Final = Metric(
    "gpuci_gpu_cordoned", "gauge", GPU, "1: an operator took the GPU out of use; 0: none did"
)
EXTERNAL: typing.Final = Metric(
    "gpuci_gpu_external", "gauge", GPU,
    "1: a process without a lease uses the GPU, or its memory is still taken; 0: neither",
)  # fmt: skip
UNUSABLE: typing.Final = Metric(
    "gpuci_gpu_unusable", "gauge", GPU,
    "1: tasks cannot use the GPU, such as one in MIG mode without a MIG device; 0: they can",
)  # fmt: skip
CAUSE: typing.Final = Metric(
    "gpuci_gpu_quarantine_info", "gauge", (*GPU, "cause"),
    "1 for each quarantined GPU; cause: the fault's name (xid-79) or the id of the failed check",
)  # fmt: skip
LEASE: typing.Final = Metric(
    "gpuci_lease_info", "gauge", ("gpu", "team", "pipeline", "job"),
    "1 for each known CI job that holds the GPU; Prometheus renames job to exported_job",
)  # fmt: skip
RUNNERS: typing.Final = Metric(
    "gpuci_runners", "gauge", ("state",),
    "Runners of a CI service on this machine; state: idle, busy or ending",
)  # fmt: skip
RUNNER_FAULT: typing.Final = Metric(
    "gpuci_runner_fault", "gauge", (),
    "1: the CI service cannot be asked, or a runner cannot begin, as status says; 0: neither",
)  # fmt: skip
JOBS_WAITING: typing.Final = Metric(
    "gpuci_ci_jobs_waiting", "gauge", (),
    "Jobs in the CI service's own queue; absent if this machine cannot see them",
)  # fmt: skip
REQUESTS_LIMIT: typing.Final = Metric(
    "gpuci_ci_requests_limit", "gauge", (),
    "Requests that the CI service's API allows in a period, as it said last; absent: no limit",
)  # fmt: skip
REQUESTS_LEFT: typing.Final = Metric(
    "gpuci_ci_requests_remaining", "gauge", (), "Those of them that are left in this period"
)
REQUESTS_RESET: typing.Final = Metric(
    "gpuci_ci_requests_reset_timestamp_seconds", "gauge", (),
    "Start of the next period, in seconds since the epoch by the service's clock",
)  # fmt: skip
WAIT: typing.Final = Metric(
    "gpuci_lease_wait_seconds", "histogram", (),
    "Time in seconds that tasks waited on this worker until they got their GPUs",
    stays=True,
)  # fmt: skip
REFUSALS: typing.Final = Metric(
    "gpuci_refusals_total", "counter", ("reason",),
    "Steps that were refused a GPU since the GPU health service started; "
    "reasons: docs/reference/metrics.md",
    stays=True,
)  # fmt: skip
POLL_TIME: typing.Final = Metric(
    "gpuci_last_good_poll_timestamp_seconds", "gauge", (),
    "Start of the last successful poll, in seconds since the epoch; absent before the first",
    stays=True,
)  # fmt: skip
POLL_AGE: typing.Final = Metric(
    "gpuci_last_good_poll_age_seconds", "gauge", (),
    "Seconds since the last successful poll; before the first: since the service started",
    stays=True,
)  # fmt: skip
HUNG: typing.Final = Metric(
    "gpuci_driver_hung", "gauge", (),
    "1: two calls into the driver in a row did not return, so no GPU is leased; 0: not",
)  # fmt: skip
MISSES: typing.Final = Metric(
    "gpuci_driver_missed_calls_total", "counter", (),
    "Calls into the driver that did not return in time since the GPU health service started",
    stays=True,
)  # fmt: skip
BREAKER: typing.Final = Metric(
    "gpuci_breaker_tripped", "gauge", (),
    "1: too many GPUs failed for the same cause, so no further GPU is quarantined; 0: not",
)  # fmt: skip
WATCHED: typing.Final = Metric(
    "gpuci_gpus", "gauge", (), "Number of GPUs that the GPU health service checks"
)
TURN_AGE: typing.Final = Metric(
    "gpuci_health_turn_age_seconds", "gauge", (),
    "Seconds since the GPU health service last evaluated its observations",
    stays=True,
)  # fmt: skip
STARTED: typing.Final = Metric(
    "gpuci_health_start_time_seconds", "gauge", (),
    "Start of the GPU health service, in seconds since the epoch",
    stays=True,
)  # fmt: skip
INFO: typing.Final = Metric(
    "gpuci_health_info", "gauge", ("version", "mode"),
    "1; version: of gpu-ci-worker; mode: the option gpu-health",
    stays=True,
)  # fmt: skip

TABLE: typing.Final = (
    BUSY, MEMORY_USED, MEMORY_TOTAL, POWER, POWER_LIMIT, TEMPERATURE, CLOCK, REASON, ENERGY,
    ECC_CORRECTED, ECC_UNCORRECTED, REMAP_PENDING, REMAP_FAILED, ANSWERS, XIDS, LEASED,
    HANDING_OVER, TESTED, QUARANTINED, CORDONED, EXTERNAL, UNUSABLE, CAUSE, LEASE, RUNNERS,
    RUNNER_FAULT, JOBS_WAITING, REQUESTS_LIMIT, REQUESTS_LEFT, REQUESTS_RESET, WAIT, REFUSALS,
    POLL_TIME, POLL_AGE, HUNG, MISSES, BREAKER, WATCHED, TURN_AGE, STARTED, INFO,
)  # fmt: skip

# By their bits (nvml.h of CUDA 13, nvmlClocksEventReasons).
CLOCK_REASONS: typing.Final = {
    "idle": 0x1,
    "applications-clocks": 0x2,
    "software-power-cap": 0x4,
    "hardware-slowdown": 0x8,
    "sync-boost": 0x10,
    "software-thermal": 0x20,
    "hardware-thermal": 0x40,
    "power-brake": 0x80,
    "display-clocks": 0x100,
}

# In seconds: from a wait that no user notices up to the longest gpu-wait-timeout.
BUCKETS: typing.Final = (1, 5, 15, 30, 60, 120, 240, 600, 1800, 3600)


@dataclasses.dataclass(frozen=True)
class Histogram:
    """The number of values in each bucket.

    Attributes:
        counts: the number of values in each of BUCKETS, without those in smaller buckets; the last
            number is of values above the largest bucket.
        total: the sum of all values.
    """

    counts: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)
    total: float = 0.0

    def with_(self, value: float) -> "Histogram":
        """A copy with one more value."""
        place = sum(value > most for most in BUCKETS)
        counts = (*self.counts[:place], self.counts[place] + 1, *self.counts[place + 1 :])
        return Histogram(counts, self.total + value)


class Page:
    """The samples of one scrape."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, float]] = {}

    def set(self, metric: Metric, value: float | None, *labels: str) -> None:
        """Add a sample, unless the value is None or the same labels have one already."""
        if value is not None and math.isfinite(value):
            self._add(metric, f"{metric.name}{_braces(metric.labels, labels)}", value)

    def set_histogram(self, metric: Metric, values: Histogram) -> None:
        """Add the samples of a histogram."""
        names = (*map(str, BUCKETS), "+Inf")
        for name, count in zip(names, itertools.accumulate(values.counts), strict=True):
            self._add(metric, f'{metric.name}_bucket{{le="{name}"}}', count)
        self._add(metric, f"{metric.name}_sum", values.total)
        self._add(metric, f"{metric.name}_count", sum(values.counts))

    def text(self) -> str:
        """The samples as Prometheus reads them, in the order of TABLE."""
        parts: list[str] = []
        for metric in TABLE:
            if values := self._values.get(metric.name):
                parts.append(f"# HELP {metric.name} {metric.help}\n")
                parts.append(f"# TYPE {metric.name} {metric.kind}\n")
                parts += (f"{sample} {_number(value)}\n" for sample, value in values.items())
        return "".join(parts)

    def _add(self, metric: Metric, sample: str, value: float) -> None:
        self._values.setdefault(metric.name, {}).setdefault(sample, value)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def _braces(names: tuple[str, ...], values: collections.abc.Sequence[str]) -> str:
    pairs = [f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _escaped(value: str) -> str:
    """Escape a label's value; Prometheus rejects the page if a label is not valid UTF-8."""
    text = value.encode(errors="replace").decode()
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
