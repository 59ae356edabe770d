# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Installs the watchdog: systemd restarts a worker that hangs, and its builds go on."""

import pathlib
import typing

from ci.concourse import service
from ci.concourse.worker import http_watchdog as unanswered
from machine import files, templates
from machine import systemd as services

SERVICE: typing.Final = "concourse-worker-watch.service"
_PROGRAM: typing.Final = pathlib.Path("/usr/local/lib/concourse-worker-watch")
# In seconds. A worker with a busy disk may take minutes to list its volumes, and a restart does
# not help.
_PATIENCE: typing.Final = 300


def ensure(port: int) -> bool:
    """Run the watchdog beside the worker. Return True if anything was changed.

    Args:
        port: where the worker tells whether it is well.
    """
    program = files.read_text(pathlib.Path(unanswered.__file__)) or ""
    wrote = files.ensure_file(_PROGRAM, program)
    content = templates.render(
        service.TEMPLATES, SERVICE, program=_PROGRAM, port=port, patience=_PATIENCE
    )
    wrote |= services.ensure_unit(SERVICE, content)
    return services.ensure_running(SERVICE, restart=wrote) or wrote


def remove() -> bool:
    """Take the watch away. Return True if anything of it was there."""
    removed = services.remove_unit(SERVICE)
    return files.ensure_absent(_PROGRAM) or removed
