# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The results as a page for docs/reference. Ids of GPUs are in results.json only."""

import re
import typing

_ID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HEAD = """\
`make prove-gpu` wrote this page. [Prove on a real GPU](../how-to/prove-on-a-real-gpu.md) says what
each step proves. A step that is not run proves nothing."""
_OUTCOMES = {"passed": "passed", "failed": "**failed**", "not-run": "not run"}


def render(whole: dict[str, typing.Any]) -> str:
    """Return the page of one run."""
    steps = whole["steps"]
    parts = [
        "# Run on a real GPU",
        _HEAD,
        _about(whole),
        "## Steps",
        _table(
            ("step", "result", "checks", "seconds", "it proves that, or why not"),
            [
                (
                    f"`{step['name']}`",
                    _OUTCOMES[step["outcome"]],
                    len(step["checks"]),
                    step["seconds"],
                    step["reason"] or step["proves"],
                )
                for step in steps
            ],
        ),
    ]
    failed = [
        (f"`{step['name']}`", row["name"], row["expected"], row["found"])
        for step in steps
        for row in step["checks"]
        if not row["ok"]
    ]
    if failed:
        parts += ["## Failed checks", _table(("step", "check", "expected", "found"), failed)]
    left_out = [
        (f"`{step['name']}`", row["name"], row["why"])
        for step in steps
        for row in step["left_out"]
    ]
    if left_out:
        parts += ["## Parts of steps that are not run", _table(("step", "part", "why"), left_out)]
    figures = [
        (f"`{step['name']}`", row["name"], row["value"], row["unit"] or " ")
        for step in steps
        for row in step["figures"]
    ]
    if figures:
        parts += ["## Figures", _table(("step", "figure", "value", "unit"), figures)]
    return "\n\n".join(parts) + "\n"


def _about(whole: dict[str, typing.Any]) -> str:
    outcome, machine = _OUTCOMES[whole["outcome"]], f"Linux {whole['kernel']}"
    machine = f"{whole['system']}, {machine}, {whole['architecture']}, Python {whole['python']}"
    lines = [
        f"- Result: {outcome}, in {whole['seconds']:g} s, on {whole['started']}",
        f"- Machine: {machine}",
    ]
    if whole["commit"]:
        lines.append(f"- Commit: {whole['commit']}")
    return "\n".join(lines)


def _table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: object) -> str:
    shown = f"{value:.4g}" if isinstance(value, float) else str(value)
    shown = shown or "none"
    shown = _ID.sub(r"\1-...", " ".join(shown.split()))
    return (shown if len(shown) <= 200 else f"{shown[:197]}...").replace("|", "\\|")
