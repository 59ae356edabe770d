# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read a log of other programs line by line as it grows, across its rotation."""

import contextlib
import os
import pathlib
import typing

_AT_ONCE: typing.Final = 1 << 20  # bytes that one call reads; the next call goes on
_LONGEST: typing.Final = 1 << 18  # the longest line that is returned, in bytes


class Followed:
    """A log that is followed from its present end, or from some bytes before that."""

    def __init__(self, path: pathlib.Path, before: int = 0) -> None:
        """Start; a log that can't be opened is tried again at each call, from its beginning.

        Args:
            path: the log, which need not exist yet.
            before: how many existing bytes are read too; their first line may lack its beginning.
        """
        self._path = path
        self._file: int | None = None
        self._rest = b""
        self._skips = False  # whether the beginning of a line that is too long was left out
        with contextlib.suppress(OSError):
            file = self._open()
            os.lseek(file, max(0, os.fstat(file).st_size - before), os.SEEK_SET)

    def lines(self) -> list[bytes]:
        """Return the lines that came since the last call, without their ends.

        Raises:
            OSError: the log exists and can't be read.
        """
        if self._file is None:
            try:
                self._open()
            except FileNotFoundError:
                return []
        found = self._read()
        if self._is_left():
            # A line may have come between the two reads, and the new log may have some already.
            found += self._read()
            self.close()
            with contextlib.suppress(FileNotFoundError):
                self._open()
                found += self._read()
        return found

    def close(self) -> None:
        """Close the log."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._rest, self._skips = None, b"", False

    def _open(self) -> int:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._file = os.open(self._path, flags)
        return self._file

    def _is_left(self) -> bool:
        """Return whether this file is read to its end and the log is another file by now."""
        if self._file is None:
            return False
        own = os.fstat(self._file)
        if os.lseek(self._file, 0, os.SEEK_CUR) < own.st_size:
            return False
        try:
            return not os.path.samestat(own, self._path.stat())
        except FileNotFoundError:  # between the two steps of a rotation
            return False

    def _read(self) -> list[bytes]:
        if self._file is None:
            return []
        if os.fstat(self._file).st_size < os.lseek(self._file, 0, os.SEEK_CUR):
            os.lseek(self._file, 0, os.SEEK_SET)  # it was truncated
            self._rest = b""
        *found, self._rest = (self._rest + os.read(self._file, _AT_ONCE)).split(b"\n")
        if self._skips and found:
            found, self._skips = found[1:], False
        if len(self._rest) > _LONGEST:
            self._rest, self._skips = b"", True
        return found
