# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Install gpu-run on this machine: the command, its manual page and the socket of its service.

Running commands continue if these are removed or replaced. Waiting ones report that the service
has ended.
"""

import grp
import pathlib
import typing

from gpu_agent import install as app
from gpu_agent import paths
from gpu_agent.gpu_run import scope
from machine import files, process, templates
from machine import systemd as services
from machine import systemd_transient as transient
from machine.errors import PartError

COMMAND: typing.Final = pathlib.Path("/usr/local/bin/gpu-run")
MANUAL: typing.Final = pathlib.Path("/usr/local/share/man/man1/gpu-run.1")
SOCKET: typing.Final = "gpu-ci-run.socket"
SERVICE: typing.Final = "gpu-ci-run@.service"
PATH: typing.Final = pathlib.Path("/run/gpu-run.sock")

_LAST: typing.Final = "gpu-run-end.service"
# An error of systemctl does not mean that a command has ended.
_WAIT: typing.Final = """
until left=$(systemctl list-units --plain --no-legend "$1") && [ -z "$left" ]; do sleep 5; done
exec systemctl stop "$2"
"""
_CLIENT: typing.Final = pathlib.Path(__file__).with_name("client.py")


class GpuRunError(PartError):
    """gpu-run cannot be installed, and everything else works; the text has the remedy."""


def install(group: str) -> bool:
    """Install gpu-run for members of a group. Return True if anything was changed.

    Raises:
        GpuRunError: there is no such group, or systemd cannot start the socket.
    """
    try:
        grp.getgrnam(group)
    except KeyError as error:
        raise GpuRunError(
            f"Group {group!r} of gpu-run-group does not exist on this machine: create it (sudo "
            f"groupadd --system {group}) and add users (sudo gpasswd --add USER {group}), or set "
            "another group"
        ) from error
    home = (app.HOME / app.CURRENT).resolve()
    if not (home / app.STAMP).exists():  # the step that failed to install it has reported that
        return False
    service = templates.render(
        paths.TEMPLATES, SERVICE, app=home, stamp=app.STAMP, python=paths.PYTHON
    )
    # A door of an earlier version, or for another group, serves its connections and ends.
    door = SERVICE.replace("@", f"@{home.name}-{group}")
    socket = templates.render(paths.TEMPLATES, SOCKET, group=group, socket=PATH, service=door)
    # It would end commands that start from now on.
    services.ensure_stopped(_LAST)
    # Installed first and removed last: while it exists, other parts may exist.
    changed = files.ensure_file(COMMAND, _CLIENT.read_text(), mode=0o755)
    try:
        changed |= services.ensure_template(SERVICE, service)
        renewed = services.ensure_unit(SOCKET, socket)
        if renewed or services.show(SOCKET, "ActiveState")["ActiveState"] != "active":
            # systemd does not start to listen for a service that runs already.
            services.ensure_stopped(door)
        changed |= services.ensure_running(SOCKET, restart=renewed) or renewed
    except process.CommandError as error:
        raise GpuRunError(
            f"gpu-run cannot be installed: {error}. See systemctl status {SOCKET}"
        ) from error
    files.ensure_directory(MANUAL.parent)
    return (
        files.ensure_file(MANUAL, templates.render(paths.TEMPLATES, "gpu-run.1", group=group))
        or changed
    )


def remove() -> bool:
    """Remove gpu-run. Running commands keep their GPUs. Return True if it was installed."""
    if not COMMAND.exists():
        return False
    services.remove_unit(SOCKET)
    services.remove_template(SERVICE)
    # Otherwise it stays, empty, until the next boot.
    if services.units(scope.COMMANDS):
        argv = ["/bin/sh", "-c", _WAIT, "sh", scope.COMMANDS, scope.SLICE]
        transient.start(_LAST, argv, description="Waits for the last gpu-run", properties={})
    else:
        services.ensure_stopped(scope.SLICE)
    for path in (MANUAL, COMMAND):
        files.ensure_absent(path)
    return True
