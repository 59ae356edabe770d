# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The service that connects GPUs by NVSwitches: started with the driver, and let go."""

import collections.abc
import json
import logging
import pathlib
import typing

from gpu_agent import paths
from machine import files, packages, process, systemd

SERVICE: typing.Final = "nvidia-fabricmanager.service"

# The service whose start at boot the charm has enabled.
_ENABLED: typing.Final = paths.STATE / "driver-services.json"

_log = logging.getLogger(__name__)


def ensure() -> bool:
    """Start the service, now and after each boot. Return True if that changed anything.

    Raises:
        machine.packages.PackageError: it does not start.
    """
    try:
        changed = False
        if systemd.show(SERVICE, "UnitFileState")["UnitFileState"] == "disabled":
            # Before it is done, so that it is undone whatever ends this hook.
            files.ensure_directory(_ENABLED.parent)
            files.ensure_file(_ENABLED, json.dumps([SERVICE]))
            changed = systemd.ensure_enabled(SERVICE)
        return systemd.ensure_running(SERVICE, restart=False) or changed
    except process.CommandError as error:
        raise packages.PackageError(
            f"the fabric manager of the GPUs' NVSwitches does not start: {error}: see "
            f"'journalctl -u {SERVICE}'"
        ) from error


def release(
    enabled: pathlib.Path = _ENABLED,
    disable: collections.abc.Callable[[str], bool] = systemd.ensure_not_enabled,
) -> bool:
    """Disable the start at boot that the charm enabled. The service goes on.

    If systemd can't do that now, it stays written down for the next time.

    Args:
        enabled: the record of what the charm enabled.
        disable: disables a service at boot.

    Returns:
        Whether there was anything to disable.
    """
    try:
        for name in json.loads(files.read_text(enabled) or "[]"):
            # Stopped, it would take the GPUs from running jobs.
            disable(name)
        return files.ensure_absent(enabled)
    except process.CommandError as error:
        _log.warning("each boot starts it as before: %s", error)
    return False
