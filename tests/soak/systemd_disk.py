# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The virtual machine's disk with systemd and the charm's code; a service there runs the cases."""

import pathlib
import shutil
import subprocess

from gpu_agent import paths as wrapper
from gpu_agent.model.inventory import Gpu
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
from tests.functional import selftest_machine
from tests.soak.machine import (
    FREE_MIB,
    NVIDIA_RUNTIME,
    ROOT,
    Disk,
    compile_all,
    path_of,
    unsealed_disk,
)
from tests.unit.wrapper_rig import CONCOURSE

FIRST = "/lib/systemd/systemd"
# Of the kernel: a machine without AppArmor's tools has no use for it.
WORDS = "apparmor=0 systemd.unit=soak.target systemd.show_status=0"
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
ExecStart=/bin/sh -c 'python3 -Bu /soak/{cases}.py </dev/null >/dev/ttyS0 2>&1; sync; poweroff -f'
"""
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000:alice:/home/alice:/bin/sh\n"
    "messagebus:x:104:104::/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nalice:x:1000:\ngpu-users:x:200:alice\ndocker:x:201:\n"
    "systemd-journal:x:202:\nadm:x:203:\nmessagebus:x:104:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\n",
    "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
    "etc/systemd/system/soak.target": TARGET,
    "etc/systemd/journald.conf.d/soak.conf": "[Journal]\nStorage=volatile\n",
    "srv/charm/stamp": "",
}


def unsealed(folder: pathlib.Path, cases: str) -> Disk:
    """A disk whose service runs this file of tests/soak/guest."""
    disk = unsealed_disk(folder)
    for name in PROGRAMS:
        disk.add_program(pathlib.Path(path_of(name)))
    for name in LIBRARIES:
        disk.add_program(pathlib.Path(name))
    units = pathlib.Path("/usr/lib/systemd/system")
    for pattern in UNITS:
        for path in units.glob(pattern):
            if not path.is_dir():
                disk.add(path)
    _add_charm(disk, folder)
    for name, text in FILES.items():
        disk.write(name, text, 0o644)
    disk.write("etc/systemd/system/soak.service", SERVICE.format(cases=cases), 0o644)
    for name in ("root", "usr/local/lib", "var/tmp", "var/log"):
        (disk.root / name).mkdir(exist_ok=True)
    (disk.root / "var/run").symlink_to("/run")
    (disk.root / "tmp").chmod(0o1777)
    return disk


def seal(disk: Disk, free_mib: int = FREE_MIB) -> None:
    """Make the image, with busybox's programs where there is no other of that name."""
    busybox = path_of("busybox")
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        places = [disk.root / folder / name for folder in ("usr/bin", "usr/sbin")]
        if not any(place.exists() or place.is_symlink() for place in places):
            places[0].symlink_to(busybox)
    disk.seal(free_mib)


def add_libraries(disk: Disk, program: pathlib.Path, beside: pathlib.Path | str = "") -> None:
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
        add_libraries(disk, extension)
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
