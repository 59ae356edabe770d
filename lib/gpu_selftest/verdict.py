# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Makes the verdict of the last self-test's report."""

from gpu_agent.model.verdict import Verdict
from gpu_selftest import results
from gpu_selftest.check import Outcome


def verdict() -> Verdict | None:
    """What the last self-test came to; None before the first.

    Raises:
        OSError: that can't be told now.
    """
    report = results.read()
    if report is None:
        return None
    told = Outcome.PREVENTED if report.outcome == "incomplete" else Outcome.FAILED
    # First what takes no GPU out: of the others status has what it says of the quarantine.
    found = sorted(filter(lambda one: one.outcome is told, report.results), key=results.condemns)
    first = found[0] if found else None
    if first is None:
        return Verdict(report.outcome, bool(report.gpu))
    # Which container it is, how long it has had a GPU and how full the disk is change by the
    # minute.
    cut = ":" if told is Outcome.FAILED and not first.condemns else " by container"
    why = first.text.partition(cut)[0]
    return Verdict(report.outcome, bool(report.gpu), why, first.remedy)
