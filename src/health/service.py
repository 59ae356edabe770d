# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The health watch as a systemd unit: had where GPUs are to be watched, and taken away again.

The charm's side of it. The watch itself never imports this: it would pay for it with memory.
"""

import hashlib
import pathlib
import typing

from gpu import detect
from gpu.inventory import State
from health import clerk, settings
from health.settings import Settings
from machine import app, files, process, templates
from machine import systemd as services
from machine import tcp_connections as sockets
from oci import quarantine, retests, wrapper
from plan import watched
from plan.options import Part
from plan.parts import Plan
from plan.state import UnitState

SERVICE: typing.Final = "gpu-ci-health.service"

_REVISION: typing.Final = "GPU_CI_REVISION"
_DISPATCH: typing.Final = pathlib.Path(__file__).resolve().parents[2] / "dispatch"
_RUNNING: typing.Final = ("active", "activating", "reloading")


class WatchError(Exception):
    """The watch can't be had, and all else works as without it; the text says what to do."""


def ensure(state: UnitState, wanted: Plan) -> bool:
    """Have the GPUs watched as the options say.

    It stays as it is where an option of it, or of which GPUs are meant, can't be used.

    Args:
        state: what this unit was decided on.
        wanted: what it is to be.

    Returns:
        Whether the watch was (re)started or taken away.

    Raises:
        WatchError: systemd can't start it.
    """
    if state.inventory is None or state.leaving:
        return remove()
    if {Part.WATCH, Part.GPU, Part.UNIT} & state.frozen:
        return False
    if state.options.gpu_health == "off":
        return _stop()
    found = _settings(state, wanted)
    if found.cards or settings.PATH.exists():
        return install(found)
    return False


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
    changed = _stop()
    for path in (settings.STATE, detect.HANGS):
        changed |= files.ensure_absent(path)
    return retests.remove() or changed


def port(state: UnitState) -> int | None:
    """Where the watch of such a unit serves metrics; None: nowhere."""
    options = state.options
    asked = state.inventory is not None and not state.leaving and options.gpu_health != "off"
    return options.gpu_metrics_port or None if asked else None


def taken_port() -> int:
    """Return the port of the metrics if another program has it; else 0.

    Raises:
        OSError: that can't be looked at.
    """
    found = _earlier()
    asked = found.metrics_port if found else 0
    return asked if asked and sockets.is_taken(asked, SERVICE) else 0


def is_running() -> bool:
    """Whether it runs now; so it is while nobody has asked for it."""
    if not settings.PATH.exists():
        return True
    return services.show(SERVICE, "ActiveState")["ActiveState"] in _RUNNING


def suspect() -> str:
    """What the GPUs that went out have in common, too many to be believed; empty: nothing."""
    return (files.read_text(settings.RUN / clerk.SUSPECT) or "").strip()


def _stop() -> bool:
    changed = services.remove_unit(SERVICE)
    for path in (settings.PATH, settings.RUN):
        changed |= files.ensure_absent(path)
    return changed


def _folders() -> dict[str, pathlib.Path]:
    """What systemd makes for it, as seen from where it makes such."""
    return {
        "run": settings.RUN.relative_to("/run"),
        "state": settings.STATE.relative_to("/var/lib"),
        "logs": wrapper.LOG.parent.relative_to("/var/log"),
    }


def _settings(state: UnitState, wanted: Plan) -> Settings:
    options, inventory, earlier = state.options, state.inventory, _earlier() or Settings("", "")
    is_told = inventory is not None and inventory.state is State.READY
    # What a boot has not brought back is gone for good; nothing is while the driver tells nothing.
    boot = state.machine.boot if is_told else earlier.boot
    known = earlier.cards if earlier.boot in ("", boot) else ()
    driver = (inventory.driver, inventory.cuda) if inventory and is_told else None
    return Settings(
        unit=state.unit,
        dispatch=str(_DISPATCH),
        mode=options.gpu_health,
        vendor=inventory.vendor.value if inventory else "",
        boot=boot,
        cards=watched.cards(state, wanted.choice, known),
        driver=driver[0] if driver else earlier.driver,
        cuda=driver[1] if driver else earlier.cuda,
        store=str(wrapper.STORE),
        cordons=(str(wrapper.CORDONS), str(quarantine.PATH)),
        quarantine=str(quarantine.PATH),
        max_quarantined=options.max_quarantined,
        job_log=options.job_log,
        unused=options.gpu_unused,
        metrics_port=options.gpu_metrics_port,
        recovery=options.gpu_recovery,
    )


def _earlier() -> Settings | None:
    text = files.read_text(settings.PATH)
    try:
        return settings.parse(text) if text else None
    except ValueError:
        return None
