# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Where receipts are: one JSON line each, in files that together never take more than 32 MiB."""

import collections.abc
import pathlib
import typing

from gpu_agent.reporting.receipts.receipt import LONGEST_LINE, Receipt, UnsoundError, parse
from machine import files
from machine import log_rotation as rotated

PATH: typing.Final = pathlib.Path("/var/log/gpu-ci/receipts.log")

FULL: typing.Final = 4 << 20
"""Bytes in one file: some 6,000 leases of one GPU."""

KEPT: typing.Final = 7
"""So many full files stay beside the one that is written."""


def append(path: pathlib.Path, receipt: Receipt) -> None:
    """Add a receipt, whole or not at all.

    Raises:
        OSError: it can't be written.
    """
    files.ensure_directory(path.parent)
    rotated.append(path, receipt.as_line().encode(), full=FULL, kept=KEPT)


def remove(path: pathlib.Path = PATH) -> bool:
    """Take all receipts away. Return True if there were any."""
    changed = rotated.remove(path, KEPT)
    files.remove_if_empty(path.parent)
    return changed


def read(
    path: pathlib.Path, about: collections.abc.Collection[str] | None = None
) -> collections.abc.Generator[Receipt | None]:
    """The receipts, the oldest first; None in place of each line that is none.

    Args:
        path: the log.
        about: ids of containers: only lines that name one of them are taken apart; None: all are.

    Raises:
        OSError: they can't be read.
    """
    names = None if about is None else [name.encode() for name in about]
    for line in rotated.lines(path, KEPT, LONGEST_LINE):
        if not line or (names is not None and not any(name in line for name in names)):
            continue
        try:
            yield parse(line.decode())
        except (UnicodeDecodeError, UnsoundError):
            yield None
