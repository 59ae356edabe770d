# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-ci-runners.service, the daemon that keeps the runners: installation, state and removal."""

import dataclasses
import hashlib
import json
import pathlib
import typing

from ci.runners import settings
from ci.runners.settings import Settings
from ci.runners.units import DOOR, HOMES, PRIVATE
from gpu_agent import install as app
from gpu_agent import paths
from machine import files, process, templates
from machine import systemd as services
from machine.errors import PartError

SERVICE: typing.Final = "gpu-ci-runners.service"

_TEMPLATES: typing.Final = pathlib.Path(__file__).resolve().parents[3] / "templates"
_REVISION: typing.Final = "GPU_CI_REVISION"


class RunnersError(PartError):
    """The daemon cannot run; the text says what to do. Running jobs go on."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What the daemon reports.

    Attributes:
        fault: the name of a ci.runners.service.Fault; empty: the service can be asked.
        text: what is wrong; or empty.
        jobs: whose job each runner has, by the name of its unit: owner, repository, job, run.
    """

    fault: str = ""
    text: str = ""
    jobs: tuple[tuple[str, tuple[str, str, str, str]], ...] = ()


def install(found: Settings) -> bool:
    """Run the daemon with these settings, from the programs that outlive a hook.

    Returns:
        Whether it was (re)started, which happens if anything that it reads has changed.

    Raises:
        RunnersError: systemd can't start it.
    """
    home = (app.HOME / app.CURRENT).resolve()
    if not (home / app.STAMP).exists():  # install.py has reported why
        return False
    text = settings.as_text(found)
    files.ensure_directory(settings.PATH.parent)
    files.ensure_file(settings.PATH, text, mode=0o600)
    revision = f"{home.name}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    content = templates.render(
        _TEMPLATES,
        SERVICE,
        app=home,
        stamp=app.STAMP,
        python=paths.PYTHON,
        run=settings.RUN.relative_to("/run"),
        homes=HOMES.relative_to("/var/lib"),
        private=PRIVATE,
        variable=_REVISION,
        revision=revision,
    )
    try:
        changed = services.ensure_unit(SERVICE, content)
        if not changed and services.started_with(SERVICE, _REVISION, revision):
            return False
        # It is about the settings before; the daemon wakes the charm if it has another trouble.
        files.ensure_absent(settings.REPORT)
        return services.ensure_running(SERVICE, restart=True)
    except process.CommandError as error:
        raise RunnersError(
            f"The service that keeps the runners does not run: {error}. See journalctl -u "
            f"{SERVICE}; running jobs go on"
        ) from error


def rest(*, rests: bool) -> bool:
    """Let the daemon begin no runner, or begin them again. Return True if that is a change.

    Raises:
        OSError: the settings cannot be written.
        RunnersError: systemd can't restart the daemon.
    """
    found = current()
    if found is None or found.rests is rests:
        return False
    return install(dataclasses.replace(found, rests=rests))


def current() -> Settings | None:
    """Return the daemon's settings; None if there are none that can be read."""
    text = files.read_text(settings.PATH)
    try:
        return settings.parse(text) if text else None
    except ValueError:
        return None


def report() -> Report:
    """Return the daemon's last report; an empty one if it is missing."""
    try:
        found = json.loads(files.read_text(settings.REPORT) or "{}")
        jobs = tuple((one["unit"], _names(one["job"])) for one in found["runners"] if one["job"])
        return Report(str(found["fault"]), str(found["text"]), jobs)
    except (ValueError, LookupError, TypeError):
        return Report()


def is_running() -> bool:
    """Whether the daemon runs."""
    return services.is_running(SERVICE)


def stop() -> bool:
    """End the daemon; runners go on. Return True if it ran."""
    return services.ensure_stopped(SERVICE)


def is_here(service: str = "") -> bool:
    """Whether anything of the daemon or of a runner is on this machine.

    Args:
        service: the name of a CI service: whether it is for this one; empty: for any.
    """
    if service:
        found = current()
        return found is not None and found.service == service
    return settings.PATH.exists() or bool(files.entries(HOMES))


def remove() -> bool:
    """Remove the daemon with its settings. Return True if it was there."""
    changed = services.remove_unit(SERVICE)
    for path in (settings.PATH, settings.RUN, DOOR):
        changed |= files.ensure_absent(path)
    for path in (HOMES, PRIVATE / HOMES.name):
        changed |= files.remove_if_empty(path)
    return changed


def _names(job: dict[str, str]) -> tuple[str, str, str, str]:
    owner, _, repository = job["repository"].partition("/")
    return owner, repository, job["name"], job["run"]
