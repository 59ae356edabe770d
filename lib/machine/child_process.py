# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run programs beside this one, exchange lines with them, and never wait for them.

A process in a driver call that hangs does not end, whatever signal it gets (state D). It is killed
and left alone. It is gone when the driver returns, and reaped then.
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

# A line has a few hundred bytes; more than this without an end is not a line.
_MOST: typing.Final = 1 << 16
# Linux include/uapi/linux/prctl.h
_PR_SET_PDEATHSIG: typing.Final = 1
_PR_SET_NAME: typing.Final = 15


class EndedError(Exception):
    """The program has ended, or does not exchange lines; the text says which."""


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
        """Its process id."""
        return self._process.pid

    def fileno(self) -> int:
        """A descriptor that is readable when the program has written something or ended."""
        return self._out.fileno()

    def say(self, line: bytes) -> None:
        """Send it one line, given without its end.

        Raises:
            EndedError: it has ended, or has not read earlier lines.
        """
        try:
            whole = os.write(self._in.fileno(), line + b"\n") == len(line) + 1
        except OSError as error:
            raise EndedError(error.strerror) from error
        if not whole:
            raise EndedError("it does not read its input")

    def lines(self) -> list[bytes]:
        """Return the complete lines that it has written since the last call.

        Raises:
            EndedError: it has ended, and all its lines were returned.
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
            raise EndedError("it writes a line without an end")
        return lines

    def waited(self) -> float:
        """Return for how many seconds it wanted a processor and got none."""
        try:
            told = pathlib.Path(f"/proc/{self.pid}/schedstat").read_text()
        except OSError:
            return 0.0
        # Nanoseconds on a processor, then waiting for one (Linux Documentation, sched-stats).
        return int(told.split()[1]) / 1e9

    def kill(self) -> None:
        """Kill it without waiting for its end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        for stream in (self._in, self._out):
            with contextlib.suppress(OSError):
                stream.close()
        _killed.append(self)
        left()

    def is_gone(self) -> bool:
        """Return whether it has ended and left nothing behind."""
        return self._process.poll() is not None


class Server:
    """A child process of this program that serves a connection as its stdin.

    It inherits only stdout and stderr. It starts within milliseconds, and ends with this process
    at the latest.

    Args:
        name: its name, of 15 characters at most.
        serve: is called in the child; an error that it raises ends the child with status 1.
        connection: the descriptor; the child has its own copy.
        without: prefixes of variables that the child must not have.

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
        """A descriptor that is readable when the child has ended."""
        return self._held

    def reap(self) -> int:
        """Return its exit status after its end; for a signal the negative number."""
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
        # Cleanup of what the parent has begun is left to the parent.
        os._exit(status)


_killed: typing.Final[list[Child]] = []


def left() -> int:
    """Return how many killed processes have not ended yet, and reap the others."""
    _killed[:] = [child for child in _killed if not child.is_gone()]
    return len(_killed)


def end_with(parent: int, name: str) -> None:
    """Let the kernel kill this process when its parent ends.

    Args:
        parent: the parent's process id; it may have ended already.
        name: the new name of this process, of 15 characters at most.

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
    """Write one line, given without its end, to the parent that has started this as a Child.

    Raises:
        OSError: the parent no longer reads.
    """
    left = line + b"\n"
    while left:
        left = left[os.write(1, left) :]
