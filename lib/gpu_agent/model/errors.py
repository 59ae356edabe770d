# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The error of a look at this machine that is impossible now."""


class UnknownError(Exception):
    """What the machine is can't be told now; the text says why. It says nothing of the machine."""


def unknown(why: object) -> UnknownError:
    """The error that says why."""
    return UnknownError(f"This machine can't be looked at, so nothing is changed for now: {why}")
