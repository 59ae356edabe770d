# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""GPUs whose memory stays taken although nobody uses it: when that is so, and their cordons.

A hook writes all cordons at once, by its look at the beginning (cordons.py beside this module). So
the health watch, which looks more often, writes a cordon again that a hook has lifted too early,
and lifts a cordon whose cause is over, its own or a hook's.
"""

import json
import pathlib
import typing

from gpu_runtime.json_files import read_object
from machine import files, locks

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


def put(folder: pathlib.Path, uuid: str, reason: str) -> bool:
    """Cordon a GPU that is not cordoned. Return True if that changed anything.

    Raises:
        OSError: it can't be written.
    """
    files.ensure_directory(folder)
    with locks.alone_in(folder):
        path = folder / f"{uuid}.json"
        if path.exists():
            return False
        return files.ensure_file(path, json.dumps({"reason": reason}) + "\n")


def lift(folder: pathlib.Path, uuid: str, word: str) -> bool:
    """Bring a GPU back whose cordon has a reason that begins with `word`. True if it had.

    Raises:
        OSError: it can't be read, or removed.
    """
    if not folder.is_dir():
        return False
    with locks.alone_in(folder):
        path = folder / f"{uuid}.json"
        return _told(path).startswith(word) and files.ensure_absent(path)


def cordoned(folder: pathlib.Path, word: str) -> frozenset[str]:
    """The GPUs whose cordons have a reason that begins with `word`.

    Raises:
        OSError: the folder, or a file in it, can't be read.
    """
    paths = [path for path in files.entries(folder) if path.suffix == ".json"]
    return frozenset(path.stem for path in paths if _told(path).startswith(word))


def _told(path: pathlib.Path) -> str:
    """The reason in a cordon's file; empty if it is gone, damaged, or of somebody's making.

    Raises:
        OSError: it can't be read.
    """
    try:
        found = read_object(str(path))
    except (FileNotFoundError, ValueError):
        return ""
    told = found.get("reason")
    return told if isinstance(told, str) and not found.get("by") else ""
