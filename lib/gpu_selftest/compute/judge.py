# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whether a GPU is as fast as it should be. Pure.

A rate is held against three things, and the worst of the three verdicts counts: what its model
must reach, what this very GPU reached before, and what the others of its model reach now.
"""

import collections.abc
import dataclasses
import statistics
import typing

from gpu_selftest.check import Outcome
from gpu_selftest.compute import floors


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far below a comparison a rate may be, as a part of it.

    Attributes:
        failed: below this the GPU is not what it was, or not what its siblings are; 0: it never
            fails by this comparison.
        warning: below this it should be looked at.
    """

    failed: float
    warning: float


@dataclasses.dataclass(frozen=True)
class Measure:
    """One thing that is measured, and how it is judged.

    Attributes:
        own: against this GPU's own last good run.
        siblings: against the median of the others of its model.
        floor_fails: whether being below the model's floor is the GPU's fault, and not perhaps the
            host's.
    """

    own: Tolerance
    siblings: Tolerance
    floor_fails: bool = True


# The best of six windows repeats within 2 %, and a warmer room costs a GPU at its power limit
# some more: a loss of 5 % is worth a look, and no healthy GPU loses 15 %. Two healthy GPUs of one
# model differ by 8 % on the average and by 22 % at most: Sinha et al., "Not All GPUs Are Created
# Equal: Characterizing Variability in Large-Scale, Accelerator-Rich Systems", SC22.
OF_GPU: typing.Final = Measure(Tolerance(0.85, 0.95), Tolerance(0.75, 0.90))
# Which processor and which memory of the host take part changes from run to run, and with the
# slot; half the rate is what half the lanes or a generation less give.
OF_LINK: typing.Final = Measure(Tolerance(0.60, 0.80), Tolerance(0.0, 0.60), floor_fails=False)


class Floor(typing.NamedTuple):
    """The least that a model must reach, in the measure's unit, and who says so."""

    bound: float
    model: str
    source: str


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a rate comes to.

    Attributes:
        threshold: what it was judged by, in words; of several, what decided.
        source: where that comes from.
    """

    outcome: Outcome
    threshold: str
    source: str


def judge(
    value: float,
    unit: str,
    measure: Measure,
    floor: Floor | None = None,
    own: float | None = None,
    siblings: collections.abc.Sequence[float] = (),
) -> Verdict:
    """Judge one rate.

    Args:
        value: what was measured.
        unit: of all of them, for the words.
        measure: how it is judged.
        floor: what the model must reach; None if nobody says that.
        own: what this GPU reached in its last good run; None if there was none.
        siblings: what the other GPUs of its model reached in this run.

    Returns:
        The worst of the verdicts; of equal ones the first in the order above. One that passed with
        nothing to compare with says so in its threshold.
    """
    found: list[Verdict] = []
    if floor:
        worst = Outcome.FAILED if measure.floor_fails else Outcome.WARNING
        outcome = Outcome.PASSED if value >= floor.bound else worst
        threshold = f"at least {floor.bound:g} {unit} for {floor.model}"
        found.append(Verdict(outcome, threshold, floor.source))
    if own is not None:
        words, source = "of its own last good run", "that run"
        found.append(_against(value, own, unit, measure.own, words, source))
    if siblings:
        median = statistics.median(siblings)
        words, source = "of the others of its model", "this run"
        found.append(_against(value, median, unit, measure.siblings, words, source))
    if not found:
        return Verdict(Outcome.PASSED, "nothing to compare it with yet", "")
    order = [Outcome.FAILED, Outcome.WARNING, Outcome.PASSED]
    return min(found, key=lambda verdict: order.index(verdict.outcome))


def _against(
    value: float, other: float, unit: str, tolerance: Tolerance, words: str, source: str
) -> Verdict:
    if value < tolerance.failed * other:
        outcome, part = Outcome.FAILED, tolerance.failed
    else:
        outcome = Outcome.WARNING if value < tolerance.warning * other else Outcome.PASSED
        part = tolerance.warning
    return Verdict(outcome, f"at least {part:.0%} {words}, {other:.4g} {unit}", source)


def floor_of(model: floors.Model | None, name: str) -> Floor | None:
    """What a model must reach in one of floors.Model's rates; None where nobody says that."""
    bound: float | None = getattr(model, name, None)
    if model is None or bound is None:
        return None
    return Floor(bound, model.name, floors.AZURE if name in ("host", "peer") else floors.DCGM)
