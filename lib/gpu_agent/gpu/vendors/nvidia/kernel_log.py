# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Follow the kernel log from its end: the records of NVIDIA's driver on its GPUs."""

import collections.abc
import os
import pathlib
import stat
import typing

from gpu_agent.gpu.kernel.listener import Heard, NoSourceError
from gpu_agent.gpu.vendors.nvidia import xid
from gpu_agent.model.observations import Source
from machine import exhaustion as scarcity

_KMSG: typing.Final = "dev/kmsg"
_DEVICE: typing.Final = (1, 11)  # Linux Documentation/admin-guide/devices.txt
_RECORD_BYTES: typing.Final = 8192
# Records per turn: a flooded log must not block other work.
_MOST_RECORDS: typing.Final = 1000
_MOST_TEXT: typing.Final = 300


class XidListener:
    """Reads new records without blocking.

    Attributes:
        can_be_waited_for: whether the descriptor is readable only if a record is new. If a plain
            file replaces the log, it must be read at intervals.

    Args:
        root: the root of the machine's files.
        read: reads at most so many bytes of a descriptor; raises BrokenPipeError for overwritten
            records, as the kernel's log does.

    Raises:
        NoSourceError: there is no log.
        OSError: the machine lacks resources.
    """

    def __init__(
        self,
        root: pathlib.Path = pathlib.Path("/"),
        read: collections.abc.Callable[[int, int], bytes] = os.read,
    ) -> None:
        self._reader, self._rest, self.lost = xid.Reader(), b"", 0
        self._read = read
        try:
            self._descriptor = _opened(root / _KMSG)
        except OSError as error:
            if scarcity.is_told_by(error):
                raise
            raise _no_log(error.strerror) from error
        self.can_be_waited_for = stat.S_ISCHR(os.fstat(self._descriptor).st_mode)

    def fileno(self) -> int:
        """The log's descriptor."""
        return self._descriptor

    def read(self) -> list[Heard]:
        """Return the Xids since the last call, in their order.

        `lost` then says how often the kernel overwrote records before they were read.

        Raises:
            OSError: the log can no longer be read.
        """
        found: list[Heard] = []
        for _ in range(_MOST_RECORDS):
            try:
                part = self._part()
            except BrokenPipeError:  # overwritten before it was read: the next is now the oldest
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
                    text = message.text[:_MOST_TEXT]
                    address, code = message.pci_address, message.code
                    found.append(Heard(address, Source.KERNEL, xid=code, text=text))
            self._rest = self._rest[-_RECORD_BYTES:]
        return found

    def close(self) -> None:
        """Close the log."""
        os.close(self._descriptor)

    def _part(self) -> bytes:
        if not self.can_be_waited_for:
            at = os.lseek(self._descriptor, 0, os.SEEK_CUR)
            if os.fstat(self._descriptor).st_size < at:  # it was truncated
                os.lseek(self._descriptor, 0, os.SEEK_SET)
        return self._read(self._descriptor, _RECORD_BYTES)


def _no_log(why: object) -> NoSourceError:
    return NoSourceError(f"cannot read the kernel log: /{_KMSG}: {why}")


def _opened(path: pathlib.Path) -> int:
    """Open the log at its end.

    Some containers have a terminal or a pipe there, which must not be read.
    """
    found = path.stat()
    device = os.major(found.st_rdev), os.minor(found.st_rdev)
    if not stat.S_ISREG(found.st_mode) and not (stat.S_ISCHR(found.st_mode) and device == _DEVICE):
        raise _no_log("it is not the kernel's log")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        os.lseek(descriptor, 0, os.SEEK_END)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
