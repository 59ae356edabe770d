# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""One wake of the charm, as a systemd unit that another one of ours starts when it ends.

So Juju's status shows the result of a long program, such as a burn-in, within seconds of its end,
even if the program was killed.
"""

import pathlib
import typing

from gpu_agent import paths
from gpu_agent.reporting.notifier import device_watch as watch
from machine import systemd as services
from machine import templates

SERVICE: typing.Final = "gpu-ci-wake.service"

_DISPATCH: typing.Final = pathlib.Path(__file__).resolve().parents[4] / "dispatch"


def install(unit: str) -> bool:
    """Install the unit without starting it. Return True if anything had to be changed.

    Args:
        unit: Juju's name of this unit, such as `worker/0`.
    """
    content = templates.render(
        paths.TEMPLATES,
        SERVICE,
        command=watch.command(unit),
        dispatch=_DISPATCH,
        limit=f"{watch.HOOKS:.0f}",
    )
    return services.ensure_unit(SERVICE, content, boot=False)


def remove() -> bool:
    """Remove the unit. Return True if anything was there."""
    return services.remove_unit(SERVICE)
