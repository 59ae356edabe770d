# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run programs: a list, an absolute path, a time limit, a clean environment."""

import collections.abc
import contextlib
import ctypes
import dataclasses
import logging
import os
import pathlib
import select
import shlex
import signal
import subprocess
import tempfile
import time
import typing

from machine import exhaustion as scarcity

_PATH: typing.Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LONGEST_LINE: typing.Final = 400  # in characters, of each line of an error
_MOST_SAID: typing.Final = 1 << 16  # bytes kept of the output of a program beside this one
# In seconds: how often a program is checked whose pipes another process holds open, how long those
# pipes are read after its end, and how long the end of a killed program is awaited.
_LOOK: typing.Final = 0.5
_TOO_MUCH: typing.Final = 64 << 20  # bytes that a program may write
_NOWHERE: typing.Final = pathlib.Path(os.devnull)
_PROC_TASKS: typing.Final = pathlib.Path("/proc/self/task")
_PR_SET_CHILD_SUBREAPER: typing.Final = 36  # Linux include/uapi/linux/prctl.h

# The names that programs know, and Juju's in a hook.
_PROXIES: typing.Final = {
    "http_proxy": "JUJU_CHARM_HTTP_PROXY",
    "https_proxy": "JUJU_CHARM_HTTPS_PROXY",
    "no_proxy": "JUJU_CHARM_NO_PROXY",
}

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Completed:
    """A program that has ended, and its output."""

    returncode: int
    stdout: str
    stderr: str


class CommandError(Exception):
    """A program failed. The text is one line: the command and its last output.

    Attributes:
        returncode: its exit status, negative for a signal; None if it ran out of time.
        stderr: its error output, or why it can't be started.
        starved: whether the machine was out of time, memory or another resource. SIGKILL counts,
            which the kernel sends when memory runs out.
    """

    def __init__(
        self, argv: collections.abc.Sequence[str], returncode: int | None, stderr: str
    ) -> None:
        lines = [line.strip()[:_LONGEST_LINE] for line in stderr.splitlines() if line.strip()]
        # It may be another machine's text, and a terminal shows it.
        said = ["".join(c if c.isprintable() else "?" for c in line) for line in lines[-3:]]
        how = "ran out of time" if returncode is None else f"failed with {returncode}"
        super().__init__(f"{shlex.join(argv)} {how}" + (f": {' / '.join(said)}" if said else ""))
        self.returncode = returncode
        self.stderr = stderr
        self.starved = returncode in (None, -signal.SIGKILL) or scarcity.is_told_by(stderr)


def proxies() -> dict[str, str]:
    """Return the Juju model's proxies by the names that programs know, such as `http_proxy`."""
    return {name: os.environ[juju] for name, juju in _PROXIES.items() if os.environ.get(juju)}


def set_proxies(found: collections.abc.Mapping[str, str]) -> None:
    """Have these proxies, as `proxies` returned them to a hook, in a program that outlives it."""
    os.environ.update({_PROXIES[name]: url for name, url in found.items()})


def run(
    argv: collections.abc.Sequence[str],
    *,
    timeout: float,
    stdin: str | None = None,
    env: collections.abc.Mapping[str, str] | None = None,
    check: bool = True,
    told: bool = True,
) -> Completed:
    """Run a program to its end.

    Processes that it leaves behind, such as a daemon, are not awaited and can no longer write to
    it. Of the charm's environment it gets only the proxies: PYTHONPATH or LD_LIBRARY_PATH would
    break the machine's programs.

    Args:
        argv: the program's absolute path and its arguments. They are logged and visible to every
            user of the machine: pass a secret through stdin or a file.
        timeout: in seconds; then the program and its children are killed, and the call returns
            whether or not they end.
        stdin: its standard input; else /dev/null.
        env: variables to add.
        check: whether an exit status other than 0 is an error.
        told: whether the command is logged. Each log line is a process of Juju's, so that hooks
            do not log commands that only look.

    Raises:
        CommandError: it failed, ran out of time, or can't be started.
    """
    pipe = subprocess.PIPE
    streams = subprocess.DEVNULL if stdin is None else pipe, pipe, pipe
    if told:
        _log.debug("run %s", shlex.join(argv))
    child = _start(argv, streams, env or {})
    stdout, stderr = _outcome(argv, child, stdin, timeout)
    if check and child.returncode:
        raise CommandError(argv, child.returncode, stderr or stdout)
    return Completed(child.returncode, stdout, stderr)


