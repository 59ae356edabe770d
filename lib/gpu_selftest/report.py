# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A report as people read it: a table that fits 100 columns, and the results of an action."""

import collections.abc
import json
import textwrap
import typing

from gpu_agent.model.inventory import Gpu
from gpu_selftest import results
from gpu_selftest.check import Level, Outcome, Result
from gpu_selftest.results import Report

_WIDTH: typing.Final = 98
# At most, of a measured value that a threshold follows.
_MEASURED: typing.Final = 36
# Of the id of a GPU that has no index here, in the table.
_SHORT: typing.Final = 12
# action-set takes a value in argv, where one string may have 128 KiB (Linux, MAX_ARG_STRLEN).
_LONGEST: typing.Final = 60_000

_HEAD: typing.Final = ("check", "GPU", "outcome", "measured", "threshold")
_MADE: typing.Final = (Outcome.PASSED, Outcome.WARNING, Outcome.FAILED)
_WORDS: typing.Final = {
    Outcome.FAILED: "failed",
    Outcome.WARNING: "warned",
    Outcome.PREVENTED: "could not run",
    Outcome.SKIPPED: "skipped",
}

# Of what fails without taking a GPU out.
_STAYS: typing.Final = ", which takes no GPU out of use"

_Row = tuple[str, ...]
# The index of each GPU by its id.
_Names = collections.abc.Mapping[str, int]


def as_results(report: Report, gpus: collections.abc.Sequence[Gpu]) -> dict[str, str]:
    """The flat results of an action; `report` is the table, of which the file has the rest."""
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
        # By characters, each of which takes four bytes at most.
        text = text[: _LONGEST // 4].rpartition("\n")[0]
        text += f"\nThe rest is in {results.path(report.run)}\n"
    return {**shown, "report": text}


def as_json(report: Report) -> dict[str, str]:
    """The same for programs: `json`, or `file`, where it is, if it is too long for a result."""
    whole = json.dumps(results.plain(report), ensure_ascii=False)
    if len(whole.encode()) > _LONGEST:
        return {"file": str(results.path(report.run))}
    return {"json": whole}


def table(report: Report, gpus: collections.abc.Sequence[Gpu]) -> str:
    """The verdict, the checks that were made, and then what there is to say of the others.

    Args:
        report: what to show.
        gpus: those whose indexes the operator knows; others are named by their ids.
    """
    names = {gpu.uuid: gpu.index for gpu in gpus}
    parts = [_wrapped(headline(report), ""), _lines(_rows(report, names))]
    for title, outcome in (("Failed", Outcome.FAILED), ("Warnings", Outcome.WARNING)):
        parts.append(_findings(title, outcome, report, names))
    for title, outcome in (("Could not run", Outcome.PREVENTED), ("Skipped", Outcome.SKIPPED)):
        parts.append(_reasons(title, outcome, report, names))
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def headline(report: Report) -> str:
    """The verdict: `passed: quick and isolation, 2 GPUs, 31 checks (2 skipped), 7.4 s`."""
    made = [level.value for level in Level if report.level.includes(level)]
    levels = " and ".join(part for part in (", ".join(made[:-1]), made[-1]) if part)
    # Of one that was taken away the inventory alone says something, and warns.
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
        "on the CPU, which proves no GPU" if report.device != "cuda" else "",
    ]
    return f"{report.outcome}: " + ", ".join(part for part in parts if part)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _of_one(report: Report, uuid: str) -> str:
    """What the report says of one GPU, such as `failed: xid`."""
    found = [result for result in report.results if result.gpu in ("", uuid)]
    by_outcome = {
        outcome: list(dict.fromkeys(one.check for one in found if one.outcome is outcome))
        for outcome in Outcome
    }
    said = results.outcome(found)
    kept = "" if any(map(results.condemns, found)) else _STAYS
    for outcome, more in ((Outcome.FAILED, kept), (Outcome.PREVENTED, "")):
        if by_outcome[outcome]:
            return f"{said}: {', '.join(by_outcome[outcome])}{more}"
    # Of the machine's own, such as its disk, the table tells once.
    own = {one.check for one in found if one.gpu}
    warned = [check for check in by_outcome[Outcome.WARNING] if check in own]
    return said + (f", warned: {', '.join(warned)}" if warned else "")


def _rows(report: Report, names: _Names) -> list[_Row]:
    """A row for each check that was made; GPUs of which it says the same share one."""
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
    """The rows under their heads, in columns; what would be too wide is cut."""
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
    """What was seen and what to do, for each result of an outcome."""
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
    """Why checks were not made; those with the same reason in one line."""
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
    """GPUs in few words, such as `0-3,5`; `-` for the worker as a whole."""
    numbers = sorted({names[uuid] for uuid in found if uuid in names})
    # A run of numbers keeps the same distance to their places in the list.
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
