# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a check is and what it comes to. Pure: types and their words only."""

import collections.abc
import dataclasses
import enum
import typing

# Of what a result says, in characters.
_LONGEST: typing.Final = 2000


class Level(enum.Enum):
    """How much is tested; each level includes those before it."""

    QUICK = "quick"
    ISOLATION = "isolation"
    COMPUTE = "compute"
    BURN_IN = "burn-in"

    def includes(self, other: "Level") -> bool:
        """Whether a test of this level makes the checks of the other."""
        levels = list(Level)
        return levels.index(other) <= levels.index(self)


class Outcome(enum.Enum):
    """How a check ended.

    SKIPPED never counts as passed: PREVENTED says that the check should have run and could not,
    SKIPPED that it has nothing to say here, such as of a minimum that is not set.
    """

    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"
    PREVENTED = "prevented"


@dataclasses.dataclass(frozen=True)
class Result:
    """What one check came to, for one GPU or for the worker as a whole.

    Attributes:
        check: the check's id, such as `ecc`.
        level: the level that it belongs to.
        proves: what is true if it passed.
        outcome: how it ended.
        gpu: id of the GPU that it concerns; empty: the worker as a whole, so that its failure
            concerns all GPUs.
        text: what was seen, or why it was skipped; one line.
        value: the measured value; None where nothing is measured.
        unit: of the value; empty for a count or a text.
        threshold: what the value was judged by, in words, such as `at least 8 GiB`.
        source: where the threshold comes from.
        remedy: what the operator does about it; empty unless it failed or warns.
        condemns: whether a failure takes the GPU out of use; see Check.
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


class Said(typing.NamedTuple):
    """What a check found on one GPU; see Result."""

    outcome: Outcome
    text: str
    value: float | str | None = None
    remedy: str = ""
    threshold: str = ""


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that is tested.

    Attributes:
        id: lower case and hyphens; unique.
        level: the first level that makes it.
        proves: what is true if it passes, as a clause: `every GPU answers NVML`.
        remedy: what the operator does when it fails, where that is always the same.
        source: where its thresholds come from: a specification, a file and version, a CVE.
        unit: what it measures in, such as `GiB`, `TFLOPS`, `°C`.
        each_gpu: whether it is made on each GPU, and not once for the worker.
        condemns: whether a failure takes the GPU, or all of the worker's, out of use. Not where a
            job can bring it about by itself, such as by filling the disk: it would take them from
            everybody else.
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
        """What it came to; see Result. Without `remedy` its own is told where one is needed.

        What a program said may be in the words: they become one line of printable text.
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

    def told(self, said: Said, gpu: str, threshold: str) -> Result:
        """What it came to on a GPU; the threshold is for those that name none of their own."""
        return self.result(
            said.outcome,
            said.text,
            gpu=gpu,
            value=said.value,
            threshold=said.threshold or threshold,
            remedy=said.remedy,
        )


def _line(text: str) -> str:
    shown = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 3]}..."


Progress = collections.abc.Callable[[str], None]
"""Told what happens now, one line each."""
