# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Locks that are gone with the process that holds them, and tell who that is."""

import collections.abc
import contextlib
import fcntl
import os
import pathlib

_LONGEST = 1000


class LockedError(Exception):
    """Somebody else has the lock; the text is what that one said of itself."""


@contextlib.contextmanager
def hold(path: pathlib.Path, said: str) -> collections.abc.Generator[None]:
    """Have the lock for as long as this context lasts. Its directory must exist.

    Args:
        path: the file; it stays, since its removal would let two processes lock two files.
        said: one line about the holder, for those who come meanwhile.

    Raises:
        LockedError: if another process has it.
    """
    # Whoever may read a file may lock it.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        _take(descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, said.encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def alone_in(folder: pathlib.Path) -> collections.abc.Generator[None]:
    """Be the only one in here for as long as this context lasts; others wait until then.

    The folder itself is locked, which leaves nothing behind.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def holder(path: pathlib.Path) -> str:
    """What the process that has the lock said of itself; empty if none has all or a share."""
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
        raise LockedError(said or "a process that has not said who it is") from error
