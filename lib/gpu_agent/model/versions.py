# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The one way to read a version number."""

import re


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version in their order, which compare as versions do.

    Such as (580, 65, 6) of `580.65.06` and (1, 17, 8, 1) of `1.17.8-1`; none where there is no
    number in it.
    """
    return tuple(int(number) for number in re.findall(r"[0-9]{1,18}", version))
