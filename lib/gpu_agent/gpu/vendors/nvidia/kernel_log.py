# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Follows the kernel's log from its end: what NVIDIA's driver says of its GPUs there."""

import os
import pathlib
import stat
import typing

from gpu_agent.gpu.vendors.nvidia import xid
from machine import exhaustion as scarcity

_KMSG: typing.Final = "dev/kmsg"
_DEVICE: typing.Final = (1, 11)  # Linux Documentation/admin-guide/devices.txt
_RECORD_BYTES: typing.Final = 8192
# Of one turn: who floods the log keeps nobody from the rest of his work.
_MOST_RECORDS: typing.Final = 1000


class NoLogError(Exception):
    """This machine has no kernel's log to follow, as system containers have none; why."""


class Follower:
    """Reads what comes from now on; never waits for it.

    Attributes:
        can_be_waited_for: whether the descriptor can be read only where there is something new.
            Where a file stands in for the log, somebody has to look now and then.

    Raises:
        NoLogError: there is none.
        OSError: the machine is out of something, so that nothing can be told.
    """

    def __init__(self, root: pathlib.Path = pathlib.Path("/")) -> None:
        self._reader, self._rest, self.lost = xid.Reader(), b"", 0
        try:
            self._descriptor = _opened(root / _KMSG)
        except OSError as error:
            if scarcity.is_told_by(error):
                raise
            raise NoLogError(f"/{_KMSG}: {error.strerror}") from error
        self.can_be_waited_for = stat.S_ISCHR(os.fstat(self._descriptor).st_mode)

    def fileno(self) -> int:
        """The log's descriptor."""
        return self._descriptor

    def read(self) -> list[xid.Message]:
        """The Xids that came since, in their order.

        `lost` then says how often the kernel overwrote records before they were read.

        Raises:
            OSError: the log can't be read any more.
        """
        found: list[xid.Message] = []
        for _ in range(_MOST_RECORDS):
            try:
                part = self._part()
            except BrokenPipeError:  # overwritten before it was read: the next is the oldest now
                self.lost += 1
                continue
            except BlockingIOError:
                break
            if not part:
                break
            *lines, self._rest = (self._rest + part).split(b"\n")
            for line in lines:
                record = xid.record(line.decode(errors="replace"))
                message = record and self._reader.take(record.microseconds, record.text)
                if message:
                    found.append(message)
            self._rest = self._rest[-_RECORD_BYTES:]
        return found

    def close(self) -> None:
        """Let go of the log."""
        os.close(self._descriptor)

    def _part(self) -> bytes:
        if not self.can_be_waited_for:
            at = os.lseek(self._descriptor, 0, os.SEEK_CUR)
            if os.fstat(self._descriptor).st_size < at:  # it was emptied
                os.lseek(self._descriptor, 0, os.SEEK_SET)
        return os.read(self._descriptor, _RECORD_BYTES)


def _opened(path: pathlib.Path) -> int:
    """The log at its end.

    Some containers have a terminal or a pipe there, which is not to be read.
    """
    found = path.stat()
    device = os.major(found.st_rdev), os.minor(found.st_rdev)
    if not stat.S_ISREG(found.st_mode) and not (stat.S_ISCHR(found.st_mode) and device == _DEVICE):
        raise NoLogError(f"/{_KMSG}: it is not the kernel's log")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        os.lseek(descriptor, 0, os.SEEK_END)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
