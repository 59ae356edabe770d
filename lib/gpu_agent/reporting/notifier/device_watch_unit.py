# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The watch on GPUs' device nodes as a systemd unit.

No hook ever waits for it: it may itself be waiting, in juju-exec, for the end of that hook.
"""

import pathlib
import typing

from gpu_agent import install as app
from gpu_agent import paths
from gpu_agent.gpu.kernel import device_nodes as nodes
from machine import files, templates
from machine import systemd as services

SERVICE: typing.Final = "gpu-ci-devices.service"

_REVISION: typing.Final = "GPU_CI_REVISION"
_DISPATCH: typing.Final = pathlib.Path(__file__).resolve().parents[4] / "dispatch"


def install(unit: str, seen: tuple[str, ...]) -> bool:
    """Have the charm woken when the nodes are others than these.

    Args:
        unit: Juju's name of this unit, such as `worker/0`.
        seen: names of the nodes that were here as the charm began to look at the machine.

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
    """Have it woken by Juju's own events alone. Return True if anything was there."""
    removed = services.remove_unit(SERVICE)
    return files.ensure_absent(nodes.NOTE) or removed
