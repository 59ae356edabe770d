# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check Concourse's worker: its volumes, its limits, its ports."""

import collections.abc
import functools
import pathlib
import re
import time
import typing

from ci.concourse import release
from ci.concourse.worker import ports as worker_ports
from ci.concourse.worker import volumes, worker
from gpu_agent.diagnosis import machine as facts
from gpu_selftest.check import Check, Level, Outcome, Result, Said
from machine import ports, process
from machine import process_cleanup as leftovers

VOLUMES: typing.Final = Check(
    "volumes",
    Level.QUICK,
    "a volume can be made, layered over another and removed, as each image, get and check needs",
    remedy="journalctl -k | grep overlay; make sure that /var/lib/concourse is ext4 or XFS and "
    "writable; it is checked again within 10 minutes",
    source="Concourse 8.3, worker/baggageclaim/volume/driver",
    condemns=False,
)
LIMITS: typing.Final = Check(
    "limits",
    Level.QUICK,
    "the worker has the limits that its systemd unit sets, which systemd may lower silently",
    source="/etc/systemd/system/concourse-worker.service; /proc/PID/limits",
    condemns=False,
)
PORTS: typing.Final = Check(
    "worker-ports",
    Level.QUICK,
    "only root reaches the worker's ports on 127.0.0.1, which give root access",
    remedy=f"systemctl restart {worker.SERVICE}; journalctl -u {worker_ports.SERVICE}; until the "
    "check passes, let only users log in to this machine who may have root access",
    source="Concourse 8.3, worker/workercmd/worker.go",
    condemns=False,
)
CHECKS: typing.Final = (VOLUMES, LIMITS, PORTS)

_SERVICE: typing.Final = pathlib.Path("/etc/systemd/system") / worker.SERVICE
# Each with systemd's name (systemd.exec(5)), the kernel's (proc(5)) and the report's.
_LIMITED: typing.Final = (
    ("NOFILE", "Max open files", "open files"),
    ("NPROC", "Max processes", "processes"),
    ("MEMLOCK", "Max locked memory", "bytes of locked memory"),
)


def volume_driver(root: pathlib.Path = pathlib.Path("/")) -> str:
    """Return how the worker keeps volumes; without a worker, how it would keep them."""
    work_dir = root / str(worker.WORK_DIR).lstrip("/")
    return worker.volume_driver(root) or volumes.choose("", work_dir)


def checks(
    driver: str, root: pathlib.Path
) -> tuple[tuple[Check, collections.abc.Callable[[], Result]], ...]:
    """Return these checks, each with the function that makes it.

    Args:
        driver: how the worker keeps volumes.
        root: where the machine's files are.
    """
    work_dir = root / str(worker.WORK_DIR).lstrip("/")
    return (
        (VOLUMES, functools.partial(_volumes, driver, work_dir)),
        (LIMITS, functools.partial(_limits, root)),
        (PORTS, functools.partial(_ports, root)),
    )


def _volumes(driver: str, work_dir: pathlib.Path) -> Result:
    try:
        volumes.prove(driver, work_dir)
    except volumes.VolumeError as error:
        if error.starved:
            return VOLUMES.result(Outcome.NOT_RUN, str(error))
        cause = "no volumes"
        return VOLUMES.told(Said(Outcome.FAILED, f"{cause}: {error}", driver, cause=cause))
    how = "copies" if driver == volumes.NAIVE else "layers"
    return VOLUMES.result(Outcome.PASSED, f"{how} (driver {driver})", value=driver)


def _limits(root: pathlib.Path) -> Result:
    """Check the limits of the worker's containerd, from which each container inherits its own."""
    unit = root / str(_SERVICE).lstrip("/")
    asked = dict(re.findall(r"^Limit(\w+)=(\S+)$", _text(unit), re.MULTILINE))
    pids = leftovers.processes_running(release.ROOT, ("containerd",), root / "proc")
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
        return LIMITS.result(Outcome.PASSED, "as the unit sets them")
    return LIMITS.result(
        Outcome.WARNING,
        f"systemd set no more than {'; '.join(lower)}",
        remedy="If tasks need more (RDMA locks memory), in an LXD container: on its host "
        f"`lxc config set {facts.instance(root) or '<instance>'} <key> unlimited` for "
        f"{', '.join(keys)}, then lxc restart",
    )


def _ports(root: pathlib.Path) -> Result:
    """Try each port as the user nobody."""
    try:
        reached = worker_ports.reached_by_others(root)
    except process.CommandError as error:
        return PORTS.result(Outcome.NOT_RUN, str(error))
    if reached is None:
        return PORTS.result(Outcome.SKIPPED, "the worker is not running")
    if reached:
        named = ", ".join(map(str, reached))
        cause = "worker ports open to every user"
        return PORTS.told(Said(Outcome.FAILED, f"{cause}: {named}", cause=cause))
    lost = ports.losses()
    return PORTS.result(Outcome.PASSED, f"closed{_flushed(lost) if lost else ''}")


def _flushed(lost: list[float]) -> str:
    ago = (time.clock_gettime(time.CLOCK_BOOTTIME) - lost[-1]) / 60
    return (
        f"; another program removed the rules {len(lost)} times since the worker started, last "
        f"{ago:.0f} min ago, and {worker_ports.SERVICE} restored them"
    )


def _number(text: str) -> float:
    return float(text) if text.isdecimal() else float("inf")


def _text(path: pathlib.Path) -> str:
    """Return the content of a file; empty if it does not exist or its process has ended."""
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
