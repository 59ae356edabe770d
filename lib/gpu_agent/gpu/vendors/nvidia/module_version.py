# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the loaded nvidia.ko says of itself."""

import collections.abc
import re
import typing

_FILES: typing.Final = (
    ("sys/module/nvidia/version", r"^([0-9.]+)$"),
    ("proc/driver/nvidia/version", r"Kernel Module.*?\s([0-9]+\.[0-9.]+)\s"),
)


def version(text: collections.abc.Callable[[str], str]) -> str:
    """Its version, such as `580.65.06`; empty if neither /sys nor /proc tells it.

    Args:
        text: what a file says, by its path below the root; empty where there is none.
    """
    found = (re.search(pattern, text(name), re.MULTILINE) for name, pattern in _FILES)
    return next((match.group(1) for match in found if match), "")
