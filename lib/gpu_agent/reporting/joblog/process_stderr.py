# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Write lines to the stderr that another process was given, never to one that it made itself.

A process can redirect its stderr to a file, a device, a socket, or its own pipe or terminal. So a
line is written only if a second, trusted process holds the other end: the one that passes the
output on. This module never opens the other end, reads, follows a path of the process or blocks.
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
# proc(5): the index of a terminal's other end, and the flags of a descriptor.
_INDEX: typing.Final = re.compile(r"^tty-index:\s*([0-9]+)$", re.MULTILINE)
_FLAGS: typing.Final = re.compile(r"^flags:\s*([0-7]+)$", re.MULTILINE)
# statx(2): linux/fcntl.h, linux/stat.h; the places of mode, inode and numbers in its result.
_AT_EMPTY_PATH: typing.Final = 0x1000
_AT_STATX_DONT_SYNC: typing.Final = 0x4000
_STATX_TYPE_AND_INO: typing.Final = 0x101
_STATX: typing.Final = struct.Struct("=28xHxxQ88x4I")


class _Found(typing.NamedTuple):
    """The file behind a descriptor."""

    mode: int
    inode: int
    numbers: tuple[int, int]
    """Major and minor number of a device."""
    device: int
    """The number of its file system."""


class NotTheirsError(Exception):
    """The process's stderr is not the one it was given, or is closed; the text says which."""


def write(
    pid: int,
    reader: int,
    text: bytes,
    is_meant: collections.abc.Callable[[], bool],
    *,
    mixed: bool = False,
) -> int:
    """Write to a process's stderr as much as fits now.

    Args:
        pid: the process.
        reader: the process that passes its output on and holds the other end.
        text: whole lines. A pipe takes up to PIPE_BUF bytes in one piece or not at all; a terminal
            that is nearly full may take a part.
        is_meant: whether `pid` is still the intended process; called once its stderr is held.
        mixed: whether its stdout and stderr may be one pipe.

    Returns:
        The number of bytes written; 0: nothing fits now.

    Raises:
        NotTheirsError: there is no stderr to write to.
        OSError: the stderr can't be inspected.
    """
    try:
        # O_PATH opens no device and does not block on a FIFO.
        held = os.open(f"/proc/{pid}/fd/{_STDERR}", os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise NotTheirsError("it is closed") from error
    try:
        if not is_meant():
            raise NotTheirsError("the process has ended")
        found = _look(held)
        if stat.S_ISFIFO(found.mode):
            _check_pipe(found, pid, reader, mixed=mixed)
        elif stat.S_ISCHR(found.mode) and found.numbers[0] == _TERMINAL_MAJOR:
            _check_terminal(found, reader)
        else:
            raise NotTheirsError("it is neither a pipe nor a terminal")
        return _write(held, text)
    finally:
        os.close(held)


def _look(held: int) -> _Found:
    """Inspect the file behind a descriptor without asking its file system.

    A file system of the job (FUSE) may never answer, and fstat(2) would ask it.

    Raises:
        NotTheirsError: the kernel does not know the file.
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
        # This opens the inspected file itself: the link refers to the held file, not to a name.
        descriptor = os.open(f"/proc/self/fd/{held}", flags)
    except OSError as error:  # ENXIO, EIO: the other end is gone; EBUSY: exclusive
        raise NotTheirsError(f"it can't be opened: {error.strerror}") from error
    try:
        # Python ignores SIGPIPE.
        return os.write(descriptor, text)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise NotTheirsError(f"it can't be written to: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _check_pipe(found: _Found, pid: int, reader: int, *, mixed: bool) -> None:
    name = f"pipe:[{found.inode}]"
    # Otherwise it is a FIFO with a name, which some process created.
    if found.device != _pipes() or not any(
        target == name and _is_reading(reader, number) for number, target in _open_in(reader)
    ):
        raise NotTheirsError("it is a pipe of the job's own")
    # The process was given two pipes; a program may parse what comes from stdout.
    if not mixed and any(
        number == str(_STDOUT) and target == name for number, target in _open_in(pid)
    ):
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
    """The number of the file system of all pipes without a name."""
    ends = os.pipe()
    try:
        return os.fstat(ends[0]).st_dev
    finally:
        for end in ends:
            os.close(end)


def _open_in(pid: int) -> collections.abc.Iterator[tuple[str, str]]:
    """A process's descriptors, each with the target of its link; none if it is gone."""
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
    # A descriptor with O_PATH, such as this program's, is not an end of the pipe.
    return bool(match) and int(match[1], 8) & (os.O_ACCMODE | os.O_PATH) == os.O_RDONLY


def _device(pid: int, number: str) -> int:
    """The number of the file system of a trusted process's open file; 0 if it is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/fd/{number}").stat().st_dev
    except (FileNotFoundError, ProcessLookupError):
        return 0
