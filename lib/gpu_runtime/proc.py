# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read files that may disappear at any moment: gone counts as empty, other errors are raised."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Files(Protocol):
        """The files of a machine's kernel; this module is the real implementation."""

        def read(self, path: str) -> str:
            """Return the text of a file; empty if it is gone."""
            ...

        def lines(self, path: str) -> list[str]:
            """Return the lines of a file; none if it is gone."""
            ...

        def names(self, folder: str) -> list[str]:
            """Return the names in a folder; none if it is gone."""
            ...

        def folders(self, folder: str) -> list[str]:
            """Return the paths of the folders in a folder; none if it is gone."""
            ...

        def link(self, path: str) -> str:
            """Return the target of a link; empty if it is gone."""
            ...

        def look(self, path: str) -> os.stat_result | None:
            """Return the status of a path, links followed; None if it is gone."""
            ...

        def exists(self, path: str) -> bool:
            """Whether a path exists."""
            ...


# The errors for a process, a control group or a file that is gone. ENODEV is for a control group
# that is removed while it is open.
_GONE = frozenset({errno.ENOENT, errno.ESRCH, errno.ENOTDIR, errno.ENODEV})


def is_gone(error: OSError) -> bool:
    """Whether an error means only that the file is gone."""
    return error.errno in _GONE


def read(path: str) -> str:
    """Return the text of a file; empty if it is gone.

    Raises:
        OSError: it cannot be read.
    """
    return read_bytes(path).decode(errors="replace")


def lines(path: str) -> list[str]:
    """Return the lines of a file; none if it is gone.

    Only a line feed ends a line. The kernel writes names that users chose, and str.splitlines also
    splits at other characters in them (form feed, U+2028).

    Raises:
        OSError: it cannot be read.
    """
    return [line for line in read(path).split("\n") if line]


def read_bytes(path: str) -> bytes:
    """Return the content of a file; empty if it is gone.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError as error:
        if is_gone(error):
            return b""
        raise


def names(folder: str | int) -> list[str]:
    """Return the names in a folder, given by path or descriptor; none if it is gone.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return os.listdir(folder)
    except OSError as error:
        if is_gone(error):
            return []
        raise


def folders(folder: str) -> list[str]:
    """Return the paths of the folders in a folder; none if it is gone.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if is_gone(error):
            return []
        raise


def link(path: str) -> str:
    """Return the target of a link; empty if it is gone.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return os.readlink(path)
    except OSError as error:
        if is_gone(error):
            return ""
        raise


def look(path: str) -> os.stat_result | None:
    """Return the status of a path, links followed; None if it is gone.

    Raises:
        OSError: the path cannot be read.
    """
    try:
        return os.stat(path)
    except OSError as error:
        if is_gone(error):
            return None
        raise


def exists(path: str) -> bool:
    """Whether a path exists.

    Raises:
        OSError: the path cannot be read.
    """
    return look(path) is not None
