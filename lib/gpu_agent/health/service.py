# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The GPU health service as a systemd unit: installation, state and removal.

The service itself does not import this module, to save memory.
"""

import hashlib
import pathlib
import typing

from gpu_agent import install as app
from gpu_agent import paths as wrapper
from gpu_agent.availability import retests
from gpu_agent.gpu.vendors import detect
from gpu_agent.health import executor as clerk
from gpu_agent.health import settings
from gpu_agent.health.settings import Settings
from machine import files, process, templates
from machine import systemd as services
from machine.errors import PartError

SERVICE: typing.Final = "gpu-ci-health.service"

_REVISION: typing.Final = "GPU_CI_REVISION"


class WatchError(PartError):
    """The service cannot run; the text says what to do. The worker works without it."""


def install(found: Settings) -> bool:
    """Run the service with these settings, from the programs that outlive a hook.

    Returns:
        Whether it was (re)started, which happens if anything that it reads has changed.

    Raises:
        WatchError: systemd can't start it.
    """
    home = (app.HOME / app.CURRENT).resolve()
    if not (home / app.STAMP).exists():  # install.py has reported why
        return False
    text = settings.as_text(found)
    files.ensure_directory(settings.PATH.parent)
    files.ensure_file(settings.PATH, text)
    revision = f"{home.name}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    content = templates.render(
        wrapper.TEMPLATES,
        SERVICE,
        app=home,
        stamp=app.STAMP,
        python=wrapper.PYTHON,
        dispatch=found.dispatch,
        variable=_REVISION,
        revision=revision,
        **_folders(),
    )
    try:
        changed = services.ensure_unit(SERVICE, content)
        if not changed and services.started_with(SERVICE, _REVISION, revision):
            return False
        return services.ensure_running(SERVICE, restart=True)
    except process.CommandError as error:
        raise WatchError(
            f"The GPU health service does not run: {error}. See journalctl -u {SERVICE}; tasks "
            "still get GPUs"
        ) from error


def remove() -> bool:
    """Remove the service and its files, except records of GPUs. Return True if any was there."""
    changed = stop()
    for path in (settings.STATE, detect.HANGS):
        changed |= files.ensure_absent(path)
    return retests.remove() or changed


def stop() -> bool:
    """Remove the service, but not its findings. Return True if it was there."""
    changed = services.remove_unit(SERVICE)
    for path in (settings.PATH, settings.RUN):
        changed |= files.ensure_absent(path)
    return changed


def is_running() -> bool:
    """Whether the service runs; True also if it is not wanted."""
    if not settings.PATH.exists():
        return True
    return services.is_running(SERVICE)


def suspect() -> str:
    """The cause for which the circuit breaker has tripped; empty: it has not."""
    return (files.read_text(settings.RUN / clerk.SUSPECT) or "").strip()


def _folders() -> dict[str, pathlib.Path]:
    """The folders that systemd creates for the unit, relative to where it creates them."""
    return {
        "run": settings.RUN.relative_to("/run"),
        "state": settings.STATE.relative_to("/var/lib"),
        "logs": wrapper.LOG.parent.relative_to("/var/log"),
    }
