# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Single cordons of GPUs whose memory stays taken, for the watch; see oci.cordons for the rest.

Hooks write all cordons at once, as they see things when they begin. So whoever looks more often
writes again what a hook took for over, and lifts what is over, whoever wrote it.
"""

import json
import pathlib

from gpu_runtime.json_files import read_object
from machine import files, locks


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
        return reason(path).startswith(word) and files.ensure_absent(path)


def cordoned(folder: pathlib.Path, word: str) -> frozenset[str]:
    """The GPUs whose cordons have a reason that begins with `word`.

    Raises:
        OSError: the folder, or a file in it, can't be read.
    """
    paths = [path for path in files.entries(folder) if path.suffix == ".json"]
    return frozenset(path.stem for path in paths if reason(path).startswith(word))


def reason(path: pathlib.Path) -> str:
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
