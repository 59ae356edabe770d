# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The action gpu-report: add up the usage records of finished leases."""

import collections.abc
import dataclasses
import datetime
import json
import pathlib
import typing

from actions import since as times
from gpu_agent.reporting.receipts import log, report
from gpu_agent.reporting.receipts.receipt import Receipt
from parts import health_watch

FORMATS: typing.Final = ("text", "csv", "json")

_SECONDS: typing.Final = len("2026-11-23T14:05:06")  # some times have more, after a dot


class ReportError(Exception):
    """The report cannot be made; the text says why and what is allowed."""


class _Read:
    """The receipts since a moment; counts the damaged lines."""

    def __init__(self, path: pathlib.Path, since: str) -> None:
        self._path, self._since = path, since
        self.oldest, self.damaged = "", 0

    def __iter__(self) -> collections.abc.Iterator[Receipt]:
        for receipt in log.read(self._path):
            if receipt is None:
                self.damaged += 1
                continue
            self.oldest = self.oldest or receipt.ended
            if receipt.ended[:_SECONDS] >= self._since[:_SECONDS]:
                yield receipt


def run(
    params: collections.abc.Mapping[str, typing.Any], now: datetime.datetime
) -> dict[str, str]:
    """Return the results of the action: the report under its format, and notes for people.

    Args:
        params: the parameters, as actions.yaml declares them.
        now: the time, with its zone.

    Raises:
        actions.since.SinceError: `since` is invalid.
        ReportError: another parameter is invalid, or the receipts cannot be read.
    """
    by = _one_of("by", params.get("by", report.BY[0]), report.BY)
    form = _one_of("format", params.get("format", FORMATS[0]), FORMATS)
    since = times.begin(str(params.get("since", times.DEFAULT)), now)
    path, read = log.PATH, _Read(log.PATH, since)
    try:
        made = report.make(read, by)
    except OSError as error:
        raise ReportError(f"the usage records in {path} cannot be read: {error}") from error
    notes = _notes(made, read, path, since, asked=health_watch.names_jobs())
    if form == "csv":
        return {"csv": report.as_csv(made)}
    if form == "json":
        whole = {"since": since, "notes": notes, **dataclasses.asdict(made)}
        return {"json": json.dumps(whole)}
    table = report.as_text(made) if made.rows else f"No lease has ended since {since}"
    shown = {"since": since, "report": table}
    return {**shown, "notes": "\n".join(notes)} if notes else shown


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ReportError(f"{name} {str(value)[:100]!r} is unknown; allowed: {', '.join(allowed)}")
    return str(value)


def _notes(
    made: report.Report, read: _Read, path: pathlib.Path, since: str, *, asked: bool
) -> list[str]:
    """Return the limits of the figures, for their reader."""
    notes: list[str] = []
    if not read.oldest:
        notes.append(
            f"{path} has no usage record: the GPU health service writes one when a lease ends "
            "(enable-gpu=true, gpu-health not disabled)"
        )
    elif read.oldest[:_SECONDS] > since[:_SECONDS]:
        notes.append(f"The oldest usage record is of a lease that ended at {read.oldest}")
    if made.nameless and made.by in ("team", "pipeline", "job"):
        why = (
            "the CI system did not know them, or they ended before the service asked it"
            if asked
            else "names are known only on a machine that also runs the CI system's web"
        )
        notes.append(f"{made.nameless} of {made.total.leases} leases have no names: {why}")
    if read.damaged:
        notes.append(f"{read.damaged} lines of {path} are damaged and were left out")
    return notes
