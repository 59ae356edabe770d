# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""NVIDIA's driver: have it installed, loaded and let go."""

import collections.abc

from gpu_agent.gpu.vendors.nvidia import driver_packages, driver_state, kernel_modules
from gpu_agent.model.host import Driver
from host import nvidia_fabric_manager
from host.nvidia_driver_reload import Reload
from machine import apt, packages, process
from plan.model import DriverPlan

Progress = collections.abc.Callable[[str], None]


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
        changed |= nvidia_fabric_manager.ensure()
    return changed


def release() -> bool:
    """Let go of the driver: others may move it. It stays, and so does what is loaded.

    A service whose start at boot systemd can't take back now stays written down.

    Returns:
        Whether anything was changed.

    Raises:
        machine.packages.PackageError: apt can't take the holds away.
    """
    changed = Reload().end()
    changed |= nvidia_fabric_manager.release()
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
        raise packages.PackageError(f"{error}: see 'sudo dmesg | tail'", passes=True) from error


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
