# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The service that watches GPUs' device nodes as a systemd unit.

A hook must not wait for it: the service may itself wait, in juju-exec, for the end of that hook.
"""

import pathlib
import typing

from gpu_agent import install as app
from gpu_agent import paths
from gpu_agent.gpu.vendors import device_nodes as nodes
from machine import files, templates
from machine import systemd as services

SERVICE: typing.Final = "gpu-ci-devices.service"

_REVISION: typing.Final = "GPU_CI_REVISION"
_DISPATCH: typing.Final = pathlib.Path(__file__).resolve().parents[4] / "dispatch"


def install(unit: str, seen: tuple[str, ...]) -> bool:
    """Wake the charm when the nodes differ from these.

    Args:
        unit: Juju's name of this unit, such as `worker/0`.
        seen: names of the nodes when the charm began to look at the machine.

    Returns:
        Whether the service was (re)started.
    """
    nodes.note(seen)
    home = (app.HOME / app.CURRENT).resolve()
    revision = f"{unit}:{home.name}"
    content = templates.render(
        paths.TEMPLATES,
        SERVICE,
        unit=unit,
        app=home,
        dispatch=_DISPATCH,
        variable=_REVISION,
        revision=revision,
    )
    changed = services.ensure_unit(SERVICE, content)
    if not changed and services.started_with(SERVICE, _REVISION, revision):
        return False
    return services.ensure_running(SERVICE, restart=True)


def remove() -> bool:
    """Remove the service. Return True if anything was there."""
    removed = services.remove_unit(SERVICE)
    return files.ensure_absent(nodes.NOTE) or removed
