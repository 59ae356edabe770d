# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The metrics by name, and their text as Prometheus reads it.

The format is Prometheus' text format 0.0.4, by hand: prometheus_client takes 8 MiB, of the 40 that
the watch may have, to write the same lines.
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
        name: as Prometheus has it, its unit at the end.
        kind: `gauge`, `counter` or `histogram`.
        labels: names of what tells its samples apart.
        help: one line of what it says.
        stays: whether it is told also while nothing fresh is known.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    stays: bool = False


BUSY: typing.Final = Metric(
    "gpuci_gpu_busy_ratio", "gauge", GPU,
    "How much of the last sampling period a kernel ran on the GPU, 0 to 1",
)  # fmt: skip
MEMORY_USED: typing.Final = Metric(
    "gpuci_gpu_memory_used_bytes", "gauge", GPU, "Memory in use, without the driver's reserve"
)
MEMORY_TOTAL: typing.Final = Metric(
    "gpuci_gpu_memory_total_bytes", "gauge", GPU, "All of the GPU's memory"
)
POWER: typing.Final = Metric("gpuci_gpu_power_watts", "gauge", GPU, "What the GPU draws")
POWER_LIMIT: typing.Final = Metric(
    "gpuci_gpu_power_limit_watts", "gauge", GPU, "What the GPU may draw"
)
TEMPERATURE: typing.Final = Metric(
    "gpuci_gpu_temperature_celsius", "gauge", GPU, "The GPU's temperature"
)
CLOCK: typing.Final = Metric(
    "gpuci_gpu_sm_clock_hertz", "gauge", GPU, "The clock of the GPU's processors"
)
REASON: typing.Final = Metric(
    "gpuci_gpu_clock_reason", "gauge", (*GPU, "reason"),
    "Whether the driver names this reason for a lower clock (reason: see below)",
)  # fmt: skip
ENERGY: typing.Final = Metric(
    "gpuci_gpu_energy_joules_total", "counter", GPU,
    "What the GPU has drawn since its driver was loaded",
)  # fmt: skip
ECC_CORRECTED: typing.Final = Metric(
    "gpuci_gpu_ecc_corrected_total", "counter", GPU,
    "Errors of memory that ECC corrected, since the driver was loaded",
)  # fmt: skip
ECC_UNCORRECTED: typing.Final = Metric(
    "gpuci_gpu_ecc_uncorrected_total", "counter", GPU,
    "Errors of memory that ECC could not correct, since the driver was loaded",
)  # fmt: skip
REMAP_PENDING: typing.Final = Metric(
    "gpuci_gpu_remap_pending", "gauge", GPU,
    "Whether memory rows wait for a reset of the GPU to be remapped",
)  # fmt: skip
REMAP_FAILED: typing.Final = Metric(
    "gpuci_gpu_remap_failed", "gauge", GPU, "Whether a memory row could not be remapped"
)
ANSWERS: typing.Final = Metric(
    "gpuci_gpu_answers", "gauge", GPU,
    "Whether the driver has the GPU and the GPU answered at the last good poll",
)  # fmt: skip
XIDS: typing.Final = Metric(
    "gpuci_gpu_xid_total", "counter", (*GPU, "xid"),
    "Xids since the watch started, by number; beyond 32 numbers a GPU: other",
    stays=True,
)  # fmt: skip
LEASED: typing.Final = Metric(
    "gpuci_gpu_leased", "gauge", GPU, "Whether a job holds the GPU, or a part of it"
)
HANDING_OVER: typing.Final = Metric(
    "gpuci_gpu_handing_over", "gauge", GPU,
    "Whether the GPU, or a part of it, goes from a holder that has ended to the next one",
)  # fmt: skip
TESTED: typing.Final = Metric(
    "gpuci_gpu_under_test", "gauge", GPU, "Whether the self-test holds the GPU"
)
QUARANTINED: typing.Final = Metric(
    "gpuci_gpu_quarantined", "gauge", GPU,
    "Whether the GPU is out of use until a self-test passes or the operator brings it back",
)  # fmt: skip
CORDONED: typing.Final = Metric(
    "gpuci_gpu_cordoned", "gauge", GPU,
    "Whether the GPU is set aside, since others use it or its memory is still taken",
)  # fmt: skip
CAUSE: typing.Final = Metric(
    "gpuci_gpu_quarantine_info", "gauge", (*GPU, "cause"),
    "1 for a GPU in quarantine, with the cause: Xid and number, a fault's words, operator, other",
)  # fmt: skip
LEASE: typing.Final = Metric(
    "gpuci_lease_info", "gauge", ("gpu", "team", "pipeline", "job"),
    "1 for each job that holds the GPU and whose names are known, for joins; Prometheus calls "
    "its label `job` exported_job, since it has one of its own",
)  # fmt: skip
WAIT: typing.Final = Metric(
    "gpuci_lease_wait_seconds", "histogram", (),
    "How long tasks that got GPUs waited for them, since the watch started",
    stays=True,
)  # fmt: skip
REFUSALS: typing.Final = Metric(
    "gpuci_refusals_total", "counter", ("reason",),
    "Steps that got no GPU, since the watch started (reason: see below)",
    stays=True,
)  # fmt: skip
POLL_TIME: typing.Final = Metric(
    "gpuci_last_good_poll_timestamp_seconds", "gauge", (),
    "When the last good poll began, in seconds since the epoch; not there before the first",
    stays=True,
)  # fmt: skip
POLL_AGE: typing.Final = Metric(
    "gpuci_last_good_poll_age_seconds", "gauge", (),
    "How long ago that was; as long as the watch runs where there was none",
    stays=True,
)  # fmt: skip
HUNG: typing.Final = Metric(
    "gpuci_driver_hung", "gauge", (),
    "Whether two calls into the driver in a row did not return: no GPU is leased meanwhile",
)  # fmt: skip
MISSES: typing.Final = Metric(
    "gpuci_driver_missed_calls_total", "counter", (),
    "Calls into the driver that did not return in time, since the watch started",
    stays=True,
)  # fmt: skip
BREAKER: typing.Final = Metric(
    "gpuci_breaker_tripped", "gauge", (),
    "Whether too many GPUs went out for one cause, so that no further one is taken out",
)  # fmt: skip
WATCHED: typing.Final = Metric("gpuci_gpus", "gauge", (), "How many GPUs the watch looks after")
TURN_AGE: typing.Final = Metric(
    "gpuci_watch_turn_age_seconds", "gauge", (),
    "How long ago the watch last looked at what it knows",
    stays=True,
)  # fmt: skip
STARTED: typing.Final = Metric(
    "gpuci_watch_start_time_seconds", "gauge", (),
    "When the watch started, in seconds since the epoch",
    stays=True,
)  # fmt: skip
INFO: typing.Final = Metric(
    "gpuci_watch_info", "gauge", ("version", "mode"),
    "1, with the charm's version and the option gpu-health",
    stays=True,
)  # fmt: skip

