# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The virtual machine's disk with systemd, D-Bus, Docker, the charm's code, and no real Gitea."""

import pathlib
import shutil

from tests.soak import people_disk, systemd_disk
from tests.soak.machine import ROOT, Disk, path_of

PROGRAMS = ("bash", "busctl", "curl", "dbus-daemon", "find", "install", "pgrep", "rm")
# With the bus `systemd-run --wait` learns of the end of what it runs.
BUS = (
    "/usr/lib/systemd/system/dbus.socket",
    "/usr/lib/systemd/system/dbus.service",
    "/usr/share/dbus-1/system.conf",
    "/usr/share/dbus-1/system.d/org.freedesktop.systemd1.conf",
)


def build(folder: pathlib.Path) -> Disk:
    """The disk, ready to boot."""
    disk = systemd_disk.unsealed(folder, "runners")
    for name in PROGRAMS:
        disk.add_program(pathlib.Path(path_of(name)))
    for path in BUS:
        disk.add(pathlib.Path(path))
    shutil.copy(ROOT / "tests/functional/runners_machine.py", disk.root / "soak")
    shutil.copytree(ROOT / "tests/fakes/gitea", disk.root / "srv/fakes/gitea")
    people_disk.add_engines(disk)
    systemd_disk.seal(disk, people_disk.FREE_MIB)
    return disk
