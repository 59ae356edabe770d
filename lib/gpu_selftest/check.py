# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Types of the self-test: requests, levels, checks and results. Without side effects."""

import collections.abc
import dataclasses
import enum
import typing

# The longest text of a result, in characters.
_LONGEST: typing.Final = 2000


class Level(enum.Enum):
    """How much the self-test checks; each level includes those before it."""

    QUICK = "quick"
    ISOLATION = "isolation"
    COMPUTE = "compute"
    BURN_IN = "burn-in"

    def includes(self, other: "Level") -> bool:
        """Return whether a test of this level includes the checks of the other."""
        levels = list(Level)
        return levels.index(other) <= levels.index(self)


class Outcome(enum.Enum):
    """How a check ended.

    NOT_RUN: the check applies here, but it could not run now; the result says why. SKIPPED: the
    check does not apply here, for example because no minimum is set. Neither counts as passed.
    """

    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"
    NOT_RUN = "not-run"


class Obstacle(typing.NamedTuple):
    """The reason why a check can't run now.

    Attributes:
        text: the reason, one line.
        cause: its short form; see Result.
        is_brief: whether the obstacle goes away within seconds by itself.
    """

    text: str
    cause: str = ""
    is_brief: bool = False


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of one check, for one GPU or for the worker as a whole.

    Attributes:
        check: the check's id, such as `ecc`.
        level: the level that it belongs to.
        proves: what is true if it passed.
        outcome: how it ended.
        gpu: id of the GPU that it concerns; empty: the worker as a whole, so that its failure
            concerns all GPUs.
        text: what was seen, or why the check did not run; one line.
        value: the measured value; None if nothing is measured.
        unit: the unit of the value; empty for a count or a text.
        threshold: the limit that the value was compared with, such as `at least 8 GiB`.
        source: where the threshold comes from.
        remedy: what the operator does about it; empty unless the check failed or warns.
        condemns: whether a failure takes the GPU out of use; see Check.
        cause: the short form of `text` for status, without details that change from minute to
            minute, such as `disk full`; empty if `text` has no such details.
    """

    check: str
    level: Level
    proves: str
    outcome: Outcome
    gpu: str = ""
    text: str = ""
    value: float | str | None = None
    unit: str = ""
    threshold: str = ""
    source: str = ""
    remedy: str = ""
    condemns: bool = True
    cause: str = ""


class Said(typing.NamedTuple):
    """What a check found on one GPU; see Result."""

    outcome: Outcome
    text: str
    value: float | str | None = None
    remedy: str = ""
    threshold: str = ""
    cause: str = ""


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that the self-test checks.

    Attributes:
        id: the unique name of the check, in lower case with hyphens.
        level: the first level that runs the check.
        proves: what is true if the check passes, as a clause: `every GPU answers NVML`.
        remedy: what the operator does after a failure, if that is the same for every failure.
        source: where its thresholds come from: a specification, a file and version, a CVE.
        unit: the unit of the measured value, such as `GiB`, `TFLOPS`, `°C`.
        each_gpu: whether the check runs once for each GPU. If not, it runs once for the worker.
        condemns: whether a failure takes the GPU, or all of the worker's, out of use. False for
            failures that a job can cause, such as a full disk: one job could otherwise take the
            GPUs away from all others.
    """

    id: str
    level: Level
    proves: str
    remedy: str = ""
    source: str = ""
    unit: str = ""
    each_gpu: bool = False
    condemns: bool = True

    def result(
        self,
        outcome: Outcome,
        text: str,
        *,
        gpu: str = "",
        value: float | str | None = None,
        threshold: str = "",
        remedy: str = "",
    ) -> Result:
        """Return the result of this check; see Result.

        If `remedy` is empty and the outcome needs one, the check's own remedy is used. Texts may
        contain the output of programs: they become one line of printable characters.
        """
        needed = outcome in (Outcome.FAILED, Outcome.WARNING)
        return Result(
            self.id,
            self.level,
            self.proves,
            outcome,
            gpu=gpu,
            text=_line(text),
            value=_line(value) if isinstance(value, str) else value,
            unit=self.unit,
            threshold=threshold,
            source=self.source,
            remedy=_line(remedy or self.remedy) if needed else "",
            condemns=self.condemns,
        )

    def not_run(self, why: Obstacle, gpu: str = "") -> Result:
        """Return the result of this check if it can't run; see Result."""
        found = self.result(Outcome.NOT_RUN, why.text, gpu=gpu)
        return dataclasses.replace(found, cause=_line(why.cause))

    def told(self, said: Said, gpu: str = "", threshold: str = "") -> Result:
        """Return what `said` says as a result; `threshold` is used if `said` has none."""
        found = self.result(
            said.outcome,
            said.text,
            gpu=gpu,
            value=said.value,
            threshold=said.threshold or threshold,
            remedy=said.remedy,
        )
        return dataclasses.replace(found, cause=_line(said.cause))


def _line(text: str) -> str:
    shown = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 3]}..."


@dataclasses.dataclass(frozen=True)
class Request:
    """What the self-test is to test.

    Attributes:
        run: an id by which the caller finds the report.
        level: the level.
        gpu: id of the only GPU to test; empty: all that tasks may get.
        device: `cuda`; or `cpu`, which proves nothing about a GPU, so that nothing changes.
        minutes: how long the burn-in loads the GPUs.
    """

    run: str
    level: Level = Level.QUICK
    gpu: str = ""
    device: str = "cuda"
    minutes: int = 10


Progress = collections.abc.Callable[[str], None]
"""Called with one line of text for each step that begins."""
