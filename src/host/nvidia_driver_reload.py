# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Load the installed modules of NVIDIA's driver in place of the loaded ones.

Services that use the modules are stopped for it. The record of what is away lasts over a kill.
"""

import collections.abc
import dataclasses
import json
import logging
import pathlib
import typing

from gpu_agent import paths
from gpu_agent.gpu.vendors.nvidia import kernel_modules
from host import nvidia_fabric_manager
from machine import files, packages, process, systemd

Progress = collections.abc.Callable[[str], None]

SERVICES: typing.Final = (
    *(nvidia_fabric_manager.SERVICE, "nvidia-persistenced.service", "nvidia-dcgm.service"),
    "gpu-ci-health.service",
)
"""Services that use the modules as long as they run, and that can stop while no job runs.

The last one is the charm's own watch.
"""

_log = logging.getLogger(__name__)


class Services(typing.Protocol):
    """What a reload asks of systemd, as machine.systemd does it."""

    def main_pid(self, name: str) -> int:
        """Return the process id of a service; 0 if it does not run."""
        ...

    def show(self, name: str, *properties: str) -> dict[str, str]:
        """Return a service's properties."""
        ...

    def ensure_stopped(self, name: str) -> bool:
        """Stop a service."""
        ...

    def ensure_running(self, name: str, *, restart: bool) -> bool:
        """Start a service."""
        ...


class Modules(typing.Protocol):
    """What a reload asks of the kernel's modules, as nvidia.kernel_modules does it."""

    def stack(self) -> tuple[str, ...]:
        """Return the loaded modules, in the order in which they can be unloaded."""
        ...

    def unload(self, modules: tuple[str, ...]) -> bool:
        """Unload these modules; return whether all are out."""
        ...

    def load(self) -> bool:
        """Load nvidia itself."""
        ...

    def add(self, modules: tuple[str, ...]) -> None:
        """Load these modules after nvidia."""
        ...

    def is_loaded(self) -> bool:
        """Return whether nvidia is loaded."""
        ...

    def refused(self, root: pathlib.Path) -> str:
        """Return why nvidia could not be loaded; or empty."""
        ...


@dataclasses.dataclass(frozen=True)
class _Taken:
    """What a reload has taken away, in the order in which it comes back."""

    services: list[str] = dataclasses.field(default_factory=list[str])
    modules: list[str] = dataclasses.field(default_factory=list[str])


@dataclasses.dataclass(frozen=True)
class Reload:
    """A reload of the modules.

    Attributes:
        record: the file that lists the services and modules to put back.
        services: the machine's services.
        modules: the kernel's modules.
    """

    record: pathlib.Path = paths.STATE / "driver-reload.json"
    services: Services = systemd
    modules: Modules = kernel_modules

    def run(self, progress: Progress) -> bool:
        """Load the module that is on the disk in place of the loaded one.

        Returns:
            Whether that was done; False if something holds the loaded one.

        Raises:
            machine.packages.PackageError: the new one can't be loaded, or services can't be
                stopped for it; the text is what modprobe or systemctl said.
        """
        progress("reloading NVIDIA's kernel module")
        self.end()
        modules, kept = self.modules.stack(), self._taken() or _Taken()
        try:
            running = [
                name for name in SERVICES if name in kept.services or self.services.main_pid(name)
            ]
            # Before the first service stops: the next hook puts back what a killed one took away.
            self._take(_Taken(running, [*dict.fromkeys([*kept.modules, *modules[::-1]])]))
            for name in running:
                self.services.ensure_stopped(name)
            out = self.modules.unload(modules)
        except process.CommandError as error:
            raise packages.PackageError(
                f"{error}: see 'sudo dmesg | tail'", passes=error.starved
            ) from error
        finally:
            self.end()
        if out and not self.modules.is_loaded():
            refused = self.modules.refused(kernel_modules.ROOT)
            why = refused or "the machine has no time or memory for it now"
            raise packages.PackageError(
                f"NVIDIA's kernel module is out and can't be loaded again: {why}: see 'sudo dmesg "
                "| tail', or reboot",
                passes=not refused,
            )
        return out

    def end(self) -> bool:
        """Put back what a reload took away: modules beside nvidia itself, and services.

        Each is tried. A failed one stays noted for the next time.

        Returns:
            Whether less is left than before.
        """
        kept = self._taken()
        if kept is None:
            return False
        try:
            self.modules.load()
            self.modules.add(tuple(kept.modules))
        except process.CommandError as error:
            _log.warning("after a reload of NVIDIA's kernel module: %s", error)
            return False
        left = [name for name in kept.services if not self._is_back(name)]
        if left:
            return self._take(_Taken(left, kept.modules))
        return files.ensure_absent(self.record)

    def _taken(self) -> _Taken | None:
        said = files.read_text(self.record)
        return _Taken(**json.loads(said)) if said else None

    def _take(self, taken: _Taken) -> bool:
        """Keep on the disk what is away. Return True if it was something else before."""
        files.ensure_directory(self.record.parent)
        return files.ensure_file(self.record, json.dumps(dataclasses.asdict(taken)))

    def _is_back(self, name: str) -> bool:
        """Return whether a service runs again, or is gone with its package."""
        try:
            if self.services.show(name, "LoadState")["LoadState"] == "loaded":
                self.services.ensure_running(name, restart=False)
        except process.CommandError as error:
            _log.warning("after a reload of NVIDIA's kernel module: %s", error)
            return False
        return True
