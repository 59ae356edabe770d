# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Judge whether a GPU is as fast as it should be. Without side effects.

A rate is compared with three others, and the worst of the three verdicts counts: the least rate of
its model, the rate of this GPU in an earlier run, and the rates of other GPUs of its model now.
"""

import collections.abc
import dataclasses
import statistics
import typing

from gpu_selftest.check import Outcome
from gpu_selftest.compute import floors


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far below a comparison a rate may be, as a share of it.

    Attributes:
        failed: below this share the GPU fails; 0: it never fails by this comparison.
        warning: below this share there is a warning.
    """

    failed: float
    warning: float


@dataclasses.dataclass(frozen=True)
class Measure:
    """How one kind of rate is judged.

    Attributes:
        own: against this GPU's own last good run.
        siblings: against the median of the other GPUs of its model.
        floor_fails: whether a rate below the model's floor fails. If not, it warns, since the host
            may be the cause.
    """

    own: Tolerance
    siblings: Tolerance
    floor_fails: bool = True


# The best of six windows repeats within 2 %, and a warmer room costs a GPU at its power limit some
# more: a loss of 5 % is worth a look, and no healthy GPU loses 15 %. Two healthy GPUs of one model
# differ by 8 % on average and by 22 % at most: Sinha et al., "Not All GPUs Are Created Equal:
# Characterizing Variability in Large-Scale, Accelerator-Rich Systems", SC22.
OF_GPU: typing.Final = Measure(Tolerance(0.85, 0.95), Tolerance(0.75, 0.90))
# The host's processor and memory that take part vary from run to run and with the slot. Half the
# rate is the result of half the lanes or of one PCIe generation less.
OF_LINK: typing.Final = Measure(Tolerance(0.60, 0.80), Tolerance(0.0, 0.60), floor_fails=False)


class Floor(typing.NamedTuple):
    """The least rate of a model, in the measure's unit, and its source."""

    bound: float
    model: str
    source: str


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict on a rate.

    Attributes:
        threshold: the limit that it was compared with; of several, the deciding one.
        source: where that limit comes from.
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
        value: the measured rate.
        unit: the unit of all rates, for texts.
        measure: how the rate is judged.
        floor: the least rate of the model; None if no source has one.
        own: the rate of this GPU in its last good run; None if there was none.
        siblings: the rates of the other GPUs of its model in this run.

    Returns:
        The worst of the verdicts; of equal ones the first in the order above. If there was nothing
        to compare with, the threshold says so.
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
    """Return a model's least rate by the name in floors.Model; None if no source has one."""
    bound: float | None = getattr(model, name, None)
    if model is None or bound is None:
        return None
    return Floor(bound, model.name, floors.AZURE if name in ("host", "peer") else floors.DCGM)
