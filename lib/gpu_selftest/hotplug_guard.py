# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A card that is passed in or taken away while it is tested proves nothing of any GPU.

A GPU that falls off the bus keeps its device node: only who gives the machine its cards (LXD, an
operator) makes nodes come and go.
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
    """The results, of which none takes a GPU out where its nodes came or went meanwhile.

    Args:
        found: what the checks came to.
        before: names of the GPUs' device nodes as the test began.
        now: the same after those checks.
    """
    changes = [
        f"{', '.join(sorted(names))} {what}"
        for names, what in ((set(before) - set(now), "went"), (set(now) - set(before), "came"))
        if names
    ]
    if not changes:
        return found
    why = f"the GPUs' device nodes changed during the test: {' and '.join(changes)}"
    return [
        dataclasses.replace(
            result,
            outcome=Outcome.PREVENTED,
            text=f"{why}; seen: {result.text}",
            remedy="",
        )
        if results.condemns(result)
        else result
        for result in found
    ]
