# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The virtual machine's disk with systemd, podman, Docker and the charm's code, for gpu-run."""

import pathlib
import shutil
import subprocess

from gpu_agent import paths as wrapper
from gpu_agent.model.inventory import Gpu
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
from tests.functional import engine_machine, selftest_machine
from tests.soak.machine import (
    MODULES,
    NVIDIA_RUNTIME,
    ROOT,
    Disk,
    compile_all,
    path_of,
    unsealed_disk,
)
from tests.unit.wrapper_rig import CONCOURSE

FIRST = "/lib/systemd/systemd"
WITH = (*MODULES, "overlay", "nft_socket", "nft_reject_inet")
# Of the kernel: a machine without AppArmor's tools has no use for it.
WORDS = "apparmor=0 systemd.unit=soak.target systemd.show_status=0"
# Images, containers, and what Docker keeps.
FREE_MIB = 512
PROGRAMS = (
    *("systemctl", "systemd-run", "journalctl", "systemd-tmpfiles", "mount", "umount"),
    *("setpriv", "flock", "setsid", "modprobe", "nft"),
)
LIBRARIES = ("/usr/lib/systemd/systemd", "/usr/lib/systemd/systemd-journald")
UNITS = ("*.target", "*.slice", "systemd-journald*", "-.slice")
TARGET = "[Unit]\nRequires=basic.target soak.service\nAfter=basic.target\nAllowIsolate=yes\n"
SERVICE = """[Unit]
Requires=basic.target systemd-journald.socket
After=basic.target systemd-journald.socket
[Service]
Environment=PYTHONPATH=/srv/charm/lib:/srv/charm/src:/srv/charm/venv HOME=/root
WorkingDirectory=/soak
ExecStart=/bin/sh -c 'python3 -Bu /soak/people.py </dev/null >/dev/ttyS0 2>&1; sync; poweroff -f'
"""
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000:alice:/home/alice:/bin/sh\n",
    "etc/group": "root:x:0:\nalice:x:1000:\ngpu-users:x:200:alice\ndocker:x:201:\n"
    "systemd-journal:x:202:\nadm:x:203:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\n",
    "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
    "etc/systemd/system/soak.target": TARGET,
    "etc/systemd/system/soak.service": SERVICE,
    "etc/systemd/journald.conf.d/soak.conf": "[Journal]\nStorage=volatile\n",
    # The way in which both are set up where nobody says otherwise, but for networks.
    "etc/containers/containers.conf": '[containers]\nnetns = "none"\nlog_driver = "k8s-file"\n'
    '[engine]\nevents_logger = "file"\n',
    "etc/docker/daemon.json": '{"iptables": false, "bridge": "none"}\n',
    "srv/charm/stamp": "",
}


def build(folder: pathlib.Path) -> Disk:
    """The disk, ready to boot."""
    disk = unsealed_disk(folder)
    _add_systemd(disk)
    _add_engines(disk)
    _add_charm(disk, folder)
    engine_machine.write_image(disk.root / "soak/plain.tar", "lab.test/plain:latest", ())
    for name, text in FILES.items():
        disk.write(name, text, 0o644)
    for name in ("root", "usr/local/lib", "var/tmp", "var/log"):
        (disk.root / name).mkdir(exist_ok=True)
    (disk.root / "var/run").symlink_to("/run")
    (disk.root / "tmp").chmod(0o1777)
    _add_applets(disk)
    disk.seal(FREE_MIB)
    return disk


def _add_systemd(disk: Disk) -> None:
    for name in PROGRAMS:
        disk.add_program(pathlib.Path(path_of(name)))
    for name in LIBRARIES:
        disk.add_program(pathlib.Path(name))
    units = pathlib.Path("/usr/lib/systemd/system")
    for pattern in UNITS:
        for path in units.glob(pattern):
            if not path.is_dir():
                disk.add(path)


def _add_engines(disk: Disk) -> None:
    engines = engine_machine.ENGINES.resolve()
    for name in ("etc", "usr"):
        shutil.copytree(engines / name, disk.root / name, symlinks=True, dirs_exist_ok=True)
    for path in (engines / "lib/systemd/system").glob("docker.*"):
        shutil.copy(path, disk.root / "usr/lib/systemd/system")
    for program in (*engines.glob("usr/bin/*"), *engines.glob("usr/sbin/*")):
        _add_libraries(disk, program, engines / "usr/lib/x86_64-linux-gnu")
    # Docker takes --gpus only where it finds this; nobody may ever run it.
    disk.write("usr/bin/nvidia-container-runtime-hook", "#!/bin/sh\nexit 77\n")


def _add_libraries(disk: Disk, program: pathlib.Path, beside: pathlib.Path | str = "") -> None:
    """What the loader needs for a program, but for what it finds in a folder that is there."""
    listed = subprocess.run(
        ["ldd", program], capture_output=True, text=True, env={"LD_LIBRARY_PATH": str(beside)}
    ).stdout
    for word in listed.split():
        if word.startswith("/") and not (beside and word.startswith(str(beside))):
            disk.add(pathlib.Path(word))


def _add_charm(disk: Disk, folder: pathlib.Path) -> None:
    charm = disk.root / "srv/charm"
    for package in ("gpu_runtime", "machine", "ci"):
        shutil.rmtree(disk.root / "soak" / package)  # the charm's own is meant
    for part in ("src", "lib", "templates"):
        shutil.copytree(ROOT / part, charm / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(selftest_machine.carried(folder / "venv"), charm / "venv")
    for part in ("src", "lib", "venv"):
        compile_all(charm / part)
    for extension in (charm / "venv").rglob("*.so"):
        _add_libraries(disk, extension)
    gpus = tuple(
        Gpu(
            index, f"GPU-0000000{index}-1111-2222-3333-444444444444", "nvidia",
            "NVIDIA A100-SXM4-80GB", 81920, f"0000:0{index + 1}:00.0", index,
        )
        for index in (0, 1)
    )  # fmt: skip
    disk.write(
        str(wrapper.POLICY), install.policy_text(GpuPlan(gpus, NVIDIA_RUNTIME, **CONCOURSE))
    )


def _add_applets(disk: Disk) -> None:
    """Busybox's, where there is no program of that name."""
    busybox = path_of("busybox")
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        places = [disk.root / folder / name for folder in ("usr/bin", "usr/sbin")]
        if not any(place.exists() or place.is_symlink() for place in places):
            places[0].symlink_to(busybox)
