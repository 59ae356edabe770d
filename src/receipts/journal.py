# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the wrapper's log (gpuci.journal) tells of a lease: how long it waited, who ended it."""

import json
import os
import pathlib
import typing

from receipts.form import UnsoundError, cut, is_number, is_text, table

PATH: typing.Final = pathlib.Path("/var/log/gpu-ci/oci.log")

KILLS: typing.Final = ("gpu-release", "gpu-unused")
"""Kinds of lines by which this worker or its operator says that it ended a container."""

_FIRST: typing.Final = 1 << 18  # bytes of what was there before, for the leases that are open
_AT_ONCE: typing.Final = 1 << 20
_MOST: typing.Final = 1024  # containers that are remembered


class Journal:
    """The log, read as it grows."""

    def __init__(self, path: pathlib.Path = PATH) -> None:
        self._path = path
        self._file: int | None = None
        self._rest = b""
        self._waited: dict[str, float] = {}
        self._killed: dict[str, str] = {}

    def follow(self) -> None:
        """Read what is new.

        Raises:
            OSError: it can't be read; a log that is not there yet is an empty one.
        """
        try:
            if self._file is None:
                self._open(_FIRST)
            self._read()
            if self._is_left():
                self._open(_AT_ONCE)
                self._read()
        except FileNotFoundError:
            return  # between the two steps of a rotation, or before the first decision

    def waited(self, container: str) -> float | None:
        """Seconds that a container waited for the GPUs that it got; None if that is not told."""
        return self._waited.get(container)

    def killed(self, container: str) -> str:
        """Why a container was ended by this worker or its operator; empty: it was not."""
        return self._killed.get(container, "")

    def _open(self, last: int) -> None:
        self.close()
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._file = os.open(self._path, flags)
        os.lseek(self._file, max(0, os.fstat(self._file).st_size - last), os.SEEK_SET)

    def close(self) -> None:
        """Read no more of it."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._rest = None, b""

    def _is_left(self) -> bool:
        """Whether this file is read to its end, and the log is another one by now, or was emptied.

        Raises:
            FileNotFoundError: there is no log now.
        """
        if self._file is None:
            return False
        own, here = os.fstat(self._file), os.lseek(self._file, 0, os.SEEK_CUR)
        if own.st_size != here:
            return own.st_size < here
        return not os.path.samestat(own, self._path.stat())

    def _read(self) -> None:
        if self._file is None:
            return
        *whole, self._rest = (self._rest + os.read(self._file, _AT_ONCE)).split(b"\n")
        self._rest = self._rest[-_AT_ONCE:]
        for line in whole:
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            entry = table(json.loads(line))
        except (UnsoundError, ValueError, RecursionError):
            return  # the first may have lost its head
        container, kind, waited = (entry.get(key) for key in ("container", "kind", "waited_ms"))
        if not is_text(container) or not is_text(kind):
            return
        if kind in KILLS:
            _remember(self._killed, str(container), f"{kind}: {cut(str(entry.get('reason', '')))}")
        elif kind in ("task", "privileged task") and entry.get("granted") and is_number(waited):
            _remember(self._waited, str(container), float(str(waited)) / 1000)


_Value = typing.TypeVar("_Value", str, float)


def _remember(found: dict[str, _Value], container: str, value: _Value) -> None:
    found.pop(container, None)
    found[container] = value
    if len(found) > _MOST:
        del found[next(iter(found))]
