# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""One cgroup a machine, in every hierarchy of the host: v1 (or hybrid), or v2 alone.

systemd-nspawn makes its cgroups below the caller's own; without one of its own, each machine's
systemd would manage the cgroups of the others, and of the host.
"""

import os
import pathlib
import time

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
    hierarchy = controllers.removeprefix("name=") or "unified"
    directory = ROOT / hierarchy / path.lstrip("/") / name
    directory.mkdir(exist_ok=True)
    if "cpuset" in controllers.split(","):
        for item in ("cpuset.cpus", "cpuset.mems"):
            (directory / item).write_text((directory.parent / item).read_text())
    return directory


def processes(directories: list[pathlib.Path]) -> set[int]:
    """All processes in the cgroups and below."""
    found: set[int] = set()
    for directory in directories:
        for procs in directory.rglob("cgroup.procs"):
            try:
                found.update(int(pid) for pid in procs.read_text().split())
            except FileNotFoundError:
                continue
            except OSError:
                continue  # A threaded cgroup of v2 does not list processes.
    return found


def find(prefix: str) -> list[pathlib.Path]:
    """All cgroups, in every hierarchy, whose names begin so; none below another."""
    found = sorted(path for path in ROOT.rglob(f"{prefix}-*") if path.is_dir())
    return [path for path in found if not any(parent in found for parent in path.parents)]


def remove(directories: list[pathlib.Path], timeout: float = 10) -> list[pathlib.Path]:
    """Remove the cgroups, which hold no live process any more; return those that stayed."""
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
