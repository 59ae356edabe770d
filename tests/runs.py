# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A test run's mark on this machine; what runs that were killed have left is taken away by it.

A machine of the lab outlives whoever started it, and with it go processors, inotify instances and
network namespaces that the next run needs. Each run has a folder below `FOLDER`, with a file that
is locked as long as the run lives, and notes of what it made. Runs side by side leave each other
alone.
"""

import contextlib
import fcntl
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator

from tests.lab import cgroups, network, processes

FOLDER = pathlib.Path("/run/gpu-ci-tests")
# Names the run's folder, for all its processes.
_RUN = "GPUCI_TESTS_RUN"
_NOTES = "notes"
_LOCK = "lock"
# How much memory is free where the files of a run are kept there, in MiB. They take up to 2,000.
_MEMORY = 10_000
# How long a killed process may take to be gone; a machine at a load of 20 needs seconds.
_SECONDS = 60


class Run:
    """This run: from `begin` to `end`, or to the death of the process.

    Args:
        folder: its own; does not exist yet.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        folder.mkdir()
        # Of the process and not of its children, as flock would be; nobody else may open it here.
        self._lock = (folder / _LOCK).open("w")
        fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.environ[_RUN] = str(folder)

    def end(self) -> None:
        """Forget this run, and what a process of it that died has left."""
        if os.environ.get(_RUN) == str(self.folder):
            del os.environ[_RUN]
        sweep(self.folder)
        self._lock.close()


def begin(folder: pathlib.Path = FOLDER) -> Run | None:
    """Take away what killed runs have left, and mark this one.

    Returns:
        None where another process has marked this run, or nothing can be marked: without root.
    """
    if _RUN in os.environ or os.geteuid() != 0 or not cgroups.writable():
        return None
    folder.mkdir(exist_ok=True, mode=0o755)
    with _alone(folder):
        for left in _dead(folder):
            sweep(left)
        return Run(folder / f"{os.getpid()}-{time.time_ns()}")


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
    """Nobody else marks or sweeps meanwhile."""
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _dead(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    return (run for run in [*folder.iterdir()] if run.is_dir() and _is_dead(run))


def _is_dead(run: pathlib.Path) -> bool:
    try:
        mark = (run / _LOCK).open("r+")
    except FileNotFoundError:
        # One that lives and ends takes its mark away, alone; one that begins does so in our turn.
        return run.is_dir()
    with mark:
        try:
            fcntl.lockf(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
    return True


def cgroup_name() -> str:
    """The name for this process's cgroups, by which its run can be told."""
    run = pathlib.Path(os.environ.get(_RUN, "")).name or "alone"
    return f"gpuci-tests-{run}-{os.getpid()}"


def note(kind: str, name: str) -> None:
    """Note what this run makes; nothing where no run is marked.

    Args:
        kind: `network`, a lab's; `folder`; `memory`, a folder on which memory is mounted.
        name: the network's name; the folder's path.
    """
    run = os.environ.get(_RUN)
    if run and pathlib.Path(run).is_dir():
        with pathlib.Path(run, _NOTES).open("a") as notes:
            notes.write(f"{kind} {name}\n")


def use_memory() -> None:
    """Have pytest make its folders in memory, if this machine has enough of it.

    The machines of the tests write thousands of small files durably. For each of them a disk takes
    milliseconds. A test of a full disk mounts its own; others see a large one.
    """
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) // 1024
    if _RUN not in os.environ or free < _MEMORY:
        return
    folder = tempfile.mkdtemp(prefix="gpuci-")
    note("memory", folder)
    mount = ["mount", "-t", "tmpfs", "-o", "mode=755,size=64g", "gpuci-tests", folder]
    subprocess.run(mount, check=True, timeout=60)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = folder


def sweep(run: pathlib.Path) -> None:
    """Take away what a dead run left, and its mark; what does not go stays for the next run."""
    noted = _noted(run)
    networks = [name for kind, name in noted if kind == "network"]
    left = cgroups.find(f"gpuci-tests-{run.name}")
    for name in networks:
        left += cgroups.find(name)
    _kill(left)
    stayed = cgroups.remove(left, timeout=_SECONDS if left else 0)
    for name in networks:
        network.Network(name).down()
    for kind, name in noted:
        if kind == "folder" and not _holds_mounts(name):
            shutil.rmtree(name, ignore_errors=True)
        elif kind == "memory" and pathlib.Path(name).exists():
            if os.path.ismount(name):
                subprocess.run(["umount", "--lazy", name], check=True, timeout=60)
            pathlib.Path(name).rmdir()
    if not stayed:
        shutil.rmtree(run, ignore_errors=True)


def _noted(run: pathlib.Path) -> set[tuple[str, str]]:
    try:
        lines = (run / _NOTES).read_text().splitlines()
    except FileNotFoundError:
        return set()
    # A line that the dead process could not end is of something that it had not made yet.
    parted = (line.partition(" ") for line in lines)
    return {(kind, name) for kind, _, name in parted if name}


def _holds_mounts(folder: str) -> bool:
    """Whether another file system, which is not to be emptied, is mounted below."""
    mounts = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4].startswith(f"{folder}/") for line in mounts)


def _kill(directories: list[pathlib.Path]) -> None:
    deadline = time.monotonic() + _SECONDS
    cgroups.thaw(directories)
    # A run that was broken off is still in its own cgroups.
    while alive := cgroups.processes(directories) - {os.getpid()}:
        for pid in alive:
            processes.kill(pid)
        if not any(map(processes.is_alive, alive)) or time.monotonic() > deadline:
            return
        time.sleep(0.05)
