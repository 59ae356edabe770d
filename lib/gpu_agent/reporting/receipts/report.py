# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Add receipts up: a table for people, CSV and JSON for programs. Pure.

A GPU-hour is an hour in which a lease held a GPU or a MIG device, used or not.
"""

import collections.abc
import csv
import dataclasses
import json
import typing

from gpu_agent.reporting.receipts.receipt import GpuReceipt, Receipt

BY: typing.Final = ("gpu", "container", "team", "pipeline", "job")

NO_NAMES: typing.Final = "(names not known)"
ONE_OFF: typing.Final = "(one-off builds)"
OTHERS: typing.Final = "(others)"
OUTSIDE: typing.Final = {
    "container": "(podman and Docker)", "job": "(gpu-run)", "runner": "(runners)",
}  # fmt: skip
"""The names of leases outside the CI system, by their kinds."""

# Juju passes a result as one argument of a program, which Linux limits to 128 KiB. The figures of
# a row take less than 200 bytes.
_MOST_ROWS: typing.Final = 300
_MOST_LABELS: typing.Final = 40_000  # bytes as JSON

_HOUR: typing.Final = 3600.0
_KWH: typing.Final = 3.6e6  # joules


@dataclasses.dataclass(frozen=True)
class Row:
    """The totals of the leases of one GPU, team and so on.

    Attributes:
        name: the GPU, team and so on.
        leases: the number of leases.
        gpu_hours_held: GPU-hours held.
        gpu_hours_used: GPU-hours of these in which work was seen on the GPU.
        gpu_hours_unseen: GPU-hours held that no poll covers.
        busy_percent: utilisation of the GPUs in the watched time; None if none was watched.
        energy_kwh: energy drawn; None if no GPU reported it.
        waited_hours: waiting time; None if it is not known of any lease.
        failed_by_hardware: leases whose GPU failed.
    """

    name: str
    leases: int
    gpu_hours_held: float
    gpu_hours_used: float
    gpu_hours_unseen: float
    busy_percent: float | None
    energy_kwh: float | None
    waited_hours: float | None
    failed_by_hardware: int


@dataclasses.dataclass(frozen=True)
class Report:
    """The rows, those with the most GPU-hours first, and the total.

    Attributes:
        by: one of BY.
        rows: the rows; if there are too many, the last one adds the others up.
        total: the totals of all leases.
        nameless: how many leases of steps have no names.
    """

    by: str
    rows: tuple[Row, ...]
    total: Row
    nameless: int


class _Sum:
    """The running totals of a row."""

    def __init__(self) -> None:
        self.name = ""
        self.leases = self.failed = 0
        self.held = self.used = self.unseen = self.busy = self.busy_seen = 0.0
        self.energy: float | None = None
        self.waited: float | None = None

    def gpu(self, held: float, gpu: GpuReceipt) -> None:
        """Add one GPU of a lease that held it for so many seconds."""
        devices = max(1, len(gpu.devices))
        seen = 0.0 if gpu.used_s is None else min(gpu.watched_s or 0.0, held)
        self.held += held * devices
        self.used += min(gpu.used_s or 0.0, held)
        self.unseen += held * devices - seen
        if gpu.busy_percent is not None:
            self.busy += gpu.busy_percent * seen
            self.busy_seen += seen
        if gpu.energy_j is not None:
            self.energy = (self.energy or 0.0) + gpu.energy_j

    def lease(self, waited: float | None, *, failed: bool) -> None:
        """Count a lease."""
        self.leases += 1
        self.failed += failed
        if waited is not None:
            self.waited = (self.waited or 0.0) + waited

    def add(self, other: "_Sum") -> None:
        """Add another row."""
        self.leases, self.failed = self.leases + other.leases, self.failed + other.failed
        self.held, self.used = self.held + other.held, self.used + other.used
        self.unseen, self.busy = self.unseen + other.unseen, self.busy + other.busy
        self.busy_seen += other.busy_seen
        if other.energy is not None:
            self.energy = (self.energy or 0.0) + other.energy
        if other.waited is not None:
            self.waited = (self.waited or 0.0) + other.waited

    def row(self, name: str) -> Row:
        """Return the row."""
        return Row(
            name=name,
            leases=self.leases,
            gpu_hours_held=round(self.held / _HOUR, 3),
            gpu_hours_used=round(self.used / _HOUR, 3),
            gpu_hours_unseen=round(self.unseen / _HOUR, 3),
            busy_percent=round(self.busy / self.busy_seen, 1) if self.busy_seen else None,
            energy_kwh=None if self.energy is None else round(self.energy / _KWH, 3),
            waited_hours=None if self.waited is None else round(self.waited / _HOUR, 3),
            failed_by_hardware=self.failed,
        )


def make(receipts: collections.abc.Iterable[Receipt], by: str) -> Report:
    """Add receipts up.

    Args:
        receipts: read one by one, so there may be very many.
        by: one of BY.
    """
    sums = collections.defaultdict[str, _Sum](_Sum)
    total, nameless = _Sum(), 0
    for receipt in receipts:
        failed = receipt.outcome == "gpu failed"
        total.lease(receipt.waited_s, failed=failed)
        nameless += not receipt.team and not receipt.kind
        for gpu in receipt.gpus:
            total.gpu(receipt.held_s, gpu)
        if by == "gpu":
            _by_gpu(sums, receipt)
            continue
        mine = sums[name_of(receipt, by)]
        mine.name = name_of(receipt, by)
        mine.lease(receipt.waited_s, failed=failed)
        for gpu in receipt.gpus:
            mine.gpu(receipt.held_s, gpu)
    ordered = sorted(sums.values(), key=lambda one: (-one.held, one.name))
    return Report(by, tuple(_rows(ordered)), total.row("total"), nameless)


def _by_gpu(sums: dict[str, _Sum], receipt: Receipt) -> None:
    """Count a lease for each of its GPUs; its waiting time is divided among them."""
    share = None if receipt.waited_s is None else receipt.waited_s / len(receipt.gpus)
    for gpu in receipt.gpus:
        mine = sums[gpu.uuid]
        words = "" if gpu.index is None else f"GPU {gpu.index}", gpu.model, gpu.uuid
        mine.name = " ".join(word for word in words if word)  # the latest name
        mine.lease(share, failed=bool(gpu.failed))
        mine.gpu(receipt.held_s, gpu)


def name_of(receipt: Receipt, by: str) -> str:
    """Return the name of a lease's row."""
    if by == "container":
        return receipt.who or receipt.container
    if not receipt.team:
        return OUTSIDE.get(receipt.kind, NO_NAMES)
    if by == "team":
        return receipt.team
    words = [receipt.team, receipt.pipeline or ONE_OFF]
    if by == "job" and receipt.pipeline:
        words.append(receipt.job)
    return "/".join(words)


