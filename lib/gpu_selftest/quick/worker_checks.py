# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The checks of Concourse's worker: its volumes, the room for them, and its limits."""

import os
import pathlib
import re
import time
import typing

from ci.concourse import release
from ci.concourse.worker import ports as worker_ports
from ci.concourse.worker import volumes, worker
from gpu_agent import paths as wrapper
from gpu_agent.diagnosis import machine as facts
from gpu_selftest import results
from gpu_selftest.check import Check, Level, Outcome, Result
from machine import ports, process
from machine import process_cleanup as leftovers

VOLUMES: typing.Final = Check(
    "volumes",
    Level.QUICK,
    "a volume can be made, layered over another and removed, as each image, get and check needs",
    remedy="journalctl -k | grep overlay; see that /var/lib/concourse is ext4 or XFS and can be "
    "written to; the charm looks again by itself within 10 minutes",
    source="Concourse 8.3, worker/baggageclaim/volume/driver",
    condemns=False,
)
LIMITS: typing.Final = Check(
    "limits",
    Level.QUICK,
    "the worker has the limits that its unit asks for, which systemd lowers in silence",
    source="/etc/systemd/system/concourse-worker.service; /proc/PID/limits",
    condemns=False,
)
DISK: typing.Final = Check(
    "disk",
    Level.QUICK,
    "there is room for images, volumes and what tasks download",
    # Below the first the smallest CUDA image can't be unpacked; the second is what the smoke test
    # of the project's first users asks for. An image is there once for itself, once for a step,
    # and once for a failed build's container that Concourse keeps.
    source="1 GB: an image with CUDA's runtime alone is larger; 50 GB: models and environments; "
    "where volumes are copies three times that",
    unit="GB",
    condemns=False,
)
PORTS: typing.Final = Check(
    "worker-ports",
    Level.QUICK,
    "no user but root reaches the worker's ports on 127.0.0.1, by which one would be root",
    remedy=f"systemctl restart {worker.SERVICE}; journalctl -u {worker_ports.SERVICE}; until it "
    "passes, let no one log in to this machine whom you would not make root",
    source="Concourse 8.3, worker/workercmd/worker.go",
    condemns=False,
)
CHECKS: typing.Final = (VOLUMES, LIMITS, PORTS, DISK)

_GB: typing.Final = 1e9
_FULL: typing.Final = 1.0
_SCARCE: typing.Final = 50.0
_COPIES: typing.Final = 3

_SERVICE: typing.Final = pathlib.Path("/etc/systemd/system") / worker.SERVICE
# systemd's names (systemd.exec(5)), the kernel's (proc(5)) and what people say.
_LIMITED: typing.Final = (
    ("NOFILE", "Max open files", "open files"),
    ("NPROC", "Max processes", "processes"),
    ("MEMLOCK", "Max locked memory", "bytes of locked memory"),
)


def run(root: pathlib.Path) -> list[Result]:
    """A result for each of these checks, the disk's last."""
    work_dir = root / str(worker.WORK_DIR).lstrip("/")
    driver = worker.volume_driver(root) or volumes.choose("", work_dir)
    disk = _disk(root, _COPIES if driver == volumes.NAIVE else 1)
    full = f"{DISK.id} failed" if disk.outcome is Outcome.FAILED else ""
    return [_volumes(driver, work_dir, full), _limits(root), _ports(root), disk]


def _volumes(driver: str, work_dir: pathlib.Path, full: str) -> Result:
    try:
        volumes.prove(driver, work_dir)
    except volumes.VolumeError as error:
        if error.starved:
            return VOLUMES.result(Outcome.PREVENTED, full or str(error))
        return VOLUMES.result(Outcome.FAILED, f"no volumes: {error}", value=driver)
    how = "copies" if driver == volumes.NAIVE else "layers"
    return VOLUMES.result(Outcome.PASSED, f"{how} (driver {driver})", value=driver)


