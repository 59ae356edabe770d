# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What self-tests came to, kept on the worker: the last report, and those before it."""

import collections.abc
import dataclasses
import datetime
import json
import pathlib
import secrets
import typing

from gpu_selftest.check import Level, Outcome, Result
from machine import files

HOME: typing.Final = pathlib.Path("/var/lib/gpu-ci/selftest")
RUN_PATTERN: typing.Final = r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}"

# The exit status of the command gpu-selftest for each outcome.
STATUS: typing.Final = {"passed": 0, "failed": 1, "incomplete": 3}

_LAST: typing.Final = "last.json"
_HISTORY: typing.Final = "history"
_VERSION: typing.Final = 1
_KEPT: typing.Final = 50
_TIME: typing.Final = "%Y%m%dT%H%M%SZ"


@dataclasses.dataclass(frozen=True)
class Report:
    """What one self-test came to.

    Attributes:
        run: its id; see new_run.
        subject: a short name for all that was tested; empty where it did not come so far.
        level: how much was asked for.
        device: `cuda`; or `cpu`, which proves no GPU.
        gpu: id of the one GPU that was meant; empty: all.
        outcome: `passed`, `failed` or `incomplete`; see outcome.
        started: ISO 8601 in UTC, to the second.
        seconds: how long it took.
        results: of each check, in the order in which they were made.
    """

    run: str
    subject: str
    level: Level
    device: str
    gpu: str
    outcome: str
    started: str
    seconds: float
    results: tuple[Result, ...]


def outcome(found: collections.abc.Iterable[Result]) -> str:
    """What results come to: a failure outweighs a check that could not be made."""
    outcomes = {result.outcome for result in found}
    if Outcome.FAILED in outcomes:
        return "failed"
    return "incomplete" if Outcome.PREVENTED in outcomes else "passed"


def condemns(result: Result) -> bool:
    """Whether it takes a GPU, or all of the worker's, out of use: the one rule of it."""
    return result.outcome is Outcome.FAILED and result.condemns


def is_against(result: Result) -> bool:
    """Whether a GPU can't be said to hold to what it was tested for."""
    return condemns(result) or result.outcome is Outcome.PREVENTED


def passed(report: Report, uuid: str, level: Level) -> bool:
    """Whether a report shows that a GPU holds to all checks up to a level."""
    if not report.level.includes(level):
        return False
    return not any(
        is_against(result)
        for result in report.results
        if result.gpu in ("", uuid) and level.includes(result.level)
    )


def new_run() -> str:
    """An id for a run that starts now, such as `20261121T170000Z-1a2b`; they sort by time."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return f"{now:{_TIME}}-{secrets.token_hex(2)}"


def started(run: str) -> datetime.datetime:
    """When a run started, by its id."""
    moment = datetime.datetime.strptime(run.partition("-")[0], _TIME)
    return moment.replace(tzinfo=datetime.timezone.utc)


def save(report: Report, home: pathlib.Path = HOME) -> None:
    """Keep a report. One that proves no GPU goes to the history only."""
    history = home / _HISTORY
    files.ensure_directory(history)
    text = json.dumps(plain(report), indent=1) + "\n"
    files.ensure_file(path(report.run, home), text)
    if report.device == "cuda":
        files.ensure_file(home / _LAST, text)
    for old in sorted(history.glob("*.json"))[:-_KEPT]:
        files.ensure_absent(old)
    for drawn in home.glob(picture("*", "*").name):
        if not path(drawn.name[len("burn-in-") :].rpartition("-gpu")[0], home).exists():
            files.ensure_absent(drawn)


def read(run: str = "", home: pathlib.Path = HOME) -> Report | None:
    """The report of a run, by default of the last.

    None where there is none, or none that this version of the charm can read: then the test has
    to be made again.

    Raises:
        OSError: it can't be told whether there is one.
    """
    kept = path(run, home) if run else home / _LAST
    try:
        return _report(json.loads(kept.read_text(encoding="utf-8")))
    except (
        *(FileNotFoundError, IsADirectoryError),
        *(ValueError, KeyError, TypeError, AttributeError),
    ):
        return None


def path(run: str, home: pathlib.Path = HOME) -> pathlib.Path:
    """Where the report of a run is kept."""
    return home / _HISTORY / f"{run}.json"


def picture(run: str, gpu: int | str) -> pathlib.Path:
    """Where the picture of a GPU in a burn-in is kept, as long as its report is."""
    return HOME / f"burn-in-{run}-gpu{gpu}.svg"


def plain(report: Report) -> dict[str, typing.Any]:
    """A report as JSON shows it."""
    shown: dict[str, typing.Any] = {"version": _VERSION, **dataclasses.asdict(report)}
    shown["level"] = report.level.value
    for result in shown["results"]:
        result["level"] = result["level"].value
        result["outcome"] = result["outcome"].value
    return shown


def _report(found: dict[str, typing.Any]) -> Report:
    """Take the JSON apart; a ValueError, KeyError or TypeError if it is no report."""
    if found.pop("version") != _VERSION:
        raise ValueError("it is of another version")
    found["level"] = Level(found["level"])
    found["results"] = tuple(_result(one) for one in found["results"])
    return Report(**found)


def _result(found: dict[str, typing.Any]) -> Result:
    found["level"], found["outcome"] = Level(found["level"]), Outcome(found["outcome"])
    return Result(**found)
