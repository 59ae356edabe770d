# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""All software that the charm brings for the host's GPUs: brought, given up, taken away."""

import collections.abc
import dataclasses
import functools
import logging
import typing

from gpu_agent.gpu.vendors.nvidia import driver_packages
from host import kernel_settings, nvidia_driver
from host import nvidia_driver_change as driver_change
from host.nvidia_toolkit import NvidiaToolkit
from host.package_manager import Progress
from machine import apt_errors, packages
from plan.model import DriverPlan, HostPlan, ToolkitPlan

_log = logging.getLogger(__name__)

_Plan_contra = typing.TypeVar("_Plan_contra", contravariant=True)


class Part(typing.Protocol[_Plan_contra]):
    """Software that comes as packages."""

    def ensure(self, plan: _Plan_contra, progress: Progress) -> bool:
        """Have it as planned. Return True if anything changed."""
        ...

    def release(self) -> bool:
        """Give it up; its packages stay. Return True if there was anything."""
        ...


class Settings(typing.Protocol):
    """Settings of the kernel and of the driver."""

    def ensure(self, nvidia: bool) -> bool:
        """Have them. Return True if anything changed."""
        ...

    def remove(self) -> bool:
        """Undo them. Return True if there was anything."""
        ...


@dataclasses.dataclass(frozen=True)
class Software:
    """The host's software, in the order in which it comes.

    Attributes:
        driver: NVIDIA's driver.
        toolkit: NVIDIA's container toolkit.
        settings: the settings for work on GPUs.
    """

    driver: Part[DriverPlan] = nvidia_driver
    toolkit: Part[ToolkitPlan] = dataclasses.field(default_factory=NvidiaToolkit)
    settings: Settings = kernel_settings

    def ensure(self, plan: HostPlan, progress: Progress) -> bool:
        """Have it as planned. Return True if anything changed.

        Killed at any point, it can be called again.

        Raises:
            machine.packages.PackageError: something can't be had, this is the first; all else is
                there but what another package manager at work is in the way of.
        """
        changed, failure = self._give_up(plan), None
        works: list[collections.abc.Callable[[Progress], bool]] = []
        if isinstance(driver_plan := plan.driver, DriverPlan):
            works.append(functools.partial(self.driver.ensure, driver_plan))
        if isinstance(toolkit_plan := plan.toolkit, ToolkitPlan):
            works.append(functools.partial(self.toolkit.ensure, toolkit_plan))
        for number, work in enumerate(works, 1):
            try:
                changed |= work(_numbered(progress, f"{number} of {len(works)}"))
            except packages.PackageError as error:
                failure = failure or error
                if isinstance(error, apt_errors.BusyError):
                    break  # The others would wait as long.
        if plan.settings:
            changed |= self.settings.ensure(plan.nvidia)
        if failure:
            raise failure
        return changed

    def remove(self) -> None:
        """Remove the charm's host software, except packages that others need.

        A driver in use stays, no longer held, so that the process that uses it keeps it.
        """
        self.settings.remove()
        self.driver.release()
        self.toolkit.release()
        if users := driver_change.users():
            _log.warning("NVIDIA's driver stays, since it is in use by %s", ", ".join(users))
            packages.disown(driver_packages.OWNER)
        packages.remove_installed()

    def _give_up(self, plan: HostPlan) -> bool:
        # What an earlier revision installed for its option host-packages stays on the machine.
        changed = packages.disown("host-packages")
        if plan.driver is None:
            changed |= self.driver.release()
        if plan.toolkit is None:
            changed |= self.toolkit.release()
        if not plan.settings:
            changed |= self.settings.remove()
        return changed


HERE: typing.Final = Software()


def _numbered(progress: Progress, step: str) -> Progress:
    return lambda line: progress(f"{line} ({step})")