def _limits(root: pathlib.Path) -> Result:
    """What the worker's containerd has, from which each container has its own."""
    unit = root / str(_SERVICE).lstrip("/")
    asked = dict(re.findall(r"^Limit(\w+)=(\S+)$", _text(unit), re.MULTILINE))
    names = (pathlib.Path(wrapper.CONTAINERD).name,)
    pids = leftovers.processes_running(release.ROOT, names, root / "proc")
    told = _text(root / f"proc/{pids[0]}/limits") if pids else ""
    lower: list[str] = []
    keys: list[str] = []
    for name, line, words in _LIMITED:
        found = re.search(rf"^{line} +(\S+)", told, re.MULTILINE)
        if name in asked and found and _number(found.group(1)) < _number(asked[name]):
            lower.append(f"{found.group(1)} {words}, not {asked[name]}")
            keys.append(f"limits.kernel.{name.lower()}")
    if not asked or not told:
        return LIMITS.result(Outcome.SKIPPED, "the worker is not running")
    if not lower:
        return LIMITS.result(Outcome.PASSED, "as asked for")
    return LIMITS.result(
        Outcome.WARNING,
        f"systemd could set no more than {'; '.join(lower)}",
        remedy="where tasks need more (RDMA locks memory): in an LXD container, on its host "
        f"`lxc config set {facts.instance(root) or '<instance>'} <key> unlimited` for "
        f"{', '.join(keys)}, and lxc restart",
    )


def _ports(root: pathlib.Path) -> Result:
    """Try each port as the user nobody."""
    try:
        reached = worker_ports.reached_by_others(root)
    except process.CommandError as error:
        return PORTS.result(Outcome.PREVENTED, str(error))
    if reached is None:
        return PORTS.result(Outcome.SKIPPED, "the worker is not running")
    if reached:
        named = ", ".join(map(str, reached))
        return PORTS.result(Outcome.FAILED, f"worker ports open to every user: {named}")
    lost = ports.losses()
    return PORTS.result(Outcome.PASSED, f"shut{_flushed(lost) if lost else ''}")


def _flushed(lost: list[float]) -> str:
    ago = (time.clock_gettime(time.CLOCK_BOOTTIME) - lost[-1]) / 60
    return (
        f"; another program removed the rules {len(lost)} times since the worker started, last "
        f"{ago:.0f} min ago, and {worker_ports.SERVICE} put them back"
    )


def _number(text: str) -> float:
    return float(text) if text.isdecimal() else float("inf")


def _text(path: pathlib.Path) -> str:
    """What a file says; empty if it is not there, or its process is over."""
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _disk(root: pathlib.Path, times: int) -> Result:
    """The least room of where Concourse works and where the self-test writes."""
    free = {path: _free(root, path) for path in (worker.HOME, results.HOME)}
    path = min(free, key=lambda path: free[path])
    room, full, scarce = free[path], _FULL * times, _SCARCE * times
    threshold = f"at least {full:g} GB, better {scarce:g} GB"
    text = f"{room:.1f} GB free for {path}"
    remedy = (
        f"sudo du -xh --max-depth=2 {path} | sort -h | tail; make room, or give {path} a larger "
        "disk; the charm looks again by itself within 10 minutes"
    )
    if room < full:
        outcome, text = Outcome.FAILED, f"disk full: {text}"
    else:
        outcome = Outcome.PASSED if room >= scarce else Outcome.WARNING
    return DISK.result(outcome, text, value=round(room, 1), threshold=threshold, remedy=remedy)


def _free(root: pathlib.Path, path: pathlib.Path) -> float:
    """Room on a path's file system in GB; none where it has no inode left for another file."""
    place = root / str(path).lstrip("/")
    while not place.exists():
        place = place.parent
    found = os.statvfs(place)
    out_of_inodes = found.f_files > 0 and found.f_favail == 0
    return 0.0 if out_of_inodes else found.f_bavail * found.f_frsize / _GB
