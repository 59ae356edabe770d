# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The action gpu-report: what leases had, used and waited for, since when the operator asks."""

import collections.abc
import dataclasses
import datetime
import json
import pathlib
import re
import typing

from ci.concourse.api import build_info as handles
from gpu_agent.reporting.receipts import log, report
from gpu_agent.reporting.receipts.receipt import Receipt

FORMATS: typing.Final = ("text", "csv", "json")
SINCE: typing.Final = "7d"

_SECONDS: typing.Final = len("2026-11-23T14:05:06")  # some times have more, after a dot
_BACK: typing.Final = re.compile(r"([1-9][0-9]{0,4})([hd])")
_DATE: typing.Final = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?Z?)?")


class ReportError(Exception):
    """The report can't be made; the text says why and what is allowed."""


class _Read:
    """The receipts of a time, counted as they go by."""

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
    """The results of the action: one, named after its format, and for people what it rests on.

    Args:
        params: as actions.yaml declares them.
        now: the time, with its zone.

    Raises:
        ReportError: a parameter can't be used, or the receipts can't be read.
    """
    by = _one_of("by", params.get("by", report.BY[0]), report.BY)
    form = _one_of("format", params.get("format", FORMATS[0]), FORMATS)
    since = _begin(str(params.get("since", SINCE)), now)
    path, read = log.PATH, _Read(log.PATH, since)
    try:
        made = report.make(read, by)
    except OSError as error:
        raise ReportError(f"the receipts in {path} can't be read: {error}") from error
    notes = _notes(made, read, path, since, here=handles.SETTINGS.exists())
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


def _begin(since: str, now: datetime.datetime) -> str:
    """From when on leases count, as receipts have it.

    Raises:
        ReportError: it names no time.
    """
    now, back = now.astimezone(datetime.timezone.utc), _BACK.fullmatch(since)
    try:
        if back:
            unit = {"h": "hours", "d": "days"}[back.group(2)]
            moment = now - datetime.timedelta(**{unit: int(back.group(1))})
        elif _DATE.fullmatch(since):
            parsed = datetime.datetime.fromisoformat(since.removesuffix("Z"))
            moment = parsed.replace(tzinfo=datetime.timezone.utc)
        else:
            raise ValueError("neither")
    except (ValueError, OverflowError) as error:
        raise ReportError(
            f"since {since[:100]!r} is no time; allowed: hours or days back, such as 24h or 7d, "
            "or a date in UTC, such as 2026-11-23 or 2026-11-23T14:05"
        ) from error
    if moment > now:
        raise ReportError(
            f"since {since!r} is in the future; allowed: a time before {now:%FT%H:%MZ}"
        )
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _notes(
    made: report.Report, read: _Read, path: pathlib.Path, since: str, *, here: bool
) -> list[str]:
    """What a reader of the figures has to know."""
    notes: list[str] = []
    if not read.oldest:
        notes.append(
            f"There is no receipt at all in {path}: leases get one when they end, as long as the "
            "watch runs (enable-gpu=true, gpu-health not off)"
        )
    elif read.oldest[:_SECONDS] > since[:_SECONDS]:
        notes.append(f"The oldest receipt is of a lease that ended at {read.oldest}")
    if made.nameless and made.by in ("team", "pipeline", "job"):
        why = (
            "web did not know them, or they were over before it was asked"
            if here
            else "Concourse's web is not on this machine, and only there can it be asked"
        )
        notes.append(f"{made.nameless} of {made.total.leases} leases have no names: {why}")
    if read.damaged:
        notes.append(f"{read.damaged} lines of {path} are no receipts and were left out")
    return notes
