# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Writes lines to the stderr that another process was given, and to nothing that it made itself.

What a process has there it chooses: a file, a device, a socket, a pipe or terminal of its own. So
only the stderr is written to whose other end a second process has that is trusted: the one that
passes on what the first one says. Nothing here opens the other end, reads, follows a path of the
process's or waits for it.
"""

import collections.abc
import ctypes
import os
import pathlib
import re
import stat
import struct
import typing

# Linux Documentation/admin-guide/devices.txt: UNIX98_PTY_SLAVE_MAJOR.
_TERMINAL_MAJOR: typing.Final = 136
_STDOUT: typing.Final = 1
_STDERR: typing.Final = 2
# proc(5): of a terminal's other end, and how a descriptor was opened.
_INDEX: typing.Final = re.compile(r"^tty-index:\s*([0-9]+)$", re.MULTILINE)
_FLAGS: typing.Final = re.compile(r"^flags:\s*([0-7]+)$", re.MULTILINE)
# statx(2): linux/fcntl.h, linux/stat.h; where mode, inode and numbers are in what it tells.
_AT_EMPTY_PATH: typing.Final = 0x1000
_AT_STATX_DONT_SYNC: typing.Final = 0x4000
_STATX_TYPE_AND_INO: typing.Final = 0x101
_STATX: typing.Final = struct.Struct("=28xHxxQ88x4I")


class _Found(typing.NamedTuple):
    """What a descriptor leads to."""

    mode: int
    inode: int
    numbers: tuple[int, int]
    """Of a device: its own."""
    device: int
    """The number of the file system that it is in."""


class NotTheirsError(Exception):
    """That process's stderr is not what it was given, or it has none; the text says what it is."""


def write(pid: int, reader: int, text: bytes, is_meant: collections.abc.Callable[[], bool]) -> int:
    """Write to a process's stderr what fits in there now.

    Args:
        pid: the process.
        reader: the process that passes on what it says: a pipe's other end, or a terminal's.
        text: whole lines. At most PIPE_BUF bytes of them go into a pipe in one piece or not at
            all; a terminal that is nearly full may take a part.
        is_meant: whether `pid` still is the process that is meant; asked once its stderr was
            taken hold of.

    Returns:
        How many bytes were written; 0: nothing fits now.

    Raises:
        NotTheirsError: there is nothing to write to.
        OSError: that can't be told.
    """
    try:
        # Nothing is opened by this but a name for it: no device wakes, no FIFO waits.
        held = os.open(f"/proc/{pid}/fd/{_STDERR}", os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise NotTheirsError("it is closed") from error
    try:
        if not is_meant():
            raise NotTheirsError("the process has ended")
        found = _look(held)
        if stat.S_ISFIFO(found.mode):
            _check_pipe(found, pid, reader)
        elif stat.S_ISCHR(found.mode) and found.numbers[0] == _TERMINAL_MAJOR:
            _check_terminal(found, reader)
        else:
            raise NotTheirsError("it is neither a pipe nor a terminal")
        return _write(held, text)
    finally:
        os.close(held)


def _look(held: int) -> _Found:
    """What a descriptor leads to, as far as the kernel knows without asking a file system.

    One of the job's own (FUSE) may never answer; fstat(2) asks it.

    Raises:
        NotTheirsError: the kernel does not know.
    """
    libc, buffer = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(256)
    flags = _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC
    if libc.statx(held, b"", flags, _STATX_TYPE_AND_INO, buffer):
        raise NotTheirsError(f"it can't be looked at: {os.strerror(ctypes.get_errno())}")
    mode, inode, *numbers, major, minor = _STATX.unpack_from(buffer)
    return _Found(mode, inode, (numbers[0], numbers[1]), os.makedev(major, minor))


def _write(held: int, text: bytes) -> int:
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        # The very thing that was looked at: such a link leads to no name, but to what is held.
        descriptor = os.open(f"/proc/self/fd/{held}", flags)
    except OSError as error:  # ENXIO, EIO: its other end is gone; EBUSY: for the job alone
        raise NotTheirsError(f"it can't be opened: {error.strerror}") from error
    try:
        # SIGPIPE is ignored by Python itself.
        return os.write(descriptor, text)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise NotTheirsError(f"it can't be written to: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _check_pipe(found: _Found, pid: int, reader: int) -> None:
    name = f"pipe:[{found.inode}]"
    # Else it is a FIFO with a name, which somebody has made.
    if found.device != _pipes() or not any(
        target == name and _is_reading(reader, number) for number, target in _open_in(reader)
    ):
        raise NotTheirsError("it is a pipe of the job's own")
    # Two pipes were given; of those stdout's may be an answer that a program reads.
    if any(number == str(_STDOUT) and target == name for number, target in _open_in(pid)):
        raise NotTheirsError("it goes where its stdout goes")


def _check_terminal(found: _Found, reader: int) -> None:
    index = str(found.numbers[1])
    for number, target in _open_in(reader):
        if not target.endswith("ptmx"):
            continue
        match = _INDEX.search(_info(reader, number))
        if match and match[1] == index and _device(reader, number) == found.device:
            return
    raise NotTheirsError("it is a terminal of the job's own")


def _pipes() -> int:
    """The number of the file system that all pipes without a name are in."""
    ends = os.pipe()
    try:
        return os.fstat(ends[0]).st_dev
    finally:
        for end in ends:
            os.close(end)


def _open_in(pid: int) -> collections.abc.Iterator[tuple[str, str]]:
    """A process's descriptors, each with what it leads to in words; none if it is gone."""
    try:
        paths = list(pathlib.Path(f"/proc/{pid}/fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return
    for path in paths:
        try:
            yield path.name, str(path.readlink())
        except (FileNotFoundError, ProcessLookupError):
            continue


def _info(pid: int, number: str) -> str:
    try:
        return pathlib.Path(f"/proc/{pid}/fdinfo/{number}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _is_reading(pid: int, number: str) -> bool:
    match = _FLAGS.search(_info(pid, number))
    # One with O_PATH, such as this program's own, is no end of it.
    return bool(match) and int(match[1], 8) & (os.O_ACCMODE | os.O_PATH) == os.O_RDONLY


def _device(pid: int, number: str) -> int:
    """The number of the file system that a trusted process's open file is in; 0 if it is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/fd/{number}").stat().st_dev
    except (FileNotFoundError, ProcessLookupError):
        return 0
