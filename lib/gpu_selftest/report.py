# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Show a report: as a table that fits 100 columns, and as the results of an action."""

import collections.abc
import json
import textwrap
import typing

from gpu_agent.model.inventory import Gpu
from gpu_selftest import results
from gpu_selftest.check import Level, Outcome, Result
from gpu_selftest.results import Report

_WIDTH: typing.Final = 98
# The longest measured value that a threshold follows, in characters.
_MEASURED: typing.Final = 36
# The length of the id of a GPU that has no index on this unit, in the table.
_SHORT: typing.Final = 12
# action-set takes a value in argv, where one string may have 128 KiB (Linux, MAX_ARG_STRLEN).
_LONGEST: typing.Final = 60_000

_HEAD: typing.Final = ("check", "GPU", "outcome", "measured", "threshold")
_MADE: typing.Final = (Outcome.PASSED, Outcome.WARNING, Outcome.FAILED)
_WORDS: typing.Final = {
    Outcome.FAILED: "failed",
    Outcome.WARNING: "warned",
    Outcome.NOT_RUN: "not run",
    Outcome.SKIPPED: "skipped",
}

# Appended to failures that take no GPU out.
_STAYS: typing.Final = ", takes no GPU out of use"

_Row = tuple[str, ...]
# The index of each GPU by its id.
_Names = collections.abc.Mapping[str, int]


