# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""All software that the charm brings for the host's GPUs: brought, given up, taken away."""

import collections.abc
import functools
import logging

from gpu_agent.gpu.vendors.nvidia import driver_packages
from host import kernel_settings as settings
from host import nvidia_driver as driver
from host import nvidia_driver_change as driver_change
from host import nvidia_toolkit as toolkit
from machine import apt_errors, packages
from plan.model import DriverPlan, HostPlan, ToolkitPlan

Progress = collections.abc.Callable[[str], None]

_log = logging.getLogger(__name__)


def ensure(plan: HostPlan, progress: Progress) -> bool:
    """Have it as planned. Return True if anything changed.

    Killed at any point, it can be called again.

    Raises:
        machine.packages.PackageError: something can't be had, this is the first; all else is there
            but what another package manager at work is in the way of.
    """
    changed, failure = _give_up(plan), None
    works: list[collections.abc.Callable[[Progress], bool]] = []
    if isinstance(wanted := plan.driver, DriverPlan):
        works.append(functools.partial(driver.ensure, wanted))
    if isinstance(toolkit_plan := plan.toolkit, ToolkitPlan):
        works.append(functools.partial(toolkit.ensure, toolkit_plan))
    for number, work in enumerate(works, 1):
        try:
            changed |= work(_numbered(progress, f"{number} of {len(works)}"))
        except packages.PackageError as error:
            failure = failure or error
            if isinstance(error, apt_errors.BusyError):
                break  # The others would wait as long.
    if plan.settings:
        changed |= settings.ensure(plan.nvidia)
    if failure:
        raise failure
    return changed


def _give_up(plan: HostPlan) -> bool:
    # What an earlier revision installed for its option host-packages stays on the machine.
    changed = packages.disown("host-packages")
    if plan.driver is None:
        changed |= driver.release()
    if plan.toolkit is None:
        changed |= toolkit.release()
    if not plan.settings:
        changed |= settings.remove()
    return changed


def _numbered(progress: Progress, step: str) -> Progress:
    return lambda line: progress(f"{line} ({step})")


def remove() -> None:
    """Remove the charm's host software, except packages that others need.

    A driver in use stays, no longer held, so that the process that uses it keeps it.
    """
    settings.remove()
    driver.release()
    toolkit.release()
    if users := driver_change.users():
        _log.warning("NVIDIA's driver stays, since it is in use by %s", ", ".join(users))
        packages.disown(driver_packages.OWNER)
    packages.remove_installed()
