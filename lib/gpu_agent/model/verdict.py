# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The verdict of the last self-test: a frozen type only."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of the last self-test.

    Attributes:
        outcome: `passed`, `failed`, or `incomplete`: a check could not run.
        partial: whether only one GPU was tested.
        failure: the finding of the first failed check, or why the first blocked check did not run.
        remedy: what the operator does about it.
    """

    outcome: str
    partial: bool = False
    failure: str = ""
    remedy: str = ""
