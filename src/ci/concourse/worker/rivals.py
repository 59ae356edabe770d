# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Find programs that obstruct Concourse's worker: another containerd, another runc."""

import contextlib
import pathlib
import re
import typing

from ci.concourse.plan.model import Rivals
from gpu_agent.model import errors

# containerd puts this folder first on its PATH (containerd 2.3.1 plugins/services/opt/service.go).
_RUNC: typing.Final = "opt/containerd/bin/runc"
_SOCKET: typing.Final = "/run/containerd/containerd.sock"
_OURS: typing.Final = pathlib.Path("/opt/concourse")
_OUR_SERVICE: typing.Final = "concourse-worker.service"

# __SO_ACCEPTCON (Linux include/uapi/linux/net.h): this socket listens.
_LISTENS: typing.Final = 0x10000


def look(root: pathlib.Path = pathlib.Path("/"), socket: str = _SOCKET) -> Rivals:
    """Return the rivals on a machine.

    Args:
        root: where its files lie.
        socket: the path that containerd listens at.

    Raises:
        gpu_agent.model.errors.UnknownError: a file cannot be read.
    """
    runc = root / _RUNC
    try:
        return Rivals(_containerd(root / "proc", socket), f"/{_RUNC}" if runc.exists() else "")
    except OSError as error:
        raise errors.unknown(error) from error


def _containerd(proc: pathlib.Path, socket: str) -> str:
    """Return the service or program besides Concourse that listens on containerd's socket.

    A later program removes the socket file of an earlier one, which keeps listening, so there may
    be several.

    Raises:
        OSError: /proc cannot be read.
    """
    wanted = {f"socket:[{inode}]" for inode in _listeners(proc / "net/unix", socket)}
    if not wanted:
        return ""
    owned: set[str] = set()
    closed: PermissionError | None = None
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            found = wanted & _open_files(folder)
            name = _owner(folder) if found else ""
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        except PermissionError as error:  # one with more rights than this program has
            closed = error
            continue
        if name:
            return name
        owned |= found
    if closed and owned != wanted:
        raise closed
    return ""


def _listeners(table: pathlib.Path, socket: str) -> list[str]:
    """Inodes of the sockets that listen under containerd's path (proc(5), /proc/net/unix).

    Every user can have a socket whose path holds any bytes, newlines among them.
    """
    row = rf"^\S+: \S+ \S+ ([0-9A-F]{{8}}) \S+ \S+ +([0-9]+) (?:/var)?{re.escape(socket)}$"
    rows = re.findall(row, table.read_text(errors="replace"), re.MULTILINE)
    return [inode for flags, inode in rows if int(flags, 16) & _LISTENS]


def _open_files(folder: pathlib.Path) -> set[str]:
    """Return the files that a process has open. Files that it closes meanwhile are left out.

    Raises:
        OSError: the process has ended, or cannot be read.
    """
    found: set[str] = set()
    for link in (folder / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(link.readlink()))
    return found


def _owner(folder: pathlib.Path) -> str:
    """Name of a process's service, else of its program; empty if Concourse's own.

    Raises:
        OSError: the process has ended, or cannot be read.
    """
    program = (folder / "exe").readlink()
    groups = (folder / "cgroup").read_text(errors="replace")
    service = re.search(r"/([^/\n]+\.service)$", groups, re.MULTILINE)
    name = service.group(1) if service else program.name
    return "" if program.is_relative_to(_OURS) or name == _OUR_SERVICE else name
