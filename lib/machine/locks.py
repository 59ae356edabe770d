# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Lock files that are released when their holder ends, and that name the holder."""

import collections.abc
import contextlib
import errno
import fcntl
import os
import pathlib
import time

_LONGEST = 1000
# In seconds. Decisions under such a lock take milliseconds.
_PATIENCE = 10.0
_LOOK_EVERY = 0.01


class LockedError(Exception):
    """Another process has the lock; the text is its description of itself."""


@contextlib.contextmanager
def hold(path: pathlib.Path, said: str) -> collections.abc.Generator[None]:
    """Hold the lock as long as this context lasts. Its directory must exist.

    Args:
        path: the file; it stays, since removing it would let two processes lock two files.
        said: one line about the holder, for others who try.

    Raises:
        LockedError: another process has it.
    """
    # Every user who can read a file can lock it.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        _take(descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, said.encode(), 0)
        yield
    finally:
        os.close(descriptor)


class BusyError(TimeoutError):
    """Another process holds a lock for too long.

    Args:
        path: the lock's file.
        seconds: how long the caller waited.
    """

    passes = True

    def __init__(self, path: pathlib.Path, seconds: float) -> None:
        super().__init__(errno.ETIMEDOUT, "Another process has had the lock", str(path))
        self._seconds = seconds

    def __str__(self) -> str:
        return f"{self.strerror} {self.filename} for {self._seconds:g} s"


@contextlib.contextmanager
def alone_in(
    folder: pathlib.Path, seconds: float = _PATIENCE
) -> collections.abc.Generator[pathlib.Path]:
    """Enter this context alone; others wait until it ends.

    A file in the folder is locked that only root can open. The folder itself is not the lock: any
    user who can read it can lock it.

    Args:
        folder: it must exist, and only root may be able to write to it.
        seconds: the longest wait.

    Yields:
        The file. Only the process that has the lock may remove it.

    Raises:
        BusyError: another process had the lock for all that time.
        OSError: the file can't be opened.
    """
    path, deadline = folder / ".lock", time.monotonic() + seconds
    while (descriptor := _alone(path)) is None:
        if time.monotonic() >= deadline:
            raise BusyError(path, seconds)
        time.sleep(_LOOK_EVERY)
    try:
        yield path
    finally:
        os.close(descriptor)


def holder(path: pathlib.Path) -> str:
    """Return how the holder of the lock describes itself; empty if no process holds it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    try:
        _take(descriptor)
    except LockedError as error:
        return str(error)
    finally:
        os.close(descriptor)
    return ""


def _take(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        said = os.pread(descriptor, _LONGEST, 0).decode(errors="replace")
        raise LockedError(said or "a process without a description") from error


def _alone(path: pathlib.Path) -> int | None:
    """Return the open file with its lock; None if another process has it or removes the file."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.lstat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
