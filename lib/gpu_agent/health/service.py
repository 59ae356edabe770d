# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The health watch as a systemd unit: its installation, its state and its removal.

The watch itself never imports this module, which would cost it memory.
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

SERVICE: typing.Final = "gpu-ci-health.service"

_REVISION: typing.Final = "GPU_CI_REVISION"
_RUNNING: typing.Final = ("active", "activating", "reloading")


class WatchError(Exception):
    """The watch can't be had, and all else works as without it; the text says what to do."""


def install(found: Settings) -> bool:
    """Have it run with these settings, from the charm's programs that outlive a hook.

    Returns:
        Whether it was (re)started: that is so where anything that it reads has changed.

    Raises:
        WatchError: systemd can't start it.
    """
    home = (app.HOME / app.CURRENT).resolve()
    if not (home / app.STAMP).exists():  # who could not make it has said why
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
            f"The GPUs are not watched: {error}. See journalctl -u {SERVICE}; tasks get them all "
            "the same"
        ) from error


def remove() -> bool:
    """Have no watch, and nothing that it has left but what it took out. True if any was there."""
    changed = stop()
    for path in (settings.STATE, detect.HANGS):
        changed |= files.ensure_absent(path)
    return retests.remove() or changed


def stop() -> bool:
    """Remove the watch, but not its findings. True if it was there."""
    changed = services.remove_unit(SERVICE)
    for path in (settings.PATH, settings.RUN):
        changed |= files.ensure_absent(path)
    return changed


def is_running() -> bool:
    """Whether it runs now; so it is while nobody has asked for it."""
    if not settings.PATH.exists():
        return True
    return services.show(SERVICE, "ActiveState")["ActiveState"] in _RUNNING


def suspect() -> str:
    """What the GPUs that went out have in common, too many to be believed; empty: nothing."""
    return (files.read_text(settings.RUN / clerk.SUSPECT) or "").strip()


def _folders() -> dict[str, pathlib.Path]:
    """What systemd makes for it, as seen from where it makes such."""
    return {
        "run": settings.RUN.relative_to("/run"),
        "state": settings.STATE.relative_to("/var/lib"),
        "logs": wrapper.LOG.parent.relative_to("/var/log"),
    }
