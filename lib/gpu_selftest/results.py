# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Keep the reports of self-tests on the worker: the last one and those before it."""

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
    """The report of one self-test.

    Attributes:
        run: the id of the run; see new_run.
        subject: a short name for everything that was tested; empty if that is not known.
        level: the level that was requested.
        device: `cuda`; or `cpu`, which proves nothing about a GPU.
        gpu: id of the only GPU that was tested; empty: all.
        outcome: `passed`, `failed` or `incomplete`; see outcome.
        started: ISO 8601 in UTC, to the second.
        seconds: the duration.
        results: the result of each check, in the order of the checks.
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
    """Return the outcome of a report: a failure outweighs a check that could not run."""
    outcomes = {result.outcome for result in found}
    if Outcome.FAILED in outcomes:
        return "failed"
    return "incomplete" if Outcome.NOT_RUN in outcomes else "passed"


def condemns(result: Result) -> bool:
    """Return whether a result takes a GPU, or all of the worker's, out of use."""
    return result.outcome is Outcome.FAILED and result.condemns


def is_against(result: Result) -> bool:
    """Return whether a result keeps a GPU from having passed."""
    return condemns(result) or result.outcome is Outcome.NOT_RUN


def passed(report: Report, uuid: str, level: Level) -> bool:
    """Return whether a report shows that a GPU passed all checks up to a level."""
    if not report.level.includes(level):
        return False
    return not any(
        is_against(result)
        for result in report.results
        if result.gpu in ("", uuid) and level.includes(result.level)
    )


def new_run() -> str:
    """Return an id for a run that starts now: `20261121T170000Z-1a2b`. Ids sort by time."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return f"{now:{_TIME}}-{secrets.token_hex(2)}"


def started(run: str) -> datetime.datetime:
    """Return when a run started, from its id."""
    moment = datetime.datetime.strptime(run.partition("-")[0], _TIME)
    return moment.replace(tzinfo=datetime.timezone.utc)


def save(report: Report, home: pathlib.Path = HOME) -> None:
    """Keep a report. A report of a test on the CPU is kept in the history only."""
    history = home / _HISTORY
    files.ensure_directory(history)
    text = json.dumps(plain(report), indent=1) + "\n"
    files.ensure_file(path(report.run, home), text)
    if report.device == "cuda":
        files.ensure_file(home / _LAST, text)
    for old in sorted(history.glob("*.json"))[:-_KEPT]:
        files.ensure_absent(old)
    for drawn in home.glob(picture("*", "*", home).name):
        if not path(drawn.name[len("burn-in-") :].rpartition("-gpu")[0], home).exists():
            files.ensure_absent(drawn)


def read(run: str = "", home: pathlib.Path = HOME) -> Report | None:
    """Return the report of a run, by default of the last one.

    None if the report is missing, or this revision of the charm can't read it. The self-test
    then has to run again.

    Raises:
        OSError: the file can't be read.
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
    """Return where the report of a run is kept."""
    return home / _HISTORY / f"{run}.json"


def picture(run: str, gpu: int | str, home: pathlib.Path = HOME) -> pathlib.Path:
    """Return where the picture of a GPU in a burn-in is kept, as long as its report is."""
    return home / f"burn-in-{run}-gpu{gpu}.svg"


def plain(report: Report) -> dict[str, typing.Any]:
    """Return a report as its JSON.

    Earlier revisions of the charm read no result with the field `cause`. It is left out if it is
    empty, so they can still read the report of a self-test that passed.
    """
    shown: dict[str, typing.Any] = {"version": _VERSION, **dataclasses.asdict(report)}
    shown["level"] = report.level.value
    for result in shown["results"]:
        result["level"] = result["level"].value
        result["outcome"] = result["outcome"].value
        if not result["cause"]:
            del result["cause"]
    return shown


def _report(found: dict[str, typing.Any]) -> Report:
    """Read a report from its JSON; raise ValueError, KeyError or TypeError if it is not one."""
    if found.pop("version") != _VERSION:
        raise ValueError("the report is of another version")
    found["level"] = Level(found["level"])
    found["results"] = tuple(_result(one) for one in found["results"])
    return Report(**found)


def _result(found: dict[str, typing.Any]) -> Result:
    # The name of `not-run` in earlier revisions of the charm.
    outcome = "not-run" if found["outcome"] == "prevented" else found["outcome"]
    found["level"], found["outcome"] = Level(found["level"]), Outcome(outcome)
    return Result(**found)
