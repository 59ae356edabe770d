# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The files of the receipts: one JSON line each, 32 MiB in all files at most."""

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
"""How many full files are kept beside the current one."""


def append(path: pathlib.Path, receipt: Receipt) -> None:
    """Append a receipt, whole or not at all.

    Raises:
        OSError: the receipt cannot be written.
    """
    files.ensure_directory(path.parent)
    rotated.append(path, receipt.as_line().encode(), full=FULL, kept=KEPT)


def remove(path: pathlib.Path = PATH) -> bool:
    """Remove all receipts. Return True if there were any."""
    changed = rotated.remove(path, KEPT)
    files.remove_if_empty(path.parent)
    return changed


def read(
    path: pathlib.Path, about: collections.abc.Collection[str] | None = None
) -> collections.abc.Generator[Receipt | None]:
    """Yield the receipts, the oldest first; None in place of each damaged line.

    Args:
        path: the log.
        about: ids of containers: only lines that contain one of them are parsed; None: all are.

    Raises:
        OSError: a file cannot be read.
    """
    names = None if about is None else [name.encode() for name in about]
    for line in rotated.lines(path, KEPT, LONGEST_LINE):
        if not line or (names is not None and not any(name in line for name in names)):
            continue
        try:
            yield parse(line.decode())
        except (UnicodeDecodeError, UnsoundError):
            yield None
