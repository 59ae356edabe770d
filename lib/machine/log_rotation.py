# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Append lines to a log from one process, and rotate it: `name`, `name.1` and so on."""

import collections.abc
import contextlib
import errno
import fcntl
import os
import pathlib
import stat

from machine import files

_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def append(path: pathlib.Path, line: bytes, *, full: int, kept: int, mode: int = 0o640) -> None:
    """Append a line, completely or not at all, and sync it to disk.

    If a killed writer left a last line without an end, that line is ended first.

    Args:
        path: the log; made if it does not exist, in a directory that does.
        line: without its end.
        full: the size in bytes from which on the next line begins a new file.
        kept: how many older files are kept.
        mode: the permissions of the files.

    Raises:
        OSError: it can't be written, for example on a full disk, or is not a regular file.
    """
    with contextlib.ExitStack() as stack:
        descriptor = _open(path, stack, _APPEND, mode)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_size >= full:
            _rotate(path, kept)
            descriptor = _open(path, stack, _APPEND, mode)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        data = (b"\n" if torn else b"") + line + b"\n"
        try:
            written = os.write(descriptor, data)
            if written < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
            raise


def lines(path: pathlib.Path, kept: int, longest: int) -> collections.abc.Generator[bytes]:
    """Return the lines of the log and its older files, the oldest first, without their ends.

    A log that is rotated meanwhile is read completely. A line longer than `longest` bytes is
    returned in pieces of that size.

    Raises:
        OSError: a file can't be read. A missing file has no lines.
    """
    with contextlib.ExitStack() as stack:
        found: dict[tuple[int, int], int] = {}
        # The newest first: a file that is rotated meanwhile is found again under its next name.
        for name in (path, *(_older(path, number) for number in range(1, kept + 1))):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                descriptor = _open(name, stack, _READ)
                status = os.fstat(descriptor)
                found.setdefault((status.st_dev, status.st_ino), descriptor)
        for descriptor in reversed(found.values()):
            with open(descriptor, "rb", closefd=False) as file:
                while line := file.readline(longest):
                    yield line.removesuffix(b"\n")


def remove(path: pathlib.Path, kept: int) -> bool:
    """Remove the log and its older files. Return True if there were any."""
    names = [path, *(_older(path, number) for number in range(1, kept + 1))]
    removed = [files.ensure_absent(name) for name in names]
    return any(removed)


def _open(path: pathlib.Path, stack: contextlib.ExitStack, flags: int, mode: int = 0) -> int:
    descriptor = os.open(path, flags, mode)
    stack.callback(os.close, descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    if mode and stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
        os.fchmod(descriptor, mode)  # whatever the umask
    return descriptor


def _rotate(path: pathlib.Path, kept: int) -> None:
    for number in range(kept, 1, -1):
        with contextlib.suppress(FileNotFoundError):
            _older(path, number - 1).replace(_older(path, number))
    path.replace(_older(path, 1))


def _older(path: pathlib.Path, number: int) -> pathlib.Path:
    return path.with_name(f"{path.name}.{number}")
