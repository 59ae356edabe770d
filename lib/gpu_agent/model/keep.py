# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The mark of a part of the machine that is not to be changed."""

import enum


class Keep(enum.Enum):
    """Stands where a part of the machine is to stay as it is, running or not."""

    AS_IS = "as is"
