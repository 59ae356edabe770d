# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A log of lines that one process appends to: `name`, then `name.1` and so on, older and older."""

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
    """Append a line, whole or not at all, and have it on the disk.

    A last line without an end, which a writer that was killed left, is ended first, so that it
    spoils no other.

    Args:
        path: the log; made, if there is none, in a directory that exists.
        line: without its end.
        full: in bytes; from there on the next line begins a new file.
        kept: how many older files stay.
        mode: the permissions of the files.

    Raises:
        OSError: it can't be written, as where the disk is full; or it is no regular file.
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
    """The lines of the log and of its older files, the oldest first, without their ends.

    A log that is rotated meanwhile is read whole. A line that is longer than `longest` bytes comes
    in pieces of that size.

    Raises:
        OSError: a file can't be read; where there is none, there are no lines.
    """
    with contextlib.ExitStack() as stack:
        found: dict[tuple[int, int], int] = {}
        # The newest first: what is rotated in between is met again under its next name.
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
    """Take the log and its older files away. Return True if there were any."""
    names = [path, *(_older(path, number) for number in range(1, kept + 1))]
    removed = [files.ensure_absent(name) for name in names]
    return any(removed)


def _open(path: pathlib.Path, stack: contextlib.ExitStack, flags: int, mode: int = 0) -> int:
    descriptor = os.open(path, flags, mode)
    stack.callback(os.close, descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "is no regular file", str(path))
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
