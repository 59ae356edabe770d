# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""JSON that others wrote, taken apart without trust: what has another shape counts as empty."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import cast
else:

    def cast(_, value):
        """Stand in for `typing.cast`: importing that takes longer than this package's work."""
        return value


def items(value: object) -> list[object]:
    """The list `value`, or an empty one."""
    if isinstance(value, list):
        return cast("list[object]", value)
    return []


def table(value: object) -> dict[str, object]:
    """The object `value`, or an empty one. JSON's keys are strings."""
    if isinstance(value, dict):
        return cast("dict[str, object]", value)
    return {}


def text(value: object) -> str:
    """The string `value`, or an empty one."""
    return value if isinstance(value, str) else ""
