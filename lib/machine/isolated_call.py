# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Call a function in a child process, and give up on it after a while.

A call into a driver that hangs can't be interrupted, not even by SIGKILL: the calling process is
lost.
"""

import collections.abc
import os
import pathlib
import pickle
import select
import signal
import time
import typing

from machine import files, process

_Answer = typing.TypeVar("_Answer")

_FDS: typing.Final = pathlib.Path("/proc/self/fd")
_MOST: typing.Final = 1 << 16  # bytes that are read at a time
# How long a killed child may take to end, in seconds.
_GONE: typing.Final = 0.5


_NONE: typing.Final = pickle.dumps((False, ChildProcessError("it ended without an answer")))


class HungError(Exception):
    """The call did not return in time, or an earlier one still hangs."""


def call(
    work: collections.abc.Callable[[], _Answer],
    seconds: float,
    *,
    note: pathlib.Path,
    raises: tuple[type[Exception], ...] = (OSError,),
) -> _Answer:
    """Return what a function returns that changes nothing in this process.

    A child that hangs is killed, and left alone if it does not end. As long as it exists, no other
    child is started.

    Args:
        work: its result, and errors in `raises`, must be picklable.
        seconds: its time limit.
        note: a file that tells the next call of a child that hangs. It stays as long as that child
            exists; its folder is made.
        raises: the errors that it may raise.

    Raises:
        HungError: it does not return.
        ChildProcessError: the child ended without an answer.
        OSError: no child can be started, or `work` raises it.
    """
    if _is_there(note):
        raise HungError("an earlier call still hangs")
    files.ensure_absent(note)
    child, reader = _start(work, raises)
    try:
        said = _read(reader, time.monotonic() + seconds)
    finally:
        os.close(reader)
        _end(child, note)
    if said is None:
        raise HungError(f"no answer within {seconds:g} s")
    # This program's own code has just written it.
    fine, answer = pickle.loads(said or _NONE)  # noqa: S301
    if fine:
        return answer
    raise answer


def _start(
    work: collections.abc.Callable[[], object], raises: tuple[type[Exception], ...]
) -> tuple[int, int]:
    """Start the child that does the work, and return it with the pipe for its answer."""
    reader, writer = os.pipe()
    try:
        child = os.fork()
        if not child:
            _answer(work, writer, raises)
    finally:
        os.close(writer)
    return child, reader


def _answer(
    work: collections.abc.Callable[[], object], pipe: int, raises: tuple[type[Exception], ...]
) -> typing.NoReturn:
    """Do the work and write the result; never return into the caller's code."""
    try:
        _let_go(pipe)
        try:
            answer = True, work()
        except raises as error:
            answer = False, error
        with os.fdopen(pipe, "wb") as file:
            pickle.dump(answer, file)
    finally:
        os._exit(0)  # no cleanup: the parent flushes its own files


def _let_go(kept: int) -> None:
    """Close all descriptors but one, so that no reader of a pipe or lock waits for the child."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        if stream != kept:
            os.dup2(nowhere, stream)
    others = [int(entry.name) for entry in _FDS.iterdir()]
    for number in others:
        if number > 2 and number != kept:
            os.closerange(number, number + 1)


def _read(pipe: int, end: float) -> bytes | None:
    """Return all output of a pipe until its end; None if the time is over before."""
    found = b""
    while select.select([pipe], [], [], max(0, end - time.monotonic()))[0]:
        more = os.read(pipe, _MOST)
        if not more:
            return found
        found += more
    return None


def _end(child: int, note: pathlib.Path) -> None:
    """Kill and reap a child; note one that does not end."""
    os.kill(child, signal.SIGKILL)
    if process.wait(child, _GONE) is None:
        files.ensure_directory(note.parent)
        files.ensure_file(note, f"{child} {_started(child)}\n")


def _is_there(note: pathlib.Path) -> bool:
    """Return whether the noted process still exists."""
    pid, _, started = (files.read_text(note) or "").strip().partition(" ")
    return pid.isdecimal() and bool(started) and _started(int(pid)) == started


def _started(pid: int) -> str:
    """Return when a process began, in clock ticks since boot; empty if it ended (proc(5))."""
    try:
        stat = pathlib.Path("/proc", str(pid), "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "XZ" else fields[19]
