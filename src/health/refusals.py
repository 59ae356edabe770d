# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the wrapper decided, from its log: how long tasks waited, and why steps were refused.

Each line has words of pipelines in it, so none is trusted: a reason becomes one of a few names.
"""

import collections.abc
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import typing

from gpuci.policy import SELF_TEST_CONTAINER


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why steps are refused.

    Attributes:
        name: as the metric has it.
        pattern: how the texts of lib/gpuci begin (Refused(...)).
        means: for people.
    """

    name: str
    pattern: str
    means: str


REASONS: typing.Final = (
    Reason("busy", r"this task waited ", "the GPUs stayed in use until gpu-wait-timeout"),
    Reason(
        "too-many", r"this task needs [^,]*, and ", "it asked for more GPUs than tasks may get"
    ),
    Reason("off", r"tasks on this worker get no GPU", "`enable-gpu` is false by now"),
    Reason(
        "privileged",
        r"GPU_COUNT '.*' asks for a GPU, and this task is privileged",
        "a privileged task asked for a GPU",
    ),
    Reason("wrong-count", r"GPU_COUNT '.*' is no number of GPUs", "`GPU_COUNT` is no number"),
    Reason(
        "wrong-choice",
        r"[A-Z_]+ '.*' names '.*', which this task does not have",
        "a variable names a GPU that the task does not have",
    ),
    Reason(
        "given-back",
        r"this container gave its GPU back",
        "a session came after the step's end, and others have the GPU or wait for it",
    ),
    Reason(
        "gone",
        r"this container (?:had|runs with a) GPU",
        "a session came, and its GPU is out of use by now",
    ),
    Reason(
        "not-allowed",
        r"this step has an input|this task's rootfs_uri |.* in this task's image is no plain "
        r"|.* is set more than once",
        "what the step brings could not be made safe",
    ),
    Reason(
        "worker",
        r"this worker |.* cannot be run, so this task|this task needs a GPU and was started ",
        "the worker's own fault: its disk, its files, its software",
    ),
)
OTHER: typing.Final = "other"
_PATTERNS: typing.Final = tuple((one.name, re.compile(one.pattern, re.DOTALL)) for one in REASONS)
_BEGINNING: typing.Final = 600  # of a text, in characters: more than what decides

_TASKS: typing.Final = ("task", "privileged task")
_AT_ONCE: typing.Final = 1 << 18  # bytes that one look reads; the next goes on
_LONGEST: typing.Final = 1 << 16  # of a line that is read, in bytes
_MOST_MS: typing.Final = 24 * 3600 * 1000  # of a wait that can be believed


@dataclasses.dataclass(frozen=True)
class Decided:
    """One decision of the wrapper's on a step.

    Attributes:
        waited: for how many seconds a task that got GPUs waited; None: it got none.
        refused: one of REASONS, or OTHER; empty: it was not refused.
    """

    waited: float | None = None
    refused: str = ""


def reason(text: str) -> str:
    """The name of a refusal's reason."""
    return next((name for name, pattern in _PATTERNS if pattern.match(text[:_BEGINNING])), OTHER)


class Journal:
    """Follows the wrapper's log from its present end on, across rotation."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._file: int | None = None
        self._rest = b""
        self._skips = False  # the beginning of a line that is too long was left out
        with contextlib.suppress(OSError):
            os.lseek(self._open(), 0, os.SEEK_END)

    def read(self) -> list[Decided]:
        """What was decided since the last time.

        Raises:
            OSError: the log is there and can't be read.
        """
        if self._file is None:
            try:
                self._open()
            except FileNotFoundError:
                return []
        lines = self._lines()
        if self._is_rotated():
            # A decision may have been written between the two.
            lines += self._lines()
            self.close()
        return [found for found in map(_decided, lines) if found]

    def close(self) -> None:
        """Leave the log."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._rest, self._skips = None, b"", False

    def _open(self) -> int:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._file = os.open(self._path, flags)
        return self._file

    def _is_rotated(self) -> bool:
        """Whether this file is read to its end, and the log is another one by now."""
        if self._file is None:
            return False
        own = os.fstat(self._file)
        if os.lseek(self._file, 0, os.SEEK_CUR) < own.st_size:
            return False
        try:
            return not os.path.samestat(own, self._path.stat())
        except FileNotFoundError:
            return False

    def _lines(self) -> list[bytes]:
        if self._file is None:
            return []
        if os.fstat(self._file).st_size < os.lseek(self._file, 0, os.SEEK_CUR):
            os.lseek(self._file, 0, os.SEEK_SET)  # somebody emptied it
        *lines, self._rest = (self._rest + os.read(self._file, _AT_ONCE)).split(b"\n")
        if self._skips and lines:
            lines, self._skips = lines[1:], False
        if len(self._rest) > _LONGEST:
            self._rest, self._skips = b"", True
        return lines


def _decided(line: bytes) -> Decided | None:
    """What a line tells; None where that is nothing of a step's."""
    entry = _parsed(line)
    kind, container, text = entry.get("kind"), entry.get("container"), entry.get("reason")
    if not (isinstance(kind, str) and isinstance(container, str) and isinstance(text, str)):
        return None
    if container.startswith(SELF_TEST_CONTAINER) or not _is_step(kind):
        return None
    if text:
        return Decided(refused=reason(text))
    waited = entry.get("waited_ms")
    if kind in _TASKS and entry.get("granted") and isinstance(waited, int):
        return Decided(waited=min(max(waited, 0), _MOST_MS) / 1000)
    return None


def _parsed(line: bytes) -> collections.abc.Mapping[str, object]:
    try:
        found: object = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return typing.cast("collections.abc.Mapping[str, object]", found)


def _is_step(kind: str) -> bool:
    return kind in _TASKS or kind == "exec" or kind.startswith("exec ")
