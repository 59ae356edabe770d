# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The worker's ports on 127.0.0.1: only root reaches them, and only while the worker runs.

Garden and Baggageclaim ask no one who they are: by them a user of the machine would be root.
"""

import pathlib
import typing

from ci.concourse import service
from ci.concourse.upstream import HEALTH_PORT, WORKER_PORTS
from machine import files, ports, process, templates
from machine import systemd as services

SERVICE: typing.Final = "gpu-ci-ports.service"
_PROGRAM: typing.Final = pathlib.Path("/usr/local/lib/gpu-ci-ports")
_PYTHON: typing.Final = f"/usr/bin/python3 -I -S {_PROGRAM}"

_WORKER: typing.Final = "concourse-worker.service"
# The overflow uid of Linux, which every system has.
_AS_NOBODY: typing.Final = (
    "/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--",
)  # fmt: skip
_REACH: typing.Final = 15.0  # seconds; it takes a twentieth


def commands(unit: str) -> dict[str, str]:
    """Return the unit of the guard, and the commands before and after the worker's process."""
    own = ",".join(map(str, WORKER_PORTS))
    return {
        "guard": SERVICE,
        "shut": f"{_PYTHON} shut {unit} {own} {HEALTH_PORT}",
        "open": f"{_PYTHON} open",
    }


def ensure() -> bool:
    """Install the guard, which the worker's unit starts. Return True if anything was changed."""
    program = files.read_text(pathlib.Path(ports.__file__)) or ""
    new = files.ensure_file(_PROGRAM, program)
    content = templates.render(
        service.TEMPLATES, SERVICE, program=_PROGRAM, state=ports.STATE.name
    )
    changed = services.ensure_unit(SERVICE, content, boot=False) or new
    if new:
        # Without systemctl, which would restart the worker with it. systemd starts it again.
        services.signal(SERVICE, "SIGTERM")
    return changed


def reached_by_others(root: pathlib.Path) -> tuple[int, ...] | None:
    """Return the worker's ports that accept the unprivileged user; None without a worker.

    Raises:
        machine.process.CommandError: that can't be tried.
    """
    if not (root / str(_PROGRAM).lstrip("/")).exists() or not services.main_pid(_WORKER):
        return None
    asked = ",".join(map(str, (*WORKER_PORTS, HEALTH_PORT)))
    argv = [*_AS_NOBODY, *_PYTHON.split(), "reach", asked]
    return tuple(map(int, process.run(argv, timeout=_REACH, told=False).stdout.split()))


def program() -> str:
    """Return the program that was installed, which the worker's unit runs; empty without it."""
    return files.read_text(_PROGRAM) or ""


def remove() -> bool:
    """Remove the guard and its rules, after the worker. Return True if anything was there."""
    removed = services.remove_unit(SERVICE)
    if _PROGRAM.exists():
        ports.open_again()
    removed |= files.ensure_absent(ports.STATE)
    return files.ensure_absent(_PROGRAM) or removed
