# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read the boot's id, and a process's parent and open files, from /proc."""

import contextlib
import pathlib
import re
import typing

_PROC: typing.Final = pathlib.Path("/proc")
_GONE: typing.Final = (FileNotFoundError, ProcessLookupError)


def boot_id(proc: pathlib.Path = _PROC) -> str:
    """Return the unique id of this boot; empty if the kernel has none.

    Raises:
        OSError: it can't be read.
    """
    with contextlib.suppress(FileNotFoundError):
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    return ""


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
