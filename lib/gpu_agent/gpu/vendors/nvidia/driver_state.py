# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Collect the state of NVIDIA's driver on this machine: packages, module, library."""

import pathlib

from gpu_agent.gpu.vendors.nvidia import driver_files, driver_packages, kernel_modules
from gpu_agent.model import errors
from gpu_agent.model.host import Driver
from machine import packages


def look(root: pathlib.Path = kernel_modules.ROOT) -> Driver:
    """Return the state of NVIDIA's driver. The packages are always this machine's.

    Args:
        root: the root of the machine's files.

    Raises:
        gpu_agent.model.errors.UnknownError: a part of it can't be read.
        machine.packages.PackageError: dpkg fails.
    """
    found = driver_packages.look()
    if found.versions:
        ours = bool(found.versions.keys() & packages.owned(driver_packages.OWNER))
    else:
        ours = is_half_ours()
    try:
        container = (root / "run/systemd/container").exists()
        running = kernel_modules.kernel(root)
        following = "" if container else kernel_modules.next_kernel(root)
        kernels = () if container else (running, following)
        return Driver(
            container=container,
            kernel=running,
            next_kernel=following,
            modules=kernel_modules.on_disk(root, tuple(dict.fromkeys(kernels))),
            loaded=kernel_modules.loaded(root),
            library=driver_files.library(root),
            branch=found.branch,
            version=found.version,
            ours=ours,
            bound=container and driver_files.is_bound(root),
            secure_boot=driver_files.is_secure_boot(root),
            refused=kernel_modules.refused(root),
            nvswitch=not container and driver_files.has_nvswitch(root),
        )
    except OSError as error:
        raise errors.unknown(error) from error


def is_half_ours() -> bool:
    """Return whether a killed hook has left packages of ours that are incomplete."""
    return bool(packages.begun(driver_packages.OWNER))
