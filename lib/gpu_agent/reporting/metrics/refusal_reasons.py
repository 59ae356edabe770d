# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the wrapper decided, from its log: how long tasks waited, and why steps were refused.

Each line has words of pipelines in it, so none is trusted: a reason becomes one of a few names.
"""

import collections.abc
import dataclasses
import json
import pathlib
import re
import typing

from gpu_runtime.policy import SELF_TEST_CONTAINER
from machine import log_tail as followed


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why steps are refused.

    Attributes:
        name: as the metric has it.
        pattern: how the texts of lib/gpu_runtime begin (Refused(...)).
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
        r"this container (?:had|runs with a) GPU|this container has ended, and its lease ",
        "a session came, and its GPU is out of use by now",
    ),
    Reason(
        "not-allowed",
        r"this step has an input|this task's rootfs_uri |.* in this task's image is no plain "
        r"|.* is set more than once",
        "what the step brings could not be made safe",
    ),
    Reason(
        "requirement",
        r"this task(?:'s image)? requires |.* of this task(?:'s image)? has '.*', which is no ",
        "the image needs a newer driver or CUDA, or another GPU, than the worker has",
    ),
    Reason(
        "folder", r"this task has files at ", "its files are where `task-mounts` puts a folder"
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
    """The wrapper's log, from its present end on."""

    def __init__(self, path: pathlib.Path) -> None:
        self._log = followed.Followed(path)

    def read(self) -> list[Decided]:
        """What was decided since the last time.

        Raises:
            OSError: the log is there and can't be read.
        """
        return [found for found in map(_decided, self._log.lines()) if found]


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
