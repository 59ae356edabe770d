# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A scope: a control group that systemd makes for processes which it has not started.

A process is named by its number, which may be another's by the time it is used. So a program of
ours traces it first: who is traced keeps the number, even dead, until the tracer ends (ptrace(2)).
"""

import collections.abc
import ctypes
import os
import pathlib
import typing

from machine.child_process import Child

_SYSTEMD_RUN: typing.Final = "/usr/bin/systemd-run"
_SEIZE: typing.Final = 0x4206  # PTRACE_SEIZE (Linux include/uapi/linux/ptrace.h): it runs on
_PROC: typing.Final = pathlib.Path("/proc")


def start(
    name: str,
    argv: collections.abc.Sequence[str],
    *,
    slice_name: str,
    description: str,
    properties: collections.abc.Iterable[str],
) -> Child:
    """Start a program as the first process of a scope of its own. It speaks as a Child does.

    Args:
        name: of the unit, with `.scope`.
        argv: the program's absolute path and its arguments.
        slice_name: the slice that the scope is part of.
        description: one line that systemd shows of it.
        properties: of systemd.scope(5) and systemd.resource-control(5), as `NAME=VALUE`.

    Raises:
        OSError: systemd-run can't be started. Where that fails later, the Child has ended.
    """
    command = [
        *(_SYSTEMD_RUN, "--scope", "--quiet", "--collect", f"--unit={name}"),
        *(f"--slice={slice_name}", f"--description={description}"),
        *(f"--property={one}" for one in properties),
        *("--", *argv),
    ]
    return Child(command, dict(os.environ))


def trace(pid: int) -> None:
    """Keep a process's number from becoming another's for as long as this process lives.

    Raises:
        OSError: it is gone (ESRCH), or traced by another (EPERM).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    none = ctypes.c_void_p()
    if libc.ptrace(ctypes.c_long(_SEIZE), ctypes.c_int(pid), none, none):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def open_fault(path: str) -> int:
    """Why a device can't be opened by this process: an errno; 0 where it can.

    Control groups are asked before the driver is: where they forbid it that is EPERM.
    """
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno or -1
    return 0


def move(pid: int, other: int, unit: str) -> None:
    """Have a process in all control groups of a unit's that another one is in.

    Args:
        pid: the one to move, which somebody traces.
        other: one that the unit was made for.
        unit: its name.

    Raises:
        OSError: it can't be moved, or is gone (ESRCH).
    """
    mounts = _lines(_PROC / "self/mountinfo")
    moved = False
    for controllers, path in _groups(other):
        if unit in path.split("/"):
            file = _folder(mounts, controllers, path) / "cgroup.procs"
            try:
                file.write_text(str(pid))
            except PermissionError:
                _write_as_its_user(file, pid)
            moved = True
    if not moved:
        raise OSError(f"{unit} has no control group")


def _write_as_its_user(file: pathlib.Path, pid: int) -> None:
    """Move a process where this root is a user namespace's, as in a container, with cgroup v1.

    Only the machine's root may move other users' processes there, any other user those of its own
    (Linux 6.1 kernel/cgroup/cgroup-v1.c __cgroup1_procs_write). The file is root's, as which it is
    opened. A child does it: with another user Linux forgets whose end a process is to end with.
    """
    user = (_PROC / str(pid)).stat().st_uid
    child = os.fork()
    if not child:
        fault = 1
        try:
            os.seteuid(user)
            ctypes.CDLL(None).setfsuid(0)
            file.write_text(str(pid))
            fault = 0
        except OSError as error:
            fault = error.errno or 1
        finally:
            os._exit(fault)
    fault = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if fault:
        raise OSError(abs(fault), os.strerror(abs(fault)), str(file))


def _groups(pid: int) -> list[tuple[list[str], str]]:
    """The control groups of a process (cgroups(7)): controllers, none for v2's; and path."""
    try:
        lines = _lines(_PROC / str(pid) / "cgroup")
    except (FileNotFoundError, ProcessLookupError):
        return []
    parts = [line.split(":", 2) for line in lines]
    return [([name for name in names.split(",") if name], path) for _, names, path in parts]


def _lines(path: pathlib.Path) -> list[str]:
    """The lines of a file of the kernel's, in which users' names hold any bytes but line feeds."""
    return [line for line in os.fsdecode(path.read_bytes()).split("\n") if line]


def _folder(mounts: list[str], controllers: list[str], path: str) -> pathlib.Path:
    """Where a control group lies among the mounts, as proc(5) lists them."""
    for line in mounts:
        mount, _, source = line.partition(" - ")
        kind, _, options = source.split(" ", 2)
        top, point = mount.split(" ")[3:5]
        top = top.rstrip("/")
        of = {*options.rpartition(" ")[2].split(",")} if kind == "cgroup" else set[str]()
        is_it = of.issuperset(controllers) if controllers else kind == "cgroup2"
        if is_it and (kind == "cgroup2" or controllers) and f"{path}/".startswith(f"{top}/"):
            folder = pathlib.Path(point + path[len(top) :])
            if (folder / "cgroup.procs").exists():
                return folder
    raise OSError(f"no mount shows the control group {path}")