def as_results(report: Report, gpus: collections.abc.Sequence[Gpu]) -> dict[str, str]:
    """Return the flat results of an action; `report` is the table, cut if it is too long."""
    shown = {
        "verdict": report.outcome,
        "level": report.level.value,
        "duration": f"{report.seconds:g} s",
    }
    for gpu in gpus:
        if report.gpu in ("", gpu.uuid):
            shown[f"gpu-{gpu.index}"] = _of_one(report, gpu.uuid)
    text = table(report, gpus)
    if len(text.encode()) > _LONGEST:
        # Cut by characters: each has four bytes at most.
        text = text[: _LONGEST // 4].rpartition("\n")[0]
        text += f"\nThe rest is in {results.path(report.run)}\n"
    return {**shown, "report": text}


def as_json(report: Report) -> dict[str, str]:
    """Return the report as `json`, or as `file`, its path, if it is too long for a result."""
    whole = json.dumps(results.plain(report), ensure_ascii=False)
    if len(whole.encode()) > _LONGEST:
        return {"file": str(results.path(report.run))}
    return {"json": whole}


def table(report: Report, gpus: collections.abc.Sequence[Gpu]) -> str:
    """Return the verdict, the checks that ran, then the findings and the checks that did not run.

    Args:
        report: the report to show.
        gpus: the GPUs whose indexes the operator knows; other GPUs are named by their ids.
    """
    names = {gpu.uuid: gpu.index for gpu in gpus}
    parts = [_wrapped(headline(report), ""), _lines(_rows(report, names))]
    for title, outcome in (("Failed", Outcome.FAILED), ("Warnings", Outcome.WARNING)):
        parts.append(_findings(title, outcome, report, names))
    for title, outcome in (("Not run", Outcome.NOT_RUN), ("Skipped", Outcome.SKIPPED)):
        parts.append(_reasons(title, outcome, report, names))
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def headline(report: Report) -> str:
    """Return the verdict: `passed: quick and isolation, 2 GPUs, 31 checks (2 skipped), 7.4 s`."""
    made = [level.value for level in Level if report.level.includes(level)]
    levels = " and ".join(part for part in (", ".join(made[:-1]), made[-1]) if part)
    # A GPU that was removed has one result only, a warning of the check inventory.
    warned = {one.gpu for one in report.results if one.outcome is Outcome.WARNING}
    tests = [one for one in report.results if one.gpu not in warned or one.check != "inventory"]
    tested = {report.gpu or one.gpu for one in tests if one.gpu}
    count = len(tested)
    checks = _counted(len(report.results), "check")
    amounts = [
        f"{amount} {words}"
        for outcome, words in _WORDS.items()
        if (amount := sum(result.outcome is outcome for result in report.results))
    ]
    parts = [
        levels,
        _counted(count, "GPU") if count else "",
        checks + (f" ({', '.join(amounts)})" if amounts else ""),
        f"{report.seconds:g} s",
        "on the CPU, which proves nothing about a GPU" if report.device != "cuda" else "",
    ]
    return f"{report.outcome}: " + ", ".join(part for part in parts if part)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _of_one(report: Report, uuid: str) -> str:
    """Return the verdict on one GPU, such as `failed: xid`."""
    found = [result for result in report.results if result.gpu in ("", uuid)]
    by_outcome = {
        outcome: list(dict.fromkeys(one.check for one in found if one.outcome is outcome))
        for outcome in Outcome
    }
    said = results.outcome(found)
    kept = "" if any(map(results.condemns, found)) else _STAYS
    for outcome, more in ((Outcome.FAILED, kept), (Outcome.NOT_RUN, "")):
        if by_outcome[outcome]:
            return f"{said}: {', '.join(by_outcome[outcome])}{more}"
    # Warnings of the machine itself, such as its disk, are in the table once, not for each GPU.
    own = {one.check for one in found if one.gpu}
    warned = [check for check in by_outcome[Outcome.WARNING] if check in own]
    return said + (f", warned: {', '.join(warned)}" if warned else "")


def _rows(report: Report, names: _Names) -> list[_Row]:
    """Return a row for each check that ran; GPUs with equal results share a row."""
    shared: dict[str, dict[_Row, list[str]]] = {}
    for result in report.results:
        if result.outcome in _MADE:
            row = (result.outcome.value, _measured(result), result.threshold)
            shared.setdefault(result.check, {}).setdefault(row, []).append(result.gpu)
    return [
        (check, _indexes(found, names, _SHORT), *row)
        for check, rows in shared.items()
        for row, found in rows.items()
    ]


def _measured(result: Result) -> str:
    value = result.value
    if value is None:
        return result.text
    if isinstance(value, float) and 0 < abs(value) < 0.1:
        value = f"{value:.2g}"
    elif isinstance(value, float):
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
        whole, _, part = f"{value:.{digits}f}".partition(".")
        value = f"{whole}.{part}".rstrip("0").rstrip(".") if part else whole
    return f"{value} {result.unit}".rstrip()


def _lines(rows: list[_Row]) -> list[str]:
    """Return the rows in columns under their heads; cells that are too wide are cut."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in (_HEAD, *rows)) for column in range(3)]
    left = _WIDTH - sum(widths) - 2 * len(widths)
    judged = [len(measured) for *_, measured, threshold in (_HEAD, *rows) if threshold]
    seen = min(max(judged), _MEASURED)
    lines: list[str] = []
    for *first, measured, threshold in (_HEAD, *rows):
        cells = [f"{cell:<{width}}" for cell, width in zip(first, widths, strict=True)]
        if threshold:
            cells += [f"{_cut(measured, seen):<{seen}}", _cut(threshold, left - seen - 2)]
        else:
            cells.append(_cut(measured, left))
        lines.append("  ".join(cells).rstrip())
    return lines


def _findings(
    title: str,
    outcome: Outcome,
    report: Report,
    names: _Names,
) -> list[str]:
    """Return text and remedy of each result with this outcome."""
    shared: dict[tuple[str, str, str], list[str]] = {}
    for result in report.results:
        if result.outcome is outcome:
            spares = outcome is Outcome.FAILED and not result.condemns
            key = (result.check, result.text + (_STAYS if spares else ""), result.remedy)
            shared.setdefault(key, []).append(result.gpu)
    lines: list[str] = []
    for (check, text, remedy), found in shared.items():
        lines += _wrapped(f"{_subject([check], found, names)}: {text}", "  ")
        lines += _wrapped(f"Remedy: {remedy}", "    ") if remedy else []
    return [f"{title}:", *lines] if lines else []


def _reasons(
    title: str,
    outcome: Outcome,
    report: Report,
    names: _Names,
) -> list[str]:
    """Return why checks did not run; checks with the same reason share a line."""
    shared: dict[str, list[Result]] = {}
    for result in report.results:
        if result.outcome is outcome:
            shared.setdefault(result.text, []).append(result)
    lines: list[str] = []
    for text, found in shared.items():
        checks = list(dict.fromkeys(result.check for result in found))
        who = _subject(checks, [result.gpu for result in found], names)
        lines += _wrapped(f"{who}: {text}", "  ")
    return [f"{title}:", *lines] if lines else []


def _subject(checks: list[str], found: list[str], names: _Names) -> str:
    who = _indexes(found, names)
    if who == "-":
        return ", ".join(checks)
    return f"{', '.join(checks)} ({'GPU ' if who[0].isdigit() else ''}{who})"


def _indexes(found: list[str], names: _Names, longest: int | None = None) -> str:
    """Return GPUs in short form, such as `0-3,5`; `-` for the worker as a whole."""
    numbers = sorted({names[uuid] for uuid in found if uuid in names})
    # Consecutive numbers have the same distance to their places in the list.
    runs: dict[int, list[int]] = {}
    for place, number in enumerate(numbers):
        runs.setdefault(number - place, []).append(number)
    words = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs.values()]
    strangers = dict.fromkeys(uuid[:longest] for uuid in found if uuid and uuid not in names)
    return ",".join([*words, *strangers]) or "-"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."
