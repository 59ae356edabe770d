# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Calls a function in a child of this process, and gives up on it after a while.

A call into a driver that hangs can't be broken off, not even by SIGKILL: whoever makes it is lost.
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
_MOST: typing.Final = 1 << 16  # that is read at a time, in bytes
# How long, in seconds, one that was killed may take to be gone.
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
    """What a function returns that changes nothing in this process.

    One that hangs is killed, and left alone where it does not die of that; as long as it is there,
    no other one is started.

    Args:
        work: what it returns, or raises of `raises`, must go through a pipe (pickle).
        seconds: how long it may take.
        note: a file that is to tell the next call of one that hangs. It stays as long as that one
            does, and its folder is made.
        raises: what it may raise.

    Raises:
        HungError: it does not return.
        ChildProcessError: it ended without an answer.
        OSError: no child can be started, or what `work` raises.
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
    # It was written by this program's own code a moment ago.
    fine, answer = pickle.loads(said or _NONE)  # noqa: S301
    if fine:
        return answer
    raise answer


def _start(
    work: collections.abc.Callable[[], object], raises: tuple[type[Exception], ...]
) -> tuple[int, int]:
    """The child that does the work, and the pipe out of which its answer comes."""
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
    """Do the work and write what came of it; this never returns into the caller's code."""
    try:
        _let_go(pipe)
        try:
            answer = True, work()
        except raises as error:
            answer = False, error
        with os.fdopen(pipe, "wb") as file:
            pickle.dump(answer, file)
    finally:
        os._exit(0)  # no clean-up that is the parent's: its files are flushed by it alone


def _let_go(kept: int) -> None:
    """Close all but one descriptor: who waits for the end of a pipe or lock waits for no child."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        if stream != kept:
            os.dup2(nowhere, stream)
    others = [int(entry.name) for entry in _FDS.iterdir()]
    for number in others:
        if number > 2 and number != kept:
            os.closerange(number, number + 1)


def _read(pipe: int, end: float) -> bytes | None:
    """All that comes out of a pipe until it is closed; None where it is not by then."""
    found = b""
    while select.select([pipe], [], [], max(0, end - time.monotonic()))[0]:
        more = os.read(pipe, _MOST)
        if not more:
            return found
        found += more
    return None


def _end(child: int, note: pathlib.Path) -> None:
    """Have a child gone; note one that does not go."""
    os.kill(child, signal.SIGKILL)
    if process.wait(child, _GONE) is None:
        files.ensure_directory(note.parent)
        files.ensure_file(note, f"{child} {_started(child)}\n")


def _is_there(note: pathlib.Path) -> bool:
    """Whether the process that was noted is still there."""
    pid, _, started = (files.read_text(note) or "").strip().partition(" ")
    return pid.isdecimal() and bool(started) and _started(int(pid)) == started


def _started(pid: int) -> str:
    """When a process began, in clock ticks since boot; empty if it is gone or dead (proc(5))."""
    try:
        stat = pathlib.Path("/proc", str(pid), "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "XZ" else fields[19]
