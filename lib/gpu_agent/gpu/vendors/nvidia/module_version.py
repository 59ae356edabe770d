# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The version of the loaded nvidia.ko."""

import collections.abc
import re
import typing

_FILES: typing.Final = (
    ("sys/module/nvidia/version", r"^([0-9.]+)$"),
    ("proc/driver/nvidia/version", r"Kernel Module.*?\s([0-9]+\.[0-9.]+)\s"),
)


def version(text: collections.abc.Callable[[str], str]) -> str:
    """The module's version, such as `580.65.06`; empty if neither /sys nor /proc has it.

    Args:
        text: returns a file's text by its path below the root; empty if there is no such file.
    """
    found = (re.search(pattern, text(name), re.MULTILINE) for name, pattern in _FILES)
    return next((match.group(1) for match in found if match), "")
