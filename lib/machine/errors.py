# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The base of all errors of one part of a unit."""


class PartError(Exception):
    """A part cannot be brought to its planned state; the text says why, and the next step.

    The other parts of the unit are not concerned: the charm reports the error in status.

    Attributes:
        passes: whether the next attempt may work without help.
    """

    passes: bool = False
