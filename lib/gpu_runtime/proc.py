# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reading what may go away at any moment: gone is empty, and every other error is raised."""

from __future__ import annotations

import errno
import os

# How the kernel says that a process, a control group or a file is no more: a control group that
# goes away while it is open is no device any more.
_GONE = frozenset({errno.ENOENT, errno.ESRCH, errno.ENOTDIR, errno.ENODEV})


def is_gone(error: OSError) -> bool:
    """Whether an error says that the thing is not there, and nothing else."""
    return error.errno in _GONE


def read(path: str) -> str:
    """What a file says; empty if it is gone.

    Raises:
        OSError: it can't be read.
    """
    return read_bytes(path).decode(errors="replace")


def lines(path: str) -> list[str]:
    """The lines of a file; none if it is gone.

    Only a line feed ends one: the kernel writes names as users gave them, and str.splitlines takes
    other characters in them for ends too (form feed, U+2028).

    Raises:
        OSError: it can't be read.
    """
    return [line for line in read(path).split("\n") if line]


def read_bytes(path: str) -> bytes:
    """What is in a file; nothing if it is gone.

    Raises:
        OSError: it can't be read.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError as error:
        if is_gone(error):
            return b""
        raise


def names(folder: str | int) -> list[str]:
    """The names in a folder, given by its path or a descriptor; none if it is gone.

    Raises:
        OSError: it can't be read.
    """
    try:
        return os.listdir(folder)
    except OSError as error:
        if is_gone(error):
            return []
        raise


def folders(folder: str) -> list[str]:
    """The paths of the folders in a folder; none if it is gone.

    Raises:
        OSError: it can't be read.
    """
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if is_gone(error):
            return []
        raise


def link(path: str) -> str:
    """Where a link points to; empty if it is gone.

    Raises:
        OSError: it can't be read.
    """
    try:
        return os.readlink(path)
    except OSError as error:
        if is_gone(error):
            return ""
        raise


def look(path: str) -> os.stat_result | None:
    """What is at a path, links followed; None if it is gone.

    Raises:
        OSError: it can't be told.
    """
    try:
        return os.stat(path)
    except OSError as error:
        if is_gone(error):
            return None
        raise


def exists(path: str) -> bool:
    """Whether something is at a path.

    Raises:
        OSError: it can't be told.
    """
    return look(path) is not None
