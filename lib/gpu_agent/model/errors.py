# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The error for a machine that can't be inspected now."""


class UnknownError(Exception):
    """The machine's state is unknown now; the text says why."""


def unknown(why: object) -> UnknownError:
    """Make the error with a reason."""
    return UnknownError(f"This machine can't be looked at, so nothing is changed for now: {why}")
