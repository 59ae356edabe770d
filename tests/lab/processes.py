# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Find the lab's own processes on the host by program and arguments, never by a stored number."""

import contextlib
import os
import pathlib
import signal
import time

PROC = pathlib.Path("/proc")


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not count, its parent may be slow to reap it."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def command_line(pid: int) -> list[str]:
    """The process's argv; empty for a process that is gone, or a kernel thread."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return raw.decode(errors="replace").rstrip("\0").split("\0") if raw else []


def children(pid: int) -> list[int]:
    """The process's children, oldest first."""
    try:
        return [
            int(p) for p in (PROC / str(pid) / "task" / str(pid) / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return []


def find(program: str, last_argument: str) -> list[int]:
    """Processes which run the script `program` with `last_argument` as their last argument."""
    found: list[int] = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            argv = command_line(int(entry.name))
            if (
                argv
                and argv[-1] == last_argument
                and program in argv
                and is_alive(int(entry.name))
            ):
                found.append(int(entry.name))
    return found


def kill(pid: int) -> None:
    """SIGKILL, where the process is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_gone(pid: int, timeout: float) -> bool:
    """Wait until the process has ended; False when `timeout` seconds were not enough."""
    deadline = time.monotonic() + timeout
    while is_alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.03)
    return True
