# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""GPUs whose memory is still taken although no process uses them: the rule and the records.

A hook writes all records of GPUs in use outside CI at once, from what it saw at its beginning
(external_use.py beside this module). The GPU health service looks more often. It writes a record
again that a hook removed too early, and removes a record as soon as the memory is free, no matter
which of the two wrote it.
"""

import json
import pathlib
import typing

from gpu_runtime import unavailable
from gpu_runtime.unavailable import EXTERNAL, RESIDUAL_MEMORY, Unavailable
from machine import files, locks

# An idle GPU has less allocated beyond the driver's reserve: some MiB, with MIG devices some tens
# of MiB each. Both must be exceeded, as the second grows with the card.
_MIB: typing.Final = 1024
_SHARE: typing.Final = 0.02


def is_taken(used_mib: int, total_mib: int) -> bool:
    """Whether more memory is allocated than on an idle GPU."""
    return used_mib > max(_MIB, total_mib * _SHARE)


def cause(used_mib: int) -> Unavailable:
    """Why tasks do not get a GPU that has so much memory allocated and no process."""
    reason = f"{used_mib / 1024:.1f} GiB taken without a process"
    return Unavailable(EXTERNAL, RESIDUAL_MEMORY, reason)


def put(folder: pathlib.Path, uuid: str, cause: Unavailable) -> bool:
    """Record a GPU that has no record in this folder. Return True if that changed anything.

    Raises:
        OSError: the record can't be written.
    """
    files.ensure_directory(folder)
    with locks.alone_in(folder):
        path = folder / f"{uuid}.json"
        if path.exists():
            return False
        return files.ensure_file(path, json.dumps(cause.as_record()) + "\n")


def lift(folder: pathlib.Path, uuid: str) -> bool:
    """Remove a GPU's record if it is of residual memory. Return True if it was.

    Raises:
        OSError: the record can't be read or removed.
    """
    if not folder.is_dir():
        return False
    with locks.alone_in(folder):
        return uuid in recorded(folder) and files.ensure_absent(folder / f"{uuid}.json")


def recorded(folder: pathlib.Path) -> frozenset[str]:
    """The GPUs with a record of residual memory.

    Raises:
        OSError: the folder can't be read.
    """
    found = unavailable.read_folder(str(folder))
    return frozenset(uuid for uuid, one in found.items() if one.code == RESIDUAL_MEMORY)
