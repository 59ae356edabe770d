# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Make the verdict for status from the report of the last self-test."""

import pathlib

from gpu_agent.model.verdict import Verdict
from gpu_selftest import results
from gpu_selftest.check import Outcome


def verdict(home: pathlib.Path = results.HOME) -> Verdict | None:
    """Return the verdict of the last self-test; None before the first.

    Args:
        home: the folder of the reports.

    Raises:
        OSError: the report can't be read now.
    """
    report = results.read(home=home)
    if report is None:
        return None
    told = Outcome.NOT_RUN if report.outcome == "incomplete" else Outcome.FAILED
    # Failures that take no GPU out come first: status shows the others as quarantined GPUs.
    found = sorted(filter(lambda one: one.outcome is told, report.results), key=results.condemns)
    first = found[0] if found else None
    if first is None:
        return Verdict(report.outcome, bool(report.gpu))
    return Verdict(report.outcome, bool(report.gpu), first.cause or first.text, first.remedy)