def run_detaching(
    argv: collections.abc.Sequence[str],
    *,
    timeout: float,
    env: collections.abc.Mapping[str, str] | None = None,
    stdout: pathlib.Path = _NOWHERE,
    stderr: pathlib.Path = _NOWHERE,
) -> int:
    """Run a program that leaves processes behind, as a container's runtime does.

    They keep its stdin, stdout and stderr, so that a pipe would not end with the program.

    Args:
        argv: the program's absolute path and its arguments.
        timeout: in seconds; then the program is killed.
        env: variables to add.
        stdout: file for their standard output, made or emptied.
        stderr: the same for their standard error.

    Returns:
        Its exit status, negative for a signal.

    Raises:
        CommandError: it ran out of time, or can't be started.
        OSError: a file can't be made.
    """
    with contextlib.ExitStack() as stack:
        out, err = (stack.enter_context(path.open("wb")).fileno() for path in (stdout, stderr))
        _log.debug("run %s", shlex.join(argv))
        child = _start(argv, (subprocess.DEVNULL, out, err), env or {})
    _outcome(argv, child, None, timeout)
    return child.returncode


def run_on_files(
    argv: collections.abc.Sequence[str],
    *,
    timeout: float,
    env: collections.abc.Mapping[str, str] | None = None,
    stdin: pathlib.Path = _NOWHERE,
    stdout: pathlib.Path = _NOWHERE,
) -> None:
    """Run a program to its end that reads one file and writes another, of any size.

    Args:
        argv: the program's absolute path and its arguments.
        timeout: in seconds; then the program and its children are killed.
        env: variables to add.
        stdin: its standard input.
        stdout: file for its standard output; an existing one keeps its mode.

    Raises:
        CommandError: it failed, ran out of time, or can't be started.
        OSError: a file can't be opened.
    """
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(stdin.open("rb")).fileno()
        target = stack.enter_context(stdout.open("wb")).fileno()
        said = stack.enter_context(tempfile.TemporaryFile())
        _log.debug("run %s", shlex.join(argv))
        child = _start(argv, (source, target, said.fileno()), env or {})
        _outcome(argv, child, None, timeout, said)
        if child.returncode:
            raise CommandError(argv, child.returncode, _end_of(said))


class Child:
    """A program that runs beside this one; see beside."""

    def __init__(
        self, child: subprocess.Popen[str], stdout: typing.IO[bytes], stderr: typing.IO[bytes]
    ) -> None:
        self._child, self._stdout, self._stderr = child, stdout, stderr

    def completed(self) -> Completed | None:
        """Return its result; None as long as it runs."""
        code = self._child.poll()
        return None if code is None else Completed(code, *map(_end_of, self._said()))

    def last_line(self) -> str:
        """Return the last complete line of its stdout; empty before the first."""
        whole, _, _ = _end_of(self._stdout).rpartition("\n")
        return whole.rpartition("\n")[2]

    def terminate(self) -> None:
        """Ask it to end."""
        self._child.terminate()

    def stop(self, patience: float) -> Completed:
        """Wait for its end; after so many seconds kill it and its children."""
        try:
            code = self._child.wait(patience)
        except subprocess.TimeoutExpired:
            code = _killed(self._child)
        return Completed(code, *map(_end_of, self._said()))

    def _said(self) -> tuple[typing.IO[bytes], typing.IO[bytes]]:
        return self._stdout, self._stderr


@contextlib.contextmanager
def beside(
    argv: collections.abc.Sequence[str],
    *,
    env: collections.abc.Mapping[str, str] | None = None,
) -> collections.abc.Generator[Child]:
    """Run a program as long as this context lasts, then kill it and its children.

    Args:
        argv: the program's absolute path and its arguments.
        env: variables to add; otherwise its environment is as for `run`.

    Raises:
        CommandError: it can't be started.
    """
    # Files, since a pipe would not be read meanwhile.
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        streams = subprocess.DEVNULL, stdout.fileno(), stderr.fileno()
        child = _start(argv, streams, env or {})
        try:
            yield Child(child, stdout, stderr)
        finally:
            _killed(child)


def adopt_orphans() -> None:
    """Become the parent of processes that programs started here leave behind: see wait (prctl(2)).

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def wait(pid: int, timeout: float) -> int | None:
    """Wait for the end of an adopted process.

    Returns:
        Its exit status, negative for a signal; None if it still runs after `timeout` seconds.

    Raises:
        ProcessLookupError, ChildProcessError: it does not exist, or has another parent.
    """
    descriptor = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([descriptor], [], [], timeout)
    finally:
        os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if ended else None


def reap_orphans(init: int) -> PermissionError | None:
    """Reap adopted processes that have ended, in the PID namespace with this first process.

    The first process can't end before they are reaped (pid_namespaces(7)). It is not reaped, and
    neither are processes of other namespaces, for which another thread may be waiting.

    Returns:
        The error for a process whose namespace the kernel does not show; its file name has the
        process's number. None if there is no such process. To the root of a system container the
        kernel does not show a process whose program root can't read. On Linux 6.18.44 the same was
        seen for an ended process that could not be dumped, such as `runc init`
        (kernel/ptrace.c __ptrace_may_access).

    Raises:
        OSError: any other error.
    """
    try:
        namespace = _pid_namespace(init)
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError as error:
        return error
    untold = None
    for pid in _children() - {init}:
        try:
            if _pid_namespace(pid) == namespace:
                os.waitpid(pid, os.WNOHANG)
        except (FileNotFoundError, ProcessLookupError, ChildProcessError):
            continue
        except PermissionError as error:
            untold = error
    return untold


def _pid_namespace(pid: int) -> pathlib.Path:
    """Return a process's namespace, also after its end until it is reaped (proc(5))."""
    return pathlib.Path("/proc", str(pid), "ns/pid").readlink()


