# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The virtual machine's disk with systemd, podman, Docker and the charm's code, for gpu-run."""

import pathlib
import shutil

from tests.functional import engine_machine
from tests.soak import systemd_disk
from tests.soak.machine import MODULES, Disk

WITH = (*MODULES, "overlay", "nft_socket", "nft_reject_inet")
# Images, containers, and what Docker keeps.
FREE_MIB = 512
FILES = {
    # The way in which both are set up where nobody says otherwise, but for networks.
    "etc/containers/containers.conf": '[containers]\nnetns = "none"\nlog_driver = "k8s-file"\n'
    '[engine]\nevents_logger = "file"\n',
    "etc/docker/daemon.json": '{"iptables": false, "bridge": "none"}\n',
}


def build(folder: pathlib.Path) -> Disk:
    """The disk, ready to boot."""
    disk = systemd_disk.unsealed(folder, "people")
    add_engines(disk)
    systemd_disk.seal(disk, FREE_MIB)
    return disk


def add_engines(disk: Disk) -> None:
    """Add podman and Docker, and the image /soak/plain.tar for both."""
    engine_machine.write_image(disk.root / "soak/plain.tar", "lab.test/plain:latest", ())
    for name, text in FILES.items():
        disk.write(name, text, 0o644)
    engines = engine_machine.ENGINES.resolve()
    for name in ("etc", "usr"):
        shutil.copytree(engines / name, disk.root / name, symlinks=True, dirs_exist_ok=True)
    for path in (engines / "lib/systemd/system").glob("docker.*"):
        shutil.copy(path, disk.root / "usr/lib/systemd/system")
    for program in (*engines.glob("usr/bin/*"), *engines.glob("usr/sbin/*")):
        systemd_disk.add_libraries(disk, program, engines / "usr/lib/x86_64-linux-gnu")
    # Docker takes --gpus only where it finds this; nobody may ever run it.
    disk.write("usr/bin/nvidia-container-runtime-hook", "#!/bin/sh\nexit 77\n")
