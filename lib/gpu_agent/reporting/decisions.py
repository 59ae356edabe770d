# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read the decision log: one entry for each decision on a GPU, as typed values.

The GPU runtime, gpu-run and the actions write it: gpu_runtime.decision_log. Pipelines, images and
users choose parts of each line, so no line is trusted.
"""

import collections.abc
import dataclasses
import json
import math
import pathlib
import re
import typing

from machine import log_rotation, log_tail

RECLAIM: typing.Final = "gpu-reclaim"
"""The kind of an entry about a container that the operator ended to take its GPU back."""

UNUSED: typing.Final = "gpu-unused"
"""The kind of an entry about a step that was ended because it did not use its GPU."""

CORDON: typing.Final = "gpu-cordon"
UNCORDON: typing.Final = "gpu-uncordon"
INTRUDER: typing.Final = "intruder ended"
"""The kind of an entry about a container that used a GPU without a lease and was ended."""

TASKS: typing.Final = ("task", "privileged task")
"""The kinds of an entry about a CI task that starts."""

# The kind had this name in logs that are still on disks.
_RENAMED: typing.Final = {"gpu-release": RECLAIM}
_OLDER: typing.Final = 1  # rotated files beside the log, as gpu_runtime.decision_log keeps them
_LONGEST_LINE: typing.Final = 1 << 16  # bytes
_LONGEST_TEXT: typing.Final = 200  # characters of an id, a code or a name
_LONGEST_REASON: typing.Final = 1300  # characters; gpu_runtime.refusal writes at most 1203
_MOST_DEVICES: typing.Final = 256
_LONGEST_WAIT: typing.Final = 7 * 86400.0  # seconds; a longer wait is an error of the clock
_LONGEST_BOOT: typing.Final = 1e12  # seconds since boot
_TIME: typing.Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One decision. A field that the line lacks or garbles is empty, zero or None.

    Attributes:
        time: when it was written, UTC, such as `2026-11-23T14:05:06.789Z`.
        boot: the kernel's name for the boot of the machine.
        since_boot: when it was written, in seconds since that boot; 0 in the oldest lines.
        container: the container's id, or the full name of a systemd unit.
        kind: `task`, `privileged task`, `exec <id>`, `podman container`, `gpu-run`, or the name of
            what an operator or this worker did.
        code: the code of a refusal; empty in older lines.
        asked: how many devices were requested; None: all.
        named: the ids of the devices that were requested by name; empty: any would do.
        granted: the ids of the devices that were granted.
        waited: how long the request waited, in seconds; None if that is not known.
        reason: why it was refused or done, one line; empty: it was granted.
        who: the container's or command's name for people; empty for a CI step.
    """

    time: str
    boot: str
    since_boot: float
    container: str
    kind: str
    code: str = ""
    asked: int | None = 0
    named: tuple[str, ...] = ()
    granted: tuple[str, ...] = ()
    waited: float | None = None
    reason: str = ""
    who: str = ""

    @property
    def is_step(self) -> bool:
        """Whether it is about a CI task, or a process that starts in its container."""
        return self.kind in TASKS or self.kind == "exec" or self.kind.startswith("exec ")


def parse(line: bytes) -> Entry | None:
    """Read one line; None if it is not an entry."""
    try:
        whole: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(whole, dict):
        return None
    found = typing.cast("dict[str, object]", whole)
    container, kind = found.get("container"), found.get("kind")
    if not (_is_text(container) and _is_text(kind) and kind):
        return None
    return Entry(
        time=_time(found.get("time")),
        boot=_short(found.get("boot")),
        since_boot=_boot_time(found.get("since_boot")),
        container=str(container),
        kind=_RENAMED.get(str(kind), str(kind)),
        code=_short(found.get("code")),
        asked=_count(found.get("asked")),
        named=_ids(found.get("named")),
        granted=_ids(found.get("granted")),
        waited=_seconds(found.get("waited_ms")),
        reason=_reason(found.get("reason")),
        who=_short(found.get("who")),
    )


def read(path: pathlib.Path) -> collections.abc.Generator[Entry | None]:
    """Read the log and its rotated file, the oldest entry first.

    Yields:
        Each entry; None in place of a line that is not an entry.

    Raises:
        OSError: a file is there and cannot be read.
    """
    for line in log_rotation.lines(path, _OLDER, _LONGEST_LINE):
        if line:
            yield parse(line)


class Followed:
    """The log, read as it grows, across its rotation."""

    def __init__(self, path: pathlib.Path, before: int = 0) -> None:
        """Begin at the end of the log.

        Args:
            path: the log's; the file may come later.
            before: how many bytes of the present content are read too.
        """
        self._log = log_tail.Followed(path, before=before)

    def entries(self) -> list[Entry]:
        """Read the entries that were written since the last call.

        Raises:
            OSError: the log is there and cannot be read.
        """
        return [entry for entry in map(parse, self._log.lines()) if entry]


def _time(value: object) -> str:
    return value if isinstance(value, str) and _TIME.fullmatch(value) else ""


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT and value.isprintable()


def _short(value: object) -> str:
    return str(value) if _is_text(value) else ""


def _boot_time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 <= value <= _LONGEST_BOOT else 0.0


def _count(value: object) -> int | None:
    if value == "all":
        return None
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return min(typing.cast("int", value), _MOST_DEVICES) if is_count else 0


def _ids(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        return ()
    names = typing.cast("list[object]", value)[:_MOST_DEVICES]
    return tuple(str(name) for name in names if name and _is_text(name))


def _seconds(value: object) -> float | None:
    """Read a time in milliseconds, as seconds within what a request can wait."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    # First the range: a very large integer cannot become a float.
    return min(max(value, 0), _LONGEST_WAIT * 1000) / 1000


def _reason(value: object) -> str:
    """Read a text that others chose: printable, and not too long."""
    text = value[: _LONGEST_REASON + 1] if isinstance(value, str) else ""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if len(shown) <= _LONGEST_REASON else f"{shown[: _LONGEST_REASON - 1]}…"
