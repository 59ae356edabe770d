# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Ignore failures of a test during which a card was added to or removed from the machine.

A GPU that falls off the bus keeps its device node. Nodes come and go only if someone who gives the
machine its cards (LXD, an operator) adds or removes one.
"""

import collections.abc
import dataclasses

from gpu_selftest import results
from gpu_selftest.check import Outcome, Result


def spared(
    found: list[Result],
    before: collections.abc.Collection[str],
    now: collections.abc.Collection[str],
) -> list[Result]:
    """Return the results, changed so that none takes a GPU out if device nodes came or went.

    Args:
        found: the results of the checks.
        before: names of the GPUs' device nodes when the test began.
        now: the same after those checks.
    """
    changes = [
        f"{', '.join(sorted(names))} {what}"
        for names, what in ((set(before) - set(now), "removed"), (set(now) - set(before), "added"))
        if names
    ]
    if not changes:
        return found
    why = f"the GPUs' device nodes changed during the test: {' and '.join(changes)}"
    return [
        dataclasses.replace(
            result,
            outcome=Outcome.NOT_RUN,
            text=f"{why}; seen: {result.text}",
            remedy="",
        )
        if results.condemns(result)
        else result
        for result in found
    ]
