# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The verdict of the last self-test: a frozen type only."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the last self-test came to.

    Attributes:
        outcome: `passed`, `failed`, or `incomplete`: something could not be tested.
        partial: whether one GPU alone was tested.
        failure: what the first failed check saw, or why the first that could not be made was not.
        remedy: what the operator does about that.
    """

    outcome: str
    partial: bool = False
    failure: str = ""
    remedy: str = ""
