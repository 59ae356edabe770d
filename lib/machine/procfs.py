# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read a process's parent and open files from /proc."""

import contextlib
import pathlib
import re
import typing

_PROC: typing.Final = pathlib.Path("/proc")
_GONE: typing.Final = (FileNotFoundError, ProcessLookupError)


def parent(pid: int, proc: pathlib.Path = _PROC) -> int:
    """Return the number of the process's parent; 0 if it is gone."""
    with contextlib.suppress(*_GONE):
        # After the name, which may hold any bytes: the state, then the parent (proc(5)).
        return int((proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
    return 0


def open_files(pid: int, pattern: re.Pattern[str], proc: pathlib.Path = _PROC) -> dict[int, str]:
    """Return the matching paths that a process has open, by descriptor; none if it is gone.

    Raises:
        OSError: it can't be examined.
    """
    found: dict[int, str] = {}
    with contextlib.suppress(*_GONE):
        for link in [*(proc / str(pid) / "fd").iterdir()]:
            with contextlib.suppress(*_GONE):
                path = str(link.readlink())
                if pattern.fullmatch(path):
                    found[int(link.name)] = path
    return found
