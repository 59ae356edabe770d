# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read from the GPU runtime's log how long tasks waited, and why steps were refused.

Lines contain text from pipelines, so none is trusted: a code becomes one of a few names.
"""

import dataclasses
import pathlib
import typing

from gpu_agent.reporting import decisions
from gpu_runtime.policy import SELF_TEST_CONTAINER


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why steps are refused.

    Attributes:
        name: the label of the metric.
        codes: the codes of such refusals, from gpu_runtime.refusal_codes.
        means: for people.
    """

    name: str
    codes: frozenset[str]
    means: str


REASONS: typing.Final = (
    Reason(
        "busy",
        frozenset({"wait-timeout"}),
        "the GPUs stayed in use until gpu-wait-timeout",
    ),
    Reason(
        "too-many",
        frozenset({"too-few-gpus"}),
        "the request needs more GPUs than are available",
    ),
    Reason("off", frozenset({"gpus-disabled"}), "`enable-gpu` is now false"),
    Reason(
        "privileged",
        frozenset({"privileged-not-allowed"}),
        "a privileged task asked for a GPU",
    ),
    Reason("wrong-count", frozenset({"gpu-count-invalid"}), "`GPU_COUNT` is not a number of GPUs"),
    Reason(
        "wrong-choice",
        frozenset({"gpu-index-invalid"}),
        "a variable names a GPU that the task does not have",
    ),
    Reason(
        "given-back",
        frozenset({"gpu-given-back"}),
        "a session came after the step's end, and others have the GPU or wait for it",
    ),
    Reason(
        "gone",
        frozenset({"gpu-withdrawn", "container-ended"}),
        "a session came, and its GPU is now unavailable or its container has ended",
    ),
    Reason(
        "not-allowed",
        frozenset(
            {
                *("path-reserved", "rootfs-shared", "rootfs-not-allowed"),
                *("image-special-file", "reserved-variable"),
            }
        ),
        "what the step brings could not be made safe",
    ),
    Reason(
        "requirement",
        frozenset({"requirement-unmet", "requirement-invalid"}),
        "the image needs a newer driver or CUDA, or another GPU, than the worker has",
    ),
    Reason(
        "folder",
        frozenset({"task-mounts-conflict"}),
        "its files are where `task-mounts` puts a folder",
    ),
    Reason(
        "worker",
        frozenset(
            {
                *("device-node-missing", "handover-failed", "internal-error"),
                *("lease-table-damaged", "policy-unreadable", "runtime-damaged"),
                *("runtime-missing", "start-unsupported", "task-mounts-unreadable"),
                *("task-mounts-unusable", "worker-fault"),
            }
        ),
        "the worker's own fault: its disk, its files, its software",
    ),
)
OTHER: typing.Final = "other"
_NAMES: typing.Final = {code: one.name for one in REASONS for code in one.codes}

_LONGEST: typing.Final = 86400.0  # seconds of a wait that can be believed


@dataclasses.dataclass(frozen=True)
class Decided:
    """One decision of the GPU runtime on a step.

    Attributes:
        waited: for how many seconds a task that got GPUs waited; None: it got none.
        refused: one of REASONS, or OTHER; empty: it was not refused.
    """

    waited: float | None = None
    refused: str = ""


def reason(code: str) -> str:
    """Return the name of the reason for a refusal with this code."""
    return _NAMES.get(code, OTHER)


class Journal:
    """The GPU runtime's log, from its present end on."""

    def __init__(self, path: pathlib.Path) -> None:
        self._log = decisions.Followed(path)

    def read(self) -> list[Decided]:
        """What was decided since the last time.

        Raises:
            OSError: the log is there and can't be read.
        """
        return [found for found in map(_decided, self._log.entries()) if found]


def _decided(entry: decisions.Entry) -> Decided | None:
    """Return what an entry says of a step; None if it is not about a step."""
    if entry.container.startswith(SELF_TEST_CONTAINER) or not entry.is_step:
        return None
    if entry.code:
        return Decided(refused=reason(entry.code))
    if entry.kind in decisions.TASKS and entry.granted and entry.waited is not None:
        return Decided(waited=min(entry.waited, _LONGEST))
    return None
