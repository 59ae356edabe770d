# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Further packages of the distribution that the operator wants on the machine."""

import collections.abc
import re
import typing

from machine import apt, packages
from options.values import HOST_PACKAGES

OWNER: typing.Final = "host-packages"

# Parts of a GPU's driver and of the kernel. On Ubuntu 22.04 nvtop asks for a library of some
# driver, which need not be the one that runs.
_OF_DRIVERS: typing.Final = re.compile(r"(lib)?nvidia-.*|libcuda.*|linux-.*|dkms|.*-dkms")


def ensure(
    names: collections.abc.Collection[str], progress: collections.abc.Callable[[str], None]
) -> bool:
    """Have these packages, and none that only an earlier call asked for.

    What was there before stays there, and upgrades move all of them.

    Args:
        names: some of HOST_PACKAGES.
        progress: is told what takes long.

    Returns:
        Whether anything changed.

    Raises:
        machine.packages.PackageError: if apt can't do it, or one would change part of a driver.
    """
    came = packages.owned(OWNER).keys() | packages.begun(OWNER)
    given_up = came & {*HOST_PACKAGES} - {*names}
    changed = bool(given_up) and packages.remove_installed(*given_up)
    if not names:
        return changed
    missing = sorted({*names} - packages.installed(*names).keys())
    if missing:
        _refuse_drivers(missing)
    wanted = dict.fromkeys(names, "")
    return packages.ensure(OWNER, wanted, progress, held=False) or changed


def _refuse_drivers(missing: list[str]) -> None:
    if not all(map(packages.available, missing)):
        packages.refresh()
    # Of what no archive has the installation itself says so.
    for name in filter(packages.available, missing):
        simulated = apt.simulate(name)
        moved = (*simulated.new, *simulated.changed, *simulated.removed)
        parts = sorted(filter(_OF_DRIVERS.fullmatch, moved))
        if parts:
            raise packages.PackageError(
                f"package {name} would change {', '.join(parts)}, which belongs to a driver or "
                f"the kernel: take {name} off the option host-packages"
            )
