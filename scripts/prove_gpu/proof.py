# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What one step finds. Each row is written at once: a step that is ended keeps its rows."""

import collections.abc
import json
import pathlib
import typing


class NotRunError(Exception):
    """The step can't run on this machine; the text says why."""


class Proof:
    """The rows of one step.

    A step that compared nothing has failed: it has proven nothing.

    Args:
        path: where the rows are written, one JSON object in a line.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._path.touch()
        self.checks = self.failures = 0

    def check(self, name: str, ok: bool, expected: object, found: object) -> None:
        """Add a comparison.

        Args:
            name: what is compared.
            ok: whether it is as expected.
            expected: what another source says, or what has to be.
            found: what this project's code says.
        """
        self.checks += 1
        self.failures += not ok
        row = {"name": name, "ok": bool(ok), "expected": _plain(expected), "found": _plain(found)}
        self._write("check", row)

    def equal(self, name: str, expected: object, found: object) -> None:
        """Add a comparison that holds if both are equal."""
        self.check(name, expected == found, expected, found)

    def near(self, name: str, expected: float | None, found: float | None, by: float) -> None:
        """Add a comparison that holds if both are unknown, or differ by no more than `by`."""
        both = expected is not None and found is not None
        ok = abs(expected - found) <= by if both else expected is found
        self.check(name, ok, None if expected is None else f"{expected:g} ± {by:g}", found)

    def figure(self, name: str, value: object, unit: str = "") -> None:
        """Add a measured value, which nothing is compared with."""
        self._write("figure", {"name": name, "value": _plain(value), "unit": unit})

    def left_out(self, what: str, why: str) -> None:
        """Say that a part of the step could not run."""
        self._write("left_out", {"name": what, "why": why})

    def end(self, outcome: str, reason: str = "") -> None:
        """Write how the step ended."""
        self._write("end", {"outcome": outcome, "reason": reason})

    def _write(self, kind: str, row: collections.abc.Mapping[str, object]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({kind: row}) + "\n")
        print(f"{kind}: {json.dumps(row)}", flush=True)


def _plain(value: object) -> object:
    """Return a value as JSON has it."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, collections.abc.Mapping):
        table = typing.cast("collections.abc.Mapping[object, object]", value)
        return {str(name): _plain(one) for name, one in table.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in typing.cast("list[object]", value)]
    if isinstance(value, set | frozenset):
        return sorted(map(str, typing.cast("set[object]", value)))
    return str(value)
