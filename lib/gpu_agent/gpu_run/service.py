# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-run on this machine: the command, its manual page, and the socket that leads to root's part.

What runs goes on whatever becomes of these. Who waits for GPUs is told that the service has ended.
"""

import grp
import pathlib
import typing

from gpu_agent import install as app
from gpu_agent import paths as wrapper
from gpu_agent.gpu_run import scope as room
from machine import files, process, templates
from machine import systemd as services
from machine import systemd_transient as transient

COMMAND: typing.Final = pathlib.Path("/usr/local/bin/gpu-run")
MANUAL: typing.Final = pathlib.Path("/usr/local/share/man/man1/gpu-run.1")
SOCKET: typing.Final = "gpu-ci-run.socket"
SERVICE: typing.Final = "gpu-ci-run@.service"
PATH: typing.Final = pathlib.Path("/run/gpu-run.sock")

_LAST: typing.Final = "gpu-run-end.service"
# An error of systemd's is no end of a command.
_WAIT: typing.Final = """
until left=$(systemctl list-units --plain --no-legend "$1") && [ -z "$left" ]; do sleep 5; done
exec systemctl stop "$2"
"""
_CLIENT: typing.Final = pathlib.Path(__file__).with_name("client.py")


class GpuRunError(Exception):
    """gpu-run can't be had, and all else works as without it; the text says what to do."""


def install(group: str) -> bool:
    """Have it for members of a group. Return True if anything was changed.

    Raises:
        GpuRunError: there is no such group, or systemd can't have the socket.
    """
    try:
        grp.getgrnam(group)
    except KeyError as error:
        raise GpuRunError(
            f"There is no group {group!r} on this machine, which gpu-run-group names: make it "
            f"(sudo groupadd --system {group}) and add who may use GPUs (sudo gpasswd --add USER "
            f"{group}), or name another"
        ) from error
    home = (app.HOME / app.CURRENT).resolve()
    if not (home / app.STAMP).exists():  # who could not make it has said why
        return False
    service = templates.render(
        wrapper.TEMPLATES, SERVICE, app=home, stamp=app.STAMP, python=wrapper.PYTHON
    )
    # One of an earlier version, or for another group, serves on those that it has, and ends.
    door = SERVICE.replace("@", f"@{home.name}-{group}")
    socket = templates.render(wrapper.TEMPLATES, SOCKET, group=group, socket=PATH, service=door)
    # It would end what begins from now on.
    services.ensure_stopped(_LAST)
    # First, and last to go: while it is there, something of the rest may be.
    changed = files.ensure_file(COMMAND, _CLIENT.read_text(), mode=0o755)
    try:
        changed |= services.ensure_template(SERVICE, service)
        renewed = services.ensure_unit(SOCKET, socket)
        if renewed or services.show(SOCKET, "ActiveState")["ActiveState"] != "active":
            # systemd begins to listen for no service that runs already.
            services.ensure_stopped(door)
        changed |= services.ensure_running(SOCKET, restart=renewed) or renewed
    except process.CommandError as error:
        raise GpuRunError(
            f"gpu-run can't be used: {error}. See systemctl status {SOCKET}"
        ) from error
    files.ensure_directory(MANUAL.parent)
    return (
        files.ensure_file(MANUAL, templates.render(wrapper.TEMPLATES, "gpu-run.1", group=group))
        or changed
    )


def remove() -> bool:
    """Take it away. Commands that run keep their GPUs to their end. True if any was there."""
    if not COMMAND.exists():
        return False
    services.remove_unit(SOCKET)
    services.remove_template(SERVICE)
    # Else it stays, empty, to the next boot.
    if services.units(room.COMMANDS):
        argv = ["/bin/sh", "-c", _WAIT, "sh", room.COMMANDS, room.SLICE]
        transient.start(_LAST, argv, description="Waits for the last gpu-run", properties={})
    else:
        services.ensure_stopped(room.SLICE)
    for path in (MANUAL, COMMAND):
        files.ensure_absent(path)
    return True