def _rows(sums: collections.abc.Sequence[_Sum]) -> collections.abc.Generator[Row]:
    """Yield as many rows as one result may have; the last one adds up those that are left out."""
    room, others = _MOST_LABELS, _Sum()
    for place, one in enumerate(sums):
        room -= len(json.dumps(one.name))
        if place >= _MOST_ROWS or room < 0:
            others.add(one)
        else:
            yield one.row(one.name)
    if others.leases:
        yield others.row(OTHERS)


_TITLES: typing.Final = (
    *("leases", "GPU-h held", "GPU-h used", "unseen", "busy", "kWh", "h waited"),
    "failed by hardware",
)


def as_text(report: Report) -> str:
    """Return a table for people; `-` is an unknown value."""
    table = [(report.by, *_TITLES), *map(_cells, (*report.rows, report.total))]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = (
        [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])] for first, *others in table
    )
    return "\n".join("  ".join(line) for line in lines)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        f"{row.leases}",
        *(f"{hours:.2f}" for hours in (row.gpu_hours_held, row.gpu_hours_used)),
        f"{row.gpu_hours_unseen:.2f}",
        _figure(row.busy_percent, "{:.0f} %"),
        _figure(row.energy_kwh, "{:.2f}"),
        _figure(row.waited_hours, "{:.2f}"),
        f"{row.failed_by_hardware}",
    )


def as_csv(report: Report) -> str:
    """Return the rows for a spreadsheet, without the total."""
    lines = _Lines()
    writer = csv.writer(lines, lineterminator="\n")
    fields = [field.name for field in dataclasses.fields(Row)]
    writer.writerow([report.by, *fields[1:]])
    for row in report.rows:
        first, *figures = (getattr(row, name) for name in fields)
        # A pipeline may be named =1+1, which a spreadsheet would compute.
        writer.writerow([f"'{first}" if first[:1] in ("=", "+", "-", "@") else first, *figures])
    return "".join(lines.written)


class _Lines:
    """The output of the csv writer."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, text: str) -> None:
        """Add a line."""
        self.written.append(text)


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
