# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run the CI system's own checks: a program of its own that answers in JSON.

The program is started by its arguments alone (gpu_selftest.settings). It runs as root, also at
boot. What it answers joins the report. If there is no good answer, a row that did not run says
why.
"""

import collections.abc
import json
import math
import pathlib
import re
import sys
import typing

from gpu_selftest.check import Check, Level, Outcome, Result, Said
from gpu_selftest.settings import Settings
from machine import process

CHECK: typing.Final = Check(
    "ci-checks",
    Level.QUICK,
    "the CI system's own checks ran; the report has this row only if they did not",
    condemns=False,
)

_VERSION: typing.Final = 1
# In seconds. It takes less than one. A test at boot ends after 22 (gpu_selftest.watchdog).
SECONDS: typing.Final = 18.0
# In characters; an answer has some thousands.
_LONGEST: typing.Final = 1 << 18
_MOST_COPIES: typing.Final = 10
_ID: typing.Final = re.compile("[a-z][a-z0-9-]{0,39}")
_CODE: typing.Final = pathlib.Path(__file__).resolve().parents[3]
_PATH: typing.Final = ":".join(f"{_CODE}/{part}" for part in ("lib", "src", "venv"))
# The texts of a row, by their names in Result.
_TEXTS: typing.Final = ("proves", "text", "unit", "threshold", "source", "remedy", "cause")

_Make = collections.abc.Callable[[], Result]
# Faults of the machine, of which a check fails alone. A defect of its code fails the program.
_FAULTS: typing.Final = (process.CommandError, OSError, ValueError)


class AnswerError(ValueError):
    """The program's answer has another form; the text says which."""


class Answer(typing.NamedTuple):
    """What the CI system's program found.

    Attributes:
        results: one for each of its checks; none concerns a single GPU.
        copies: how often the CI system keeps an image on the disk.
    """

    results: tuple[Result, ...] = ()
    copies: int = 1


def ask(
    settings: Settings, own: collections.abc.Collection[str], seconds: float = SECONDS
) -> Answer:
    """Run the program, if there is one. Without a good answer, the only result says why.

    Args:
        settings: they have the program.
        own: the ids of the self-test's own checks. A result with one of them is refused.
        seconds: the limit for its answer.
    """
    if not settings.checks:
        return Answer()
    command = [sys.executable, "-B", *settings.checks]
    try:
        done = process.run(command, timeout=seconds, env={"PYTHONPATH": _PATH}, told=False)
        found = read(done.stdout)
    except (process.CommandError, AnswerError) as error:
        return Answer((CHECK.result(Outcome.NOT_RUN, str(error)),))
    rows = [_refused(row) if row.check in own else row for row in found.results]
    return Answer(tuple(rows), found.copies)


def run(checks: collections.abc.Iterable[tuple[Check, _Make]]) -> tuple[Result, ...]:
    """Make the checks of such a program. The result of a check that raises an error names it.

    Args:
        checks: each with the function that makes it.
    """
    return tuple(_made(check, make) for check, make in checks)


def _made(check: Check, make: _Make) -> Result:
    try:
        return make()
    except _FAULTS as error:
        text = f"the check broke off: {type(error).__name__}: {error}"
        return check.result(Outcome.NOT_RUN, text)


def _refused(row: Result) -> Result:
    """Return the result in place of one that would be taken for the self-test's own."""
    text = f"the CI system has a check {row.check}, and so has the self-test: rename it there"
    return CHECK.result(Outcome.NOT_RUN, text)


def as_json(answer: Answer) -> str:
    """Return the JSON that `read` parses."""
    rows = [
        {
            "check": found.check,
            "outcome": found.outcome.value,
            "value": found.value,
            "condemns": found.condemns,
            **{name: getattr(found, name) for name in _TEXTS},
        }
        for found in answer.results
    ]
    return json.dumps({"version": _VERSION, "copies": answer.copies, "results": rows})


def read(text: str) -> Answer:
    """Parse the JSON of `as_json`.

    Raises:
        AnswerError: the text has another form, or no result.
    """
    if len(text) > _LONGEST:
        raise AnswerError(f"the CI system's checks answer more than {_LONGEST} characters")
    try:
        found: typing.Any = json.loads(text)
        if found["version"] != _VERSION:
            raise ValueError(f"version {found['version']}")
        rows, copies = _rows(found["results"]), found["copies"]
        if type(copies) is not int or not 1 <= copies <= _MOST_COPIES:
            raise ValueError(f"copies: {copies}")
        return Answer(tuple(map(_result, rows)), copies)
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise AnswerError(
            f"the CI system's checks answer in another form: {str(error)[:200]}"
        ) from error


def _rows(found: object) -> list[dict[str, object]]:
    """Return the rows of an answer; raise ValueError if there are none."""
    rows = typing.cast("list[object]", found) if isinstance(found, list) else []
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError("no results")
    return typing.cast("list[dict[str, object]]", rows)


def _result(row: collections.abc.Mapping[str, object]) -> Result:
    """Return a row as a result; raise LookupError or ValueError if it is not one."""

    def text(name: str) -> str:
        value = row[name]
        if not isinstance(value, str):
            raise ValueError(f"{name} is not a text")
        return value

    value, condemns = row["value"], row["condemns"]
    if not isinstance(value, (str, int, float, type(None))) or isinstance(value, bool):
        raise ValueError("value is neither a number nor a text")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("value is not finite")
    if not isinstance(condemns, bool):
        raise ValueError("condemns is not a truth value")
    if not _ID.fullmatch(text("check")):
        raise ValueError("check is not a name")
    check = Check(
        text("check"),
        Level.QUICK,
        text("proves"),
        source=text("source"),
        unit=text("unit"),
        condemns=condemns,
    )
    said = Said(
        Outcome(text("outcome")),
        text("text"),
        value,
        text("remedy"),
        text("threshold"),
        text("cause"),
    )
    return check.told(said)
