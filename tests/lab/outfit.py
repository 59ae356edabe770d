# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Equip machines before the charm comes: simulated GPUs, a task's rootfs, and, unless they are
bare, NVIDIA's driver and runtime."""

import os
import pathlib
import shutil
from subprocess import CompletedProcess, SubprocessError
from typing import Any

from tests import fakes, once
from tests.lab import archive
from tests.lab.errors import LabError, WrongUse
from tests.lab.juju.agent import SHARED
from tests.lab.machines import Machine

# The root file system of the tasks that the lab runs; Concourse mounts it directly.
ROOTFS = "/srv/lab/rootfs"
# Concourse's worker maps root of a container to this user (max uint32 - 1).
CONTAINER_ROOT = 4294967294
# What a worker says while its two GPUs are switched off.
IDLE = "Worker ready (2 GPUs found, but enable-gpu=false: juju config worker enable-gpu=true)"
# A folder of the host bears this, a file of root's, where tasks may have it as their root.
MARKER = ".gpu-ci-task-root"
# What the runtime's hooks are calls of.
HOOK = "nvidia-ctk"
# What of a machine's files is the cards themselves, and what a driver or toolkit would bring.
SILICON, SOFTWARE = "silicon", "software"
RUNTIME_FILES = ("nvidia-container-runtime", "nvidia-cdi-hook", HOOK)
ONE_HOOK_A_ROOT = pathlib.Path(__file__).with_name("one-hook-a-root")
MAKE_ROOTFS = f"""
set -eu
mkdir -p {ROOTFS}.new
cd {ROOTFS}.new
mkdir -p bin dev etc proc sys tmp home/ci
cp "$(command -v busybox)" bin/busybox
for applet in $(bin/busybox --list); do
  if [ "$applet" != busybox ]; then ln -sf busybox "bin/$applet"; fi
done
printf 'root:x:0:0:root:/:/bin/sh\\nci:x:1000:1000:ci:/home/ci:/bin/sh\\n' >etc/passwd
printf 'root:x:0:\\nci:x:1000:\\n' >etc/group
chmod 1777 tmp
chown -R {CONTAINER_ROOT}:{CONTAINER_ROOT} .
install -o 0 -g 0 -m 644 /dev/null {MARKER}
chmod 755 . .. ../..
rm -rf {ROOTFS}
mv {ROOTFS}.new {ROOTFS}
"""
INSTALL_FILES = """
set -eu
while read -r source target; do install -D -m 755 "$source" "$target"; done
"""


def nvidia_runtime() -> tuple[list[pathlib.Path], str]:
    """The files of the NVIDIA runtime that workers get, and its name for people.

    GPUCI_NVIDIA_RUNTIME names the real one; its hook and nvidia-ctk lie beside it.

    Raises:
        WrongUse: GPUCI_NVIDIA_RUNTIME does not name a file.
    """
    given = os.environ.get("GPUCI_NVIDIA_RUNTIME", "")
    if not given:
        return [], "stand-in (set GPUCI_NVIDIA_RUNTIME to use the real nvidia-container-runtime)"
    path = pathlib.Path(given)
    if not path.is_file():
        raise WrongUse(f"GPUCI_NVIDIA_RUNTIME: {path} is not a file")
    files = [path.with_name(name) for name in RUNTIME_FILES if path.with_name(name).is_file()]
    return files, f"real ({path})"


def prepare(shared: pathlib.Path) -> str:
    """Put what workers get into the lab's shared directory; the NVIDIA runtime's name.

    Raises:
        WrongUse: see `nvidia_runtime`.
        LabError: the simulated GPUs do not compile.
    """
    target = shared / "outfit"
    runtime, name = nvidia_runtime()
    shutil.rmtree(target, ignore_errors=True)
    (target / "bin").mkdir(parents=True)
    try:
        libraries = target / "nvml"
        once.put("nvml", fakes.build_nvml, libraries)
    except (OSError, SubprocessError) as error:
        raise LabError(f"cannot compile the simulated GPUs, is gcc installed? {error}") from error
    for source in runtime:
        shutil.copy(source, target / "bin")
    if (hook := target / "bin" / HOOK).exists():
        hook.rename(f"{hook}.real")
        shutil.copy(ONE_HOOK_A_ROOT, hook)
    if not runtime:
        shutil.copy(fakes.STANDIN_RUNTIME, target / "bin" / RUNTIME_FILES[0])
    silicon, software = [], []
    for source, path in fakes.gpu_files(libraries).items():
        if source.parent == libraries:
            software.append(f"{SHARED}/{source.relative_to(shared)} {path}")
        else:
            shutil.copy(source, target / source.name)
            silicon.append(f"{SHARED}/outfit/{source.name} {path}")
    software += [f"{SHARED}/outfit/bin/{p.name} /usr/bin/{p.name}" for p in target.glob("bin/*")]
    (target / SILICON).write_text("".join(f"{line}\n" for line in silicon))
    (target / SOFTWARE).write_text("".join(f"{line}\n" for line in software))
    return name


def prepare_bare(shared: pathlib.Path) -> None:
    """Build the archives that bare machines get driver and toolkit from, after `prepare`.

    Raises:
        LabError: see `archive.prepare`.
    """
    runtime, _ = nvidia_runtime()
    archive.prepare(shared, sorted((shared / "outfit/bin").iterdir()) if runtime else ())


def fit(machine: Machine, wanted: dict[str, Any], shared: pathlib.Path) -> None:
    """Give a machine that has no GPUs yet what its application was deployed with.

    Args:
        machine: which is up.
        wanted: {"gpus": how many, "bare": whether without driver and toolkit, "vendor": another
            than NVIDIA, whose driver and toolkit the machine then lacks}, or nothing.
        shared: the lab's shared directory, where `prepare` has been, and for a bare machine
            `prepare_bare`.

    Raises:
        MachineError: something did not work in the machine.
    """
    there = machine.enter("/usr/bin/test", "-e", ROOTFS, check=False).returncode == 0
    if "gpus" not in wanted or there:
        return
    bare, vendor = bool(wanted.get("bare")), wanted.get("vendor", "nvidia")
    lists = [SILICON] if bare or vendor != "nvidia" else [SILICON, SOFTWARE]
    files = "".join((shared / "outfit" / name).read_text() for name in lists)
    machine.enter("/bin/sh", "-c", INSTALL_FILES, stdin=files)
    if bare:
        machine.run(["/bin/sh"], stdin=archive.MACHINE)
    options = ("--count", str(wanted["gpus"]), "--vendor", vendor, *(["--bare"] if bare else []))
    fakegpu(machine, "install", *options)
    machine.enter("/bin/sh", "-c", MAKE_ROOTFS)


def fakegpu(machine: Machine, *arguments: str, check: bool = True) -> CompletedProcess[str]:
    """Change a machine's simulated GPUs: fakegpu's own arguments.

    Raises:
        CommandError: it refuses (with `check`).
    """
    # Under the machine's PID 1: its mounts are to be seen by all of the machine.
    return machine.run([fakes.FAKEGPU, *arguments], check=check)
