# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""NVIDIA's driver: have it installed, loaded, matched and let go."""

import collections.abc
import dataclasses
import json
import logging
import typing

from gpu_agent import paths
from gpu_agent.gpu.vendors.nvidia import driver_packages, driver_state, kernel_modules
from gpu_agent.gpu.vendors.nvidia.driver_packages import DriverError
from gpu_agent.model.host import Driver
from machine import apt, files, packages, process
from machine import systemd as services
from plan.model import DriverPlan

Progress = collections.abc.Callable[[str], None]

_MANAGER: typing.Final = "nvidia-fabricmanager.service"
# What holds the module as long as it runs, and can be away for a moment where no job runs.
# The last one is the charm's own watch.
_SERVICES: typing.Final = (
    *(_MANAGER, "nvidia-persistenced.service", "nvidia-dcgm.service", "gpu-ci-health.service"),
)
# What was taken from a reload's way, to be put back; and whose start at boot is our doing.
_RELOAD: typing.Final = paths.STATE / "driver-reload.json"
_ENABLED: typing.Final = paths.STATE / "driver-services.json"

_log = logging.getLogger(__name__)

__all__ = ["DriverError", "end_reload", "ensure", "release", "reload"]


@dataclasses.dataclass(frozen=True)
class _Taken:
    """What a reload has taken away, in the order in which it comes back."""

    services: list[str] = dataclasses.field(default_factory=list[str])
    modules: list[str] = dataclasses.field(default_factory=list[str])


def ensure(plan: DriverPlan, progress: Progress) -> bool:
    """Install the driver as planned: packages, the loaded module, the fabric manager's service.

    An installed driver keeps its version. The running kernel and that of the next boot get its
    module. An error of modprobe is not raised here: driver_state.look reports it.

    Returns:
        Whether anything was changed.

    Raises:
        machine.packages.PackageError: it failed; the text says why and has the next step.
        gpu_agent.model.errors.UnknownError: the installed driver cannot be read.
    """
    found = driver_state.look()
    if driver_state.is_half_ours():
        apt.end_interruption()
        found = driver_state.look()
    if found.is_anothers:
        return False
    if plan.userspace:
        return _ensure_userspace(plan.userspace, found, progress)
    if found.container:
        return False
    # Before the packages, which make the boot's first files of it.
    changed = kernel_modules.oust_nouveau()
    changed |= _ensure_packages(plan, found, progress)
    changed |= _load(progress)
    # One of another version than the module does not start: that waits for a reboot.
    loaded = kernel_modules.loaded(kernel_modules.ROOT) if plan.fabric_manager else ""
    if loaded and loaded == driver_packages.look().version:
        changed |= _ensure_manager()
    return changed


def reload(progress: Progress) -> bool:
    """Load the module that is on the disk in place of the loaded one.

    Returns:
        Whether that was done; False if something holds the loaded one.

    Raises:
        DriverError: the new one can't be loaded, or services can't be stopped for it; the text is
            what modprobe or systemctl said.
    """
    progress("reloading NVIDIA's kernel module")
    end_reload()
    modules, kept = kernel_modules.stack(), _taken() or _Taken()
    try:
        running = [name for name in _SERVICES if name in kept.services or services.main_pid(name)]
        # Before the first one stops: what a killed hook has taken away, the next one puts back.
        _take(_Taken(running, [*dict.fromkeys([*kept.modules, *modules[::-1]])]))
        for name in running:
            services.ensure_stopped(name)
        out = kernel_modules.unload(modules)
    except process.CommandError as error:
        raise DriverError(f"{error}: see 'sudo dmesg | tail'", passes=error.starved) from error
    finally:
        end_reload()
    if out and not kernel_modules.is_loaded():
        refused = kernel_modules.refused(kernel_modules.ROOT)
        why = refused or "the machine has no time or memory for it now"
        raise DriverError(
            f"NVIDIA's kernel module is out and can't be loaded again: {why}: see 'sudo dmesg "
            "| tail', or reboot",
            passes=not refused,
        )
    return out


def end_reload() -> bool:
    """Put back what a reload took away: modules beside nvidia itself, and services.

    Each is tried. A failed one stays noted for the next time.

    Returns:
        Whether less is left than before.
    """
    kept = _taken()
    if kept is None:
        return False
    try:
        kernel_modules.load()
        kernel_modules.add(tuple(kept.modules))
    except process.CommandError as error:
        _log.warning("after a reload of NVIDIA's kernel module: %s", error)
        return False
    left = [name for name in kept.services if not _is_back(name)]
    return _take(_Taken(left, kept.modules)) if left else files.ensure_absent(_RELOAD)


