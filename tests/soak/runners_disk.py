# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The virtual machine's disk with systemd, D-Bus, the charm's code and the stand-ins for Gitea."""

import pathlib
import shutil

from tests.soak import systemd_disk
from tests.soak.machine import ROOT, Disk, path_of

PROGRAMS = ("bash", "curl", "dbus-daemon", "install", "pgrep", "rm")
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
    systemd_disk.seal(disk)
    return disk
