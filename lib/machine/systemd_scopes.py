# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Make systemd scopes: control groups for processes that systemd has not started.

A process is named by its number, which another process may have by the time it is used. So a
program of ours traces it first: a traced process keeps its number, even dead, until the tracer
ends (ptrace(2)).
"""

import collections.abc
import ctypes
import os
import pathlib
import typing

from machine.child_process import Child

_SYSTEMD_RUN: typing.Final = "/usr/bin/systemd-run"
_SEIZE: typing.Final = 0x4206  # PTRACE_SEIZE (Linux include/uapi/linux/ptrace.h): no stop
_PROC: typing.Final = pathlib.Path("/proc")


def start(
    name: str,
    argv: collections.abc.Sequence[str],
    *,
    slice_name: str,
    description: str,
    properties: collections.abc.Iterable[str],
) -> Child:
    """Start a program as the first process of its own scope; return it as a Child.

    Args:
        name: the unit's name, with `.scope`.
        argv: the program's absolute path and its arguments.
        slice_name: the slice of the scope.
        description: one line that systemd shows for it.
        properties: of systemd.scope(5) and systemd.resource-control(5), as `NAME=VALUE`.

    Raises:
        OSError: systemd-run can't be started. If it fails later, the Child has ended.
    """
    command = [
        *(_SYSTEMD_RUN, "--scope", "--quiet", "--collect", f"--unit={name}"),
        *(f"--slice={slice_name}", f"--description={description}"),
        *(f"--property={one}" for one in properties),
        *("--", *argv),
    ]
    return Child(command, dict(os.environ))


def trace(pid: int) -> None:
    """Keep a process's number from being reused for as long as this process lives.

    Raises:
        OSError: it is gone (ESRCH), or traced by another process (EPERM).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    none = ctypes.c_void_p()
    if libc.ptrace(ctypes.c_long(_SEIZE), ctypes.c_int(pid), none, none):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def open_fault(path: str) -> int:
    """Return why this process can't open a device, as an errno; 0 if it can.

    Control groups are checked before the driver: if they forbid it, the errno is EPERM.
    """
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno or -1
    return 0


def move(pid: int, other: int, unit: str) -> None:
    """Move a process into all control groups of a unit that another process is in.

    Args:
        pid: the process to move, which must be traced.
        other: a process that the unit was made for.
        unit: the unit's name.

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
    """Move a process with cgroup v1 if this root is a user namespace's, as in a container.

    There only the machine's root may move other users' processes; other users may move their own
    (Linux 6.1 kernel/cgroup/cgroup-v1.c __cgroup1_procs_write). The file is root's and opened as
    root. A child does it: when a process changes its user, Linux forgets its parent-death signal.
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
    """Return a process's control groups (cgroups(7)): controllers, none for v2's; and path."""
    try:
        lines = _lines(_PROC / str(pid) / "cgroup")
    except (FileNotFoundError, ProcessLookupError):
        return []
    parts = [line.split(":", 2) for line in lines]
    return [([name for name in names.split(",") if name], path) for _, names, path in parts]


def _lines(path: pathlib.Path) -> list[str]:
    """Return the lines of a kernel file whose names may hold any byte but newline."""
    return [line for line in os.fsdecode(path.read_bytes()).split("\n") if line]


def _folder(mounts: list[str], controllers: list[str], path: str) -> pathlib.Path:
    """Return where a control group is in the mounts, as proc(5) lists them."""
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