def release() -> bool:
    """Let go of the driver: others may move it. It stays, and so does what is loaded.

    A service whose start at boot systemd can't take back now stays written down.

    Returns:
        Whether anything was changed.

    Raises:
        machine.packages.PackageError: apt can't take the holds away.
    """
    changed = end_reload()
    try:
        for name in json.loads(files.read_text(_ENABLED) or "[]"):
            # It goes on: stopped, it would take the GPUs from running jobs.
            services.ensure_not_enabled(name)
        changed |= files.ensure_absent(_ENABLED)
    except process.CommandError as error:
        _log.warning("each boot starts it as before: %s", error)
    changed |= kernel_modules.release()
    return packages.release_holds(driver_packages.OWNER) or changed


def _ensure_packages(plan: DriverPlan, found: Driver, progress: Progress) -> bool:
    if found.ours:
        return _complete(plan, found, progress)
    return _install(plan.branch, found, progress, fabric_manager=plan.fabric_manager)


def _install(branch: str, found: Driver, progress: Progress, *, fabric_manager: bool) -> bool:
    progress("looking for the NVIDIA driver that fits")
    branch, metapackage = driver_packages.recommended(branch)
    kernels = (found.kernel, found.next_kernel)
    wanted = driver_packages.chosen(branch, metapackage, kernels, fabric_manager=fabric_manager)
    progress(f"installing NVIDIA driver {branch}")
    return packages.ensure(driver_packages.OWNER, wanted, progress)


def _complete(plan: DriverPlan, found: Driver, progress: Progress) -> bool:
    """Have what a killed hook left out, or another kernel or option asks for since."""
    lacking = driver_packages.missing(found, fabric_manager=plan.fabric_manager)
    there = packages.owned(driver_packages.OWNER)
    if lacking:
        progress(f"completing NVIDIA driver {found.branch}")
    # If nothing is missing, it only holds packages again that another user has released.
    changed = packages.ensure(driver_packages.OWNER, {**there, **lacking}, progress)
    for kernel in dict.fromkeys((found.kernel, found.next_kernel)):
        if kernel and kernel not in dict(found.modules):
            changed |= _give_module(found, kernel, progress)
    return changed


def _give_module(found: Driver, kernel: str, progress: Progress) -> bool:
    """Give a kernel the module of our driver, if the archives have it at the driver's version."""
    for wanted in driver_packages.module_sets(found, kernel):
        progress(f"installing the NVIDIA module for kernel {kernel}")
        return packages.ensure(driver_packages.OWNER, wanted, progress)
    return False


def _load(progress: Progress) -> bool:
    kernel = kernel_modules.kernel(kernel_modules.ROOT)
    if not kernel_modules.is_loaded():
        if kernel_modules.is_loaded("nouveau"):  # it goes at the next boot
            return False
        if not kernel_modules.on_disk(kernel_modules.ROOT, (kernel,)):
            return False
        progress("loading NVIDIA's kernel module")
    try:
        return kernel_modules.load()
    except process.CommandError as error:
        raise DriverError(f"{error}: see 'sudo dmesg | tail'", passes=True) from error


def _ensure_manager() -> bool:
    """Start the fabric manager, now and after each boot."""
    try:
        changed = False
        if services.show(_MANAGER, "UnitFileState")["UnitFileState"] == "disabled":
            # Before it is done, so that it is undone whatever ends this hook.
            files.ensure_directory(_ENABLED.parent)
            files.ensure_file(_ENABLED, json.dumps([_MANAGER]))
            changed = services.ensure_enabled(_MANAGER)
        return services.ensure_running(_MANAGER, restart=False) or changed
    except process.CommandError as error:
        raise DriverError(
            f"the fabric manager of the GPUs' NVSwitches does not start: {error}: see "
            f"'journalctl -u {_MANAGER}'"
        ) from error


def _taken() -> _Taken | None:
    said = files.read_text(_RELOAD)
    return _Taken(**json.loads(said)) if said else None


def _take(taken: _Taken) -> bool:
    """Keep on the disk what is away. Return True if it was something else before."""
    files.ensure_directory(_RELOAD.parent)
    return files.ensure_file(_RELOAD, json.dumps(dataclasses.asdict(taken)))


def _is_back(name: str) -> bool:
    """Whether a service runs again, or is gone with its package."""
    try:
        if services.show(name, "LoadState")["LoadState"] == "loaded":
            services.ensure_running(name, restart=False)
    except process.CommandError as error:
        _log.warning("after a reload of NVIDIA's kernel module: %s", error)
        return False
    return True


def _ensure_userspace(version: str, found: Driver, progress: Progress) -> bool:
    if found.bound:
        return False
    if found.library == version and found.version == version:
        there = packages.owned(driver_packages.OWNER) if found.ours else {}
        return bool(there) and packages.ensure(driver_packages.OWNER, there, progress)
    progress(f"looking for the NVIDIA libraries {version}, as the host's driver is")
    packages.refresh()
    wanted = driver_packages.userspace(version)
    return packages.ensure(driver_packages.OWNER, wanted, progress)