def _children() -> set[int]:
    found = set[int]()
    for children in _PROC_TASKS.glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread has ended
            found.update(map(int, children.read_text().split()))
    return found


def _start(
    argv: collections.abc.Sequence[str],
    streams: tuple[int, int, int],
    env: collections.abc.Mapping[str, str],
) -> subprocess.Popen[str]:
    if not pathlib.PurePath(argv[0]).is_absolute():
        raise ValueError(f"{argv[0]} is not an absolute path")
    stdin, stdout, stderr = streams
    others = _children()
    try:
        return subprocess.Popen(
            list(argv),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={"PATH": _PATH, "LANG": "C.UTF-8", "HOME": "/root", **proxies(), **env},
            cwd="/",
            start_new_session=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise CommandError(argv, 127, f"can't be started: {error.strerror}") from error
    except BaseException:
        # For example Ctrl-C while the child starts: no one else knows its number to end it.
        for pid in _children() - others:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        raise


def _end_of(file: typing.IO[bytes]) -> str:
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), _MOST_SAID, max(0, size - _MOST_SAID)).decode(errors="replace")


def _outcome(
    argv: collections.abc.Sequence[str],
    child: subprocess.Popen[str],
    stdin: str | None,
    timeout: float,
    complaints: typing.IO[bytes] | None = None,
) -> tuple[str, str]:
    """Return a program's output at its end; kill it if it does not end in time.

    Args:
        argv: the program's arguments, for errors.
        child: the program.
        stdin: its standard input.
        timeout: in seconds.
        complaints: the file with its stderr, if that is not a pipe.

    Raises:
        CommandError: it ran out of time, or writes far too much.
    """
    try:
        return _said(child, stdin, timeout, complaints)
    except BaseException as error:
        # Including its children. They may have ended just now.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        stderr = ""
        try:
            _, stderr = _said(child, None, _LOOK)
        except subprocess.TimeoutExpired as deaf:  # in an uninterruptible call of the kernel
            stderr = _text(deaf.stderr)
        except _TooMuchError:
            pass
        if isinstance(error, subprocess.TimeoutExpired):
            said = f"{stderr[-_MOST_SAID:]}\nno end within {timeout:g} s"
            raise CommandError(argv, None, said) from error
        if isinstance(error, _TooMuchError):
            raise CommandError(argv, -signal.SIGTERM, str(error)) from error
        raise
    finally:
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()


class _TooMuchError(Exception):
    """A program writes more than is read."""


def _said(
    child: subprocess.Popen[str],
    stdin: str | None,
    timeout: float,
    complaints: typing.IO[bytes] | None = None,
) -> tuple[str, str]:
    """Return a program's output until its end, and a moment longer if others hold its pipes.

    Raises:
        subprocess.TimeoutExpired: it has not ended; with all that it has written.
        _TooMuchError: it has written more than _TOO_MUCH, if the output is kept.
    """
    end, ended = time.monotonic() + timeout, False
    while True:
        try:
            stdout, stderr = child.communicate(stdin, max(0.0, min(_LOOK, end - time.monotonic())))
        except subprocess.TimeoutExpired as error:
            stdin = None
            size = len(error.stdout or b"") + len(error.stderr or b"")
            size += os.fstat(complaints.fileno()).st_size if complaints else 0
            if size > _TOO_MUCH:
                raise _TooMuchError(f"it writes more than {_TOO_MUCH >> 20} MiB") from error
            if ended:
                return _text(error.stdout), _text(error.stderr)
            ended = child.poll() is not None
            if ended:
                end = time.monotonic() + _LOOK
            elif time.monotonic() >= end:
                raise
        else:
            return stdout or "", stderr or ""


def _text(written: bytes | str | None) -> str:
    return written.decode(errors="replace") if isinstance(written, bytes) else written or ""


def _killed(child: subprocess.Popen[str]) -> int:
    """Kill a program and its children; return its exit status, or -SIGKILL if it has not ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    try:
        return child.wait(_LOOK)
    except subprocess.TimeoutExpired:  # in an uninterruptible call of the kernel
        return -signal.SIGKILL
