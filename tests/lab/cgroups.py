# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Make one cgroup for each machine, in every hierarchy of the host: v1 (or hybrid), or v2 only.

systemd-nspawn makes its cgroups below the caller's own; without one of its own, each machine's
systemd would manage the cgroups of the others, and of the host.
"""

import contextlib
import os
import pathlib
import time
from collections.abc import Iterator

ROOT = pathlib.Path("/sys/fs/cgroup")
# v1 controllers that nspawn mounts read-only in a machine (systemd 252, nspawn-cgroup.c).
V1_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids")


def is_unified() -> bool:
    """Whether the host has cgroup v2 only, as Ubuntu and Debian boot today."""
    return (ROOT / "cgroup.controllers").exists()


def make(name: str) -> list[pathlib.Path]:
    """Make the machine's cgroup in each hierarchy and return the directories."""
    if is_unified():
        return [_make_v2(name)]
    return [_make_v1(name, line) for line in _own_cgroups()]


def _own_cgroups() -> list[str]:
    return pathlib.Path("/proc/self/cgroup").read_text().splitlines()


def _make_v2(name: str) -> pathlib.Path:
    # Directly below the root: a cgroup which holds processes, as the caller's own does, cannot
    # hand controllers to its children.
    available = (ROOT / "cgroup.controllers").read_text().split()
    for controller in available:
        try:
            (ROOT / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError:
            continue  # One that the host's root cannot give away does not stop the machine.
    directory = ROOT / name
    directory.mkdir(exist_ok=True)
    return directory


def _make_v1(name: str, line: str) -> pathlib.Path:
    _, controllers, path = line.split(":", 2)
    directory = hierarchy(controllers) / path.lstrip("/") / name
    directory.mkdir(exist_ok=True)
    if "cpuset" in controllers.split(","):
        for item in ("cpuset.cpus", "cpuset.mems"):
            (directory / item).write_text((directory.parent / item).read_text())
    return directory


def hierarchy(controllers: str) -> pathlib.Path:
    """Where the hierarchy of a line of /proc/PID/cgroup is mounted."""
    if is_unified():
        return ROOT
    return ROOT / (controllers.removeprefix("name=") or "unified")


def writable() -> bool:
    """Return whether cgroups can be made at all; containers often see them read-only."""
    return all(os.access(hierarchy(_fields(line)[1]), os.W_OK) for line in _own_cgroups())


@contextlib.contextmanager
def entered(name: str) -> Iterator[list[pathlib.Path]]:
    """Put this process into new cgroups, in which names of containers do not collide."""
    own = [hierarchy(c) / path.lstrip("/") for _, c, path in map(_fields, _own_cgroups())]
    made = make(name)
    # Of v2, runc makes a container's cgroup beside that of its caller.
    inner = [directory / "tests" if is_unified() else directory for directory in made]
    for directory in inner:
        directory.mkdir(exist_ok=True)
        _move(directory)
    try:
        yield made
    finally:
        for directory in own:
            _move(directory)
        remove(made, timeout=2)


def weigh(directories: list[pathlib.Path], times: int) -> None:
    """Give a cgroup so many times the usual share of the processors, if these are short."""
    for directory in directories:
        for name, usual in (("cpu.shares", 1024), ("cpu.weight", 100)):
            if (directory / name).exists():
                (directory / name).write_text(str(usual * times))


def _move(directory: pathlib.Path) -> None:
    (directory / "cgroup.procs").write_text(str(os.getpid()))


def _fields(line: str) -> list[str]:
    return line.split(":", 2)


def processes(directories: list[pathlib.Path]) -> set[int]:
    """All processes in the cgroups and below."""
    found: set[int] = set()
    for directory in directories:
        for below, _, _ in os.walk(directory):
            try:
                text = pathlib.Path(below, "cgroup.procs").read_text()
                found.update(int(pid) for pid in text.split())
            except FileNotFoundError:
                continue
            except OSError:
                continue  # A threaded cgroup of v2 does not list processes.
    return found


def thaw(directories: list[pathlib.Path]) -> None:
    """Thaw frozen cgroups: in v1 a frozen process can't even be killed."""
    for directory in directories:
        for state in directory.rglob("freezer.state"):
            with contextlib.suppress(OSError):  # the root has none to write, and some are gone
                state.write_text("THAWED")


def find(prefix: str) -> list[pathlib.Path]:
    """Return all cgroups, in every hierarchy, whose names begin so; none below another.

    Others' cgroups may disappear meanwhile.
    """
    found: list[pathlib.Path] = []
    for directory, names, _ in os.walk(ROOT):
        ours = [name for name in names if name.startswith(f"{prefix}-")]
        found += [pathlib.Path(directory, name) for name in ours]
        names[:] = [name for name in names if name not in ours]
    return sorted(found)


def remove(directories: list[pathlib.Path], timeout: float = 10) -> list[pathlib.Path]:
    """Remove the cgroups, which have no live process any more; return those that stayed."""
    deadline = time.monotonic() + timeout
    left = directories
    while True:
        left = [d for d in left if not _remove_tree(d)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)  # The kernel is still letting go of the last processes.


def _remove_tree(directory: pathlib.Path) -> bool:
    for below, _, _ in os.walk(directory, topdown=False):
        try:
            os.rmdir(below)
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return not directory.exists()
