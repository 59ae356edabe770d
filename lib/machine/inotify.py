# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Report names that are added to or removed from folders (inotify(7)).

A systemd path unit on a folder triggers on every write to a file in it too: on /dev for each write
to /dev/null.
"""

import ctypes
import os
import pathlib
import select
import struct
import types
import typing

# Linux include/uapi/linux/inotify.h
_EVENT: typing.Final = struct.Struct("iIII")
_MOVED_FROM: typing.Final = 0x40
_MOVED_TO: typing.Final = 0x80
_CREATE: typing.Final = 0x100
_DELETE: typing.Final = 0x200
_ONLYDIR: typing.Final = 0x01000000
_ENTRIES: typing.Final = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_MOST: typing.Final = 1 << 16  # bytes that one read returns at most


class Watch:
    """Reports names; use as a context manager.

    Attributes:
        descriptor: readable when there are names.

    Raises:
        OSError: the kernel has no more watches for this user.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        flags = os.O_CLOEXEC | os.O_NONBLOCK
        self.descriptor = _checked(self._libc.inotify_init1(flags), "inotify")

    def __enter__(self) -> "Watch":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        os.close(self.descriptor)

    def add(self, folder: pathlib.Path) -> None:
        """Report the names in this folder from now on; it may be watched already.

        Raises:
            OSError: it does not exist, or can't be watched.
        """
        path = os.fsencode(folder)
        mask = _ENTRIES | _ONLYDIR
        _checked(self._libc.inotify_add_watch(self.descriptor, path, mask), str(folder))

    def names(self, seconds: float | None) -> list[str]:
        """Wait for names that were added or removed.

        Args:
            seconds: the longest wait; None: forever.

        Returns:
            The names of one moment; none if the time is over. The empty name stands for any: the
            kernel's queue was full.
        """
        ready, _, _ = select.select([self.descriptor], [], [], seconds)
        data = os.read(self.descriptor, _MOST) if ready else b""
        found: list[str] = []
        while data:
            *_, length = _EVENT.unpack_from(data)
            end = _EVENT.size + length
            found.append(os.fsdecode(data[_EVENT.size : end].rstrip(b"\0")))
            data = data[end:]
        return found


def _checked(answer: int, what: str) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return answer
