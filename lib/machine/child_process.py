# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Programs that run beside this one, speak with it in lines, and are never waited for.

A process in a call into a driver that hangs does not end, whatever it is sent (state D). Such a
one is killed and left alone: it is gone when the driver lets go of it, and reaped then.
"""

import collections.abc
import contextlib
import ctypes
import os
import pathlib
import signal
import subprocess
import traceback
import typing

# A line is a few hundred bytes; more than this without an end is none.
_MOST: typing.Final = 1 << 16
# Linux include/uapi/linux/prctl.h
_PR_SET_PDEATHSIG: typing.Final = 1
_PR_SET_NAME: typing.Final = 15


class EndedError(Exception):
    """The program has ended, or does not speak in lines; the text says which."""


class Child:
    """A program beside this one. Its stderr is this one's.

    Raises:
        OSError: it can't be started.
    """

    def __init__(
        self, argv: collections.abc.Sequence[str], env: collections.abc.Mapping[str, str]
    ) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            list(argv), stdin=pipe, stdout=pipe, env=dict(env), cwd="/", start_new_session=True
        )
        self._in = typing.cast("typing.IO[bytes]", self._process.stdin)
        self._out = typing.cast("typing.IO[bytes]", self._process.stdout)
        self._rest = b""
        for stream in (self._in, self._out):
            os.set_blocking(stream.fileno(), False)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def fileno(self) -> int:
        """The descriptor that can be read when it has said something, or has ended."""
        return self._out.fileno()

    def say(self, line: bytes) -> None:
        """Tell it one line, without its end.

        Raises:
            EndedError: it has ended, or has not read what it was told before.
        """
        try:
            whole = os.write(self._in.fileno(), line + b"\n") == len(line) + 1
        except OSError as error:
            raise EndedError(error.strerror) from error
        if not whole:
            raise EndedError("it does not read what it is told")

    def lines(self) -> list[bytes]:
        """What it has said since, in whole lines; none where it has said nothing.

        Raises:
            EndedError: it has ended and nothing is left of what it has said.
        """
        ended = False
        while len(self._rest) <= _MOST:
            try:
                part = os.read(self._out.fileno(), _MOST)
            except BlockingIOError:
                break
            if not part:
                ended = True
                break
            self._rest += part
        *lines, self._rest = self._rest.split(b"\n")
        if not lines and ended:
            code = self._process.poll()
            raise EndedError("it has ended" if code is None else f"it ended with {code}")
        if len(self._rest) > _MOST:
            raise EndedError("it speaks without an end")
        return lines

    def waited(self) -> float:
        """For how many seconds of its life it wanted a processor and got none."""
        try:
            told = pathlib.Path(f"/proc/{self.pid}/schedstat").read_text()
        except OSError:
            return 0.0
        # Nanoseconds on a processor, then waiting for one (Linux Documentation, sched-stats).
        return int(told.split()[1]) / 1e9

    def kill(self) -> None:
        """Kill it, and let go of it without waiting."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        for stream in (self._in, self._out):
            with contextlib.suppress(OSError):
                stream.close()
        _killed.append(self)
        left()

    def is_gone(self) -> bool:
        """Whether it has ended; then nothing is left of it."""
        return self._process.poll() is not None


class Server:
    """A process of this program's own beside it, whose stdin is somebody's connection.

    Of what this one has open it has stdout and stderr alone. It begins within milliseconds, and
    ends with this one at the latest.

    Args:
        name: what it is called, of 15 characters at most.
        serve: is called there; an error that it raises ends the process with status 1.
        connection: the descriptor; the process has one of its own.
        without: how the names of variables begin that the process is not to have.

    Raises:
        OSError: it can't be started.
    """

    def __init__(
        self,
        name: str,
        serve: collections.abc.Callable[[], None],
        connection: int,
        without: tuple[str, ...],
    ) -> None:
        parent = os.getpid()
        self._pid = os.fork()
        if not self._pid:

            def begin() -> None:
                end_with(parent, name)
                serve()

            _serve(begin, connection, without)
        try:
            self._held = os.pidfd_open(self._pid)
        except OSError:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            raise

    def fileno(self) -> int:
        """The descriptor that can be read when it has ended."""
        return self._held

    def reap(self) -> int:
        """Its exit status once it has ended; of a signal the number below zero."""
        os.close(self._held)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def _serve(
    serve: collections.abc.Callable[[], None], connection: int, without: tuple[str, ...]
) -> typing.NoReturn:
    status = 1
    try:
        os.setsid()
        os.dup2(connection, 0)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        for name in [name for name in os.environ if name.startswith(without)]:
            del os.environ[name]
        serve()
        status = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        # What the parent has begun is not for this process to end.
        os._exit(status)


_killed: typing.Final[list[Child]] = []


def left() -> int:
    """How many that were killed have not ended yet; of the others nothing is left after this."""
    _killed[:] = [child for child in _killed if not child.is_gone()]
    return len(_killed)


def end_with(parent: int, name: str) -> None:
    """Have this process killed as soon as the one that has started it is gone.

    Args:
        parent: that one's number; it may be gone by now.
        name: what it is called from now on, of 15 characters at most.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for what in (
        (_PR_SET_NAME, ctypes.c_char_p(name.encode()), 0, 0, 0),
        (_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
    ):
        if libc.prctl(*what):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def tell_parent(line: bytes) -> None:
    """Say one line, without its end, to the one that has started this process as a Child.

    Raises:
        OSError: it does not listen any more.
    """
    left = line + b"\n"
    while left:
        left = left[os.write(1, left) :]
