# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read untrusted JSON values: a value of another type counts as empty."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import cast
else:

    def cast(_, value):
        """Stand in for `typing.cast`: importing that takes longer than this package's work."""
        return value


def items(value: object) -> list[object]:
    """Return the list `value`, or an empty list for other types."""
    if isinstance(value, list):
        return cast("list[object]", value)
    return []


def table(value: object) -> dict[str, object]:
    """Return the object `value`, or an empty one for other types. JSON's keys are strings."""
    if isinstance(value, dict):
        return cast("dict[str, object]", value)
    return {}


def text(value: object) -> str:
    """Return the string `value`, or an empty string for other types."""
    return value if isinstance(value, str) else ""
