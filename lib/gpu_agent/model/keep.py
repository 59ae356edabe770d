# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The mark of a part of the machine that must not be changed."""

import enum


class Keep(enum.Enum):
    """In a plan: leave this part of the machine unchanged, running or not."""

    AS_IS = "as is"
