# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check the free disk space where jobs work and where the self-test writes."""

import collections.abc
import os
import pathlib
import typing

from gpu_selftest import results
from gpu_selftest.check import Check, Level, Outcome, Result, Said
from gpu_selftest.settings import Settings

CHECK: typing.Final = Check(
    "disk",
    Level.QUICK,
    "there is space for images, volumes and downloads of tasks",
    # Below 1 GB the smallest CUDA image can't be unpacked. 50 GB is what the smoke test of the
    # project's first users requires. If volumes are copies, an image is on disk once for itself,
    # once for a step, and once for a failed job's container that the CI system keeps.
    source="1 GB: an image with CUDA's runtime alone is larger; 50 GB: models and environments; "
    "three times that if volumes are copies",
    unit="GB",
    condemns=False,
)

_GB: typing.Final = 1e9
_FULL: typing.Final = 1.0
_SCARCE: typing.Final = 50.0


Statvfs = collections.abc.Callable[[pathlib.Path], os.statvfs_result]


def run(settings: Settings, root: pathlib.Path, copies: int, statvfs: Statvfs) -> Result:
    """Check the space of the folders that need it for jobs, and of the self-test's own.

    Args:
        settings: names these folders.
        root: where the machine's files are.
        copies: how often the CI system keeps an image on the disk.
        statvfs: tells the space of a file system.
    """
    free = {path: _free(root, path, statvfs) for path in (*settings.disks, str(results.HOME))}
    path = min(free, key=lambda path: free[path])
    room, full, scarce = free[path], _FULL * copies, _SCARCE * copies
    threshold = f"at least {full:g} GB, better {scarce:g} GB"
    text = f"{room:.1f} GB free for {path}"
    remedy = (
        f"sudo du -xh --max-depth=2 {path} | sort -h | tail; free space, or give {path} a larger "
        "disk; it is checked again within 10 minutes"
    )
    outcome, cause = Outcome.PASSED if room >= scarce else Outcome.WARNING, ""
    if room < full:
        outcome, cause = Outcome.FAILED, "disk full"
        text = f"{cause}: {text}"
    return CHECK.told(Said(outcome, text, round(room, 1), remedy, threshold, cause))


def _free(root: pathlib.Path, path: str, statvfs: Statvfs) -> float:
    """Return the free space of a path's file system in GB; 0 if it has no free inode."""
    place = root / path.lstrip("/")
    while not place.exists():
        place = place.parent
    found = statvfs(place)
    out_of_inodes = found.f_files > 0 and found.f_favail == 0
    return 0.0 if out_of_inodes else found.f_bavail * found.f_frsize / _GB