TABLE: typing.Final = (
    BUSY, MEMORY_USED, MEMORY_TOTAL, POWER, POWER_LIMIT, TEMPERATURE, CLOCK, REASON, ENERGY,
    ECC_CORRECTED, ECC_UNCORRECTED, REMAP_PENDING, REMAP_FAILED, ANSWERS, XIDS, LEASED,
    HANDING_OVER, TESTED, QUARANTINED, CORDONED, CAUSE, LEASE, WAIT, REFUSALS, POLL_TIME,
    POLL_AGE, HUNG, MISSES, BREAKER, WATCHED, TURN_AGE, STARTED, INFO,
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

# What people who wait for a build care about, up to the longest gpu-wait-timeout, in seconds.
BUCKETS: typing.Final = (1, 5, 15, 30, 60, 120, 240, 600, 1800, 3600)


@dataclasses.dataclass(frozen=True)
class Histogram:
    """How many values there were, by size.

    Attributes:
        counts: how many were at most as large as each of BUCKETS, and not as the one before; at
            the end those that were larger than all.
        total: their sum.
    """

    counts: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)
    total: float = 0.0

    def with_(self, value: float) -> "Histogram":
        """This one and a further value."""
        place = sum(value > most for most in BUCKETS)
        counts = (*self.counts[:place], self.counts[place] + 1, *self.counts[place + 1 :])
        return Histogram(counts, self.total + value)


class Page:
    """The text that is told at one moment."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, float]] = {}

    def set(self, metric: Metric, value: float | None, *labels: str) -> None:
        """Tell a value; None is not told. What is told of the same labels first stays."""
        if value is not None and math.isfinite(value):
            self._add(metric, f"{metric.name}{_braces(metric.labels, labels)}", value)

    def set_histogram(self, metric: Metric, values: Histogram) -> None:
        """Tell how many values there were, by size."""
        names = (*map(str, BUCKETS), "+Inf")
        for name, count in zip(names, itertools.accumulate(values.counts), strict=True):
            self._add(metric, f'{metric.name}_bucket{{le="{name}"}}', count)
        self._add(metric, f"{metric.name}_sum", values.total)
        self._add(metric, f"{metric.name}_count", sum(values.counts))

    def text(self) -> str:
        """All of it, in the order of TABLE."""
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
    """A label's value; what is no text in UTF-8 is replaced, since all else would be refused."""
    text = value.encode(errors="replace").decode()
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
