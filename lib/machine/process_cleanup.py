# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""End and remove what programs leave behind: processes, mounts, control groups."""

import collections.abc
import contextlib
import errno
import os
import pathlib
import re
import signal
import typing

from machine import polling as waiting
from machine import process

_CGROUPS: typing.Final = pathlib.Path("/sys/fs/cgroup")
_PROC: typing.Final = pathlib.Path("/proc")
# TASK_COMM_LEN of Linux, without the NUL.
_COMM_LENGTH: typing.Final = 15
# Errors of reading in a control group that was removed meanwhile.
_GONE: typing.Final = (errno.ENOENT, errno.ENODEV)


def processes_running(
    folder: pathlib.Path, names: collections.abc.Collection[str], proc: pathlib.Path = _PROC
) -> list[int]:
    """Return the ids of processes that run one of these programs from a folder or below.

    A program that was deleted since its start is found too. A container's process is not, even if
    its program has such a name, since /proc shows a path inside the container. It is recognised by
    its own process ids (PID namespace), which no process inside can leave.

    Raises:
        OSError: a process that may be one can't be examined.
    """
    ours = (proc / "self/ns/pid").readlink()
    found: list[int] = []
    for entry in proc.iterdir():
        if not entry.name.isdecimal():
            continue
        # It ended, or is a thread of the kernel.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            try:
                program = (entry / "exe").readlink()
                is_ours = (entry / "ns/pid").readlink() == ours
            except PermissionError:
                # It has more rights than this process, and none of ours renames itself. The root
                # of a system container can't examine processes that have ended.
                cut = {os.fsencode(name)[:_COMM_LENGTH] for name in names}
                if _comm(entry) in cut and _is_alive_here(entry):
                    raise
                continue
            name = program.name.removesuffix(" (deleted)")
            if is_ours and name in names and program.is_relative_to(folder):
                found.append(int(entry.name))
    return found


def _is_alive_here(process: pathlib.Path) -> bool:
    """Return whether a process lives, and is in no PID namespace below that of its /proc."""
    status = (process / "status").read_text(errors="replace")
    # A process whose first thread has ended is in state Z too, but has other threads.
    has_ended = re.search(r"^State:\t[XZ](.*\n)*?Threads:\t[01]$", status, re.MULTILINE)
    return not (has_ended or re.search(r"^NSpid:\t[0-9]+\t", status, re.MULTILINE))


def _comm(process: pathlib.Path) -> bytes:
    return (process / "comm").read_bytes().removesuffix(b"\n")


def end_processes(pids: collections.abc.Collection[int], grace: float = 5.0) -> bool:
    """End processes: SIGTERM, after `grace` seconds SIGKILL. Return True if there were any."""
    for number, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        waiting.until(lambda: not any(map(_lives, pids)), wait, every=0.05)
    return bool(pids)


def unmount_below(folder: pathlib.Path) -> bool:
    """Unmount everything below a folder. Return True if there was anything.

    A mount at the folder itself was there before us, and stays.

    Raises:
        machine.process.CommandError: something can't be unmounted.
    """
    points = _mount_points(folder)
    for point in reversed(points):
        # Lazily: a process that has its working folder in it must not stop the removal. The check
        # follows below, because one unmount may include others.
        process.run(["/usr/bin/umount", "--lazy", "--", point], timeout=60, check=False)
    for point in _mount_points(folder):
        process.run(["/usr/bin/umount", "--", point], timeout=60)
    return bool(points)


def control_groups(pattern: str) -> list[pathlib.Path]:
    """Return the control groups, in every hierarchy, whose path matches; the deepest first.

    Raises:
        OSError: one can't be read.
    """
    found: list[pathlib.Path] = []
    for root in _hierarchies():
        for path, _, _ in os.walk(root, onerror=_unless_gone):
            if re.search(pattern, f"/{os.path.relpath(path, root)}"):
                found.append(pathlib.Path(path))
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def _unless_gone(error: OSError) -> None:
    if error.errno not in _GONE:
        raise error


def remove_control_groups(pattern: str) -> bool:
    """Kill all processes in matching control groups and remove these. Return True if any existed.

    Args:
        pattern: a regular expression for the path below a hierarchy's root, as in
            /proc/PID/cgroup.

    Raises:
        OSError: the processes of a group can't be read.
    """
    groups = control_groups(pattern)
    pids: set[int] = set()
    for group in groups:
        try:
            pids.update(int(pid) for pid in (group / "cgroup.procs").read_text().split())
        except OSError as error:
            # A threaded group lists threads only; their processes are in the group above.
            if error.errno != errno.EOPNOTSUPP:
                _unless_gone(error)
    end_processes(pids, grace=0)
    for group in groups:
        with contextlib.suppress(OSError):  # systemd removes its own groups
            group.rmdir()
    return bool(groups)


def _lives(pid: int) -> bool:
    try:
        said = (_PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # After its name, which may hold any bytes.
    return said.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def _mount_points(folder: pathlib.Path) -> list[str]:
    """Return the mounts below a folder, in the order in which they were mounted."""
    lines = os.fsdecode((_PROC / "self/mountinfo").read_bytes()).split("\n")
    # The kernel writes blanks, newlines and backslashes as \040 and the like (proc(5)).
    points = (
        re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), line.split(" ")[4])
        for line in filter(None, lines)
    )
    return [point for point in points if point.startswith(f"{folder}/")]


def _hierarchies() -> list[pathlib.Path]:
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]
