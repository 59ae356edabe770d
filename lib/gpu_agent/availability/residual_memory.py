# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""When a GPU's memory counts as taken although nobody uses it. Pure."""

import typing

# An idle GPU has less allocated beyond the driver's reserve: some MiB, with MIG devices some tens
# of MiB each. Both must be exceeded, as the second grows with the card.
_MIB: typing.Final = 1024
_SHARE: typing.Final = 0.02

WORD: typing.Final = "dirty:"
"""How a reason begins that says so."""


def is_taken(used_mib: int, total_mib: int) -> bool:
    """Whether so much of so much is more than an idle GPU has allocated."""
    return used_mib > max(_MIB, total_mib * _SHARE)


def reason(used_mib: int) -> str:
    """What is said of a GPU with so much allocated that has no process."""
    return f"{WORD} {used_mib / 1024:.1f} GiB taken without a process"
