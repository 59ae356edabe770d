# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A virtual machine with cgroup v2 alone, or v1: a stock kernel, this host's containerd and runc.

Its disk holds a handful of this host's programs with their libraries, the wrapper as the charm
renders it, and tests/soak/guest. It needs no root, no network and no /dev/kvm. What the guest
prints on its serial console is all that comes out while it runs; read_out() fetches files after.
"""

import ast
import json
import os
import pathlib
import re
import shutil
import subprocess
import sysconfig
import time

import tenacity

from ci.concourse import release, service
from ci.concourse.worker import launcher
from gpu_agent import paths
from gpu_agent import paths as wrapper
from gpu_agent.runtime import install
from machine import templates
from tests.fakes import STANDIN_RUNTIME, Card, build_nvml, write_state
from tests.unit.wrapper_rig import CONCOURSE, TASKS

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNEL = ROOT / ".soak" / "kernel"
PROGRAMS = (
    *("sh", "grep", "busybox"),
    *("runc", "containerd", "containerd-shim-runc-v2", "ctr"),
)
PYTHON = "/usr/bin/python3"
NVIDIA_RUNTIME = "/usr/bin/nvidia-container-runtime"
MODULES = ("virtio_pci", "virtio_blk", "ext4")
BOOT = "/soak/boot"
FREE_MIB = 128

INIT = """#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
while read -r module; do /bin/busybox insmod "/modules/$module"; done </modules/order
/bin/busybox mount -t devtmpfs devtmpfs /dev
/bin/busybox mount -t ext4 /dev/vda /disk
/bin/busybox umount /proc
exec /bin/busybox switch_root /disk {first}
"""


class Disk:
    """The guest's file system, built as a folder of this host."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.root = folder / "root"
        self.image = folder / "disk.img"
        for name in ("dev", "proc", "sys", "run", "tmp", "etc", "soak", "out", "usr/local/bin"):
            (self.root / name).mkdir(parents=True)
        for name in ("/bin", "/sbin", "/lib", "/lib64"):
            self.add(pathlib.Path(name))

    def add(self, path: pathlib.Path) -> None:
        """Copy a file of this host to the same path, with each link on the way to it."""
        for parent in [*reversed(path.parents), path]:
            here = self.root / str(parent.parent.resolve()).lstrip("/") / parent.name
            if parent.is_symlink() and not here.is_symlink():
                self.add(parent.parent / parent.readlink())
                here.parent.mkdir(parents=True, exist_ok=True)
                here.symlink_to(parent.readlink())
        there = path.resolve()
        here = self.root / str(there).lstrip("/")
        if there.is_dir():
            here.mkdir(parents=True, exist_ok=True)
        elif not here.exists():
            here.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(there, here)

    def add_program(self, path: pathlib.Path) -> None:
        """Copy a program or library, and what the loader needs for it."""
        self.add(path)
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, timeout=60).stdout
        for library in re.findall(r"(/\S+) \(0x", listed):
            self.add(pathlib.Path(library))

    def add_python(self) -> None:
        """Copy the distribution's Python; third-party packages stay behind."""
        self.add_program(pathlib.Path(PYTHON))
        asked = "import sysconfig; print(sysconfig.get_path('stdlib'))"
        done = subprocess.run([PYTHON, "-I", "-c", asked], capture_output=True, text=True)
        library = pathlib.Path(done.stdout.strip())
        skipped = shutil.ignore_patterns("test", "idlelib", "ensurepip", "config-*", "lib2to3")
        shutil.copytree(library, self.root / str(library)[1:], symlinks=True, ignore=skipped)
        for extension in (library / "lib-dynload").glob("*.so"):
            self.add_program(extension)

    def write(self, path: str, text: str, mode: int = 0o755) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def seal(self, free_mib: int = FREE_MIB) -> None:
        """Make the image of what the folder holds."""
        used = sum(path.lstat().st_size for path in self.root.rglob("*")) >> 20
        with self.image.open("wb") as file:
            file.truncate((used * 5 // 4 + free_mib) << 20)
        command = ["/usr/sbin/mke2fs", "-q", "-t", "ext4", "-E", "root_owner=0:0", "-d", self.root]
        subprocess.run([*command, self.image], check=True, timeout=120)

    def read_out(self, target: pathlib.Path) -> pathlib.Path:
        """What the guest left in /out, copied below `target`."""
        target.mkdir()
        command = ["/usr/sbin/debugfs", "-R", f"rdump /out {target}", self.image]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        return target / "out"


def path_of(program: str) -> str:
    """Where a program is; who is not root may have no sbin on PATH."""
    found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert found, f"{program} is not installed: scripts/setup soak"
    return found


def build_disk(folder: pathlib.Path) -> Disk:
    """The disk, ready to boot."""
    disk = unsealed_disk(folder)
    disk.seal()
    return disk


def unsealed_disk(folder: pathlib.Path) -> Disk:
    """A disk with the wrapper in front of runc, two fake GPUs, and tests/soak/guest."""
    disk = Disk(folder)
    for name in PROGRAMS:
        found = path_of(name)
        disk.add_program(pathlib.Path(found))
        if name in ("runc", "containerd"):
            link = disk.root / "opt/concourse/current/bin" / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(found)
    disk.add_python()
    libraries = disk.root / "usr/lib" / sysconfig.get_config_var("MULTIARCH")
    shutil.copy(build_nvml(folder / "nvml") / "libnvidia-ml.so.1", libraries)
    write_state(disk.root / "var/lib/fake-gpu", [Card(0), Card(1)])
    shutil.copy(STANDIN_RUNTIME, disk.root / NVIDIA_RUNTIME[1:])
    init, guest = ROOT / "tests/fakes/concourse/init.c", ROOT / "tests" / "soak" / "guest"
    programs = (*guest.glob("*.c"), ROOT / "tests/attacks/mischief.c")
    for source, name in ((init, "gdn-init"), *((path, path.stem) for path in programs)):
        command = ["gcc", "-static", "-pthread", "-Os", "-s", "-o", disk.root / "soak" / name]
        subprocess.run([*command, source], check=True, timeout=60)
    install_wrapper(disk)
    add_cases(disk.root / "soak")
    return disk


def add_cases(folder: pathlib.Path) -> None:
    """Copy the cases, and what they read and import."""
    golden, guest = ROOT / "tests/unit/golden", ROOT / "tests/soak/guest"
    for source in (*golden.glob("*.json"), *guest.glob("*.py"), guest / "boot"):
        shutil.copy(source, folder)
    packages = (
        ROOT / "lib/gpu_runtime",
        ROOT / "lib/machine",
        ROOT / "src/ci",
        pathlib.Path(tenacity.__file__).parent,
    )
    for package in packages:
        shutil.copytree(package, folder / package.name)


def install_wrapper(disk: Disk) -> None:
    """What lib/gpu_agent/paths.py puts on a worker, but for the policy, which each case writes."""
    here = disk.root / str(wrapper.LIB / "gpu_runtime")[1:]
    shutil.copytree(
        ROOT / "lib" / "gpu_runtime", here, ignore=shutil.ignore_patterns("__pycache__")
    )
    compile_all(here)
    (disk.root / str(wrapper.BACK_END)[1:]).symlink_to(here.name)
    front = templates.render(
        paths.TEMPLATES,
        "runc",
        runc=CONCOURSE["runc"],
        tasks=install.pattern(TASKS),
        python=wrapper.PYTHON,
        lib=wrapper.BACK_END,
        store=wrapper.STORE,
        log=wrapper.LOG,
        policy=wrapper.POLICY,
        bin=wrapper.BIN,
    )
    disk.write(str(wrapper.FRONT), front)
    (disk.root / str(wrapper.LOG.parent)[1:]).mkdir(parents=True)
    containerd = release.CURRENT / "bin/containerd"
    text = templates.render(
        service.TEMPLATES, launcher.PATH.name, bin=wrapper.BIN, containerd=containerd
    )
    disk.write(str(launcher.PATH), text)


def compile_all(folder: pathlib.Path) -> None:
    """Compile a folder's Python; the guest is slow."""
    command = [PYTHON, "-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*command, folder], check=True, timeout=60)


def build_initrd(folder: pathlib.Path, modules: tuple[str, ...], first: str) -> pathlib.Path:
    """An archive with busybox and these modules, in the order to load them; then `first` runs."""
    root = folder / "initrd"
    for name in ("bin", "dev", "disk", "modules", "proc"):
        (root / name).mkdir(parents=True)
    busybox = path_of("busybox")
    shutil.copy(busybox, root / "bin" / "busybox")
    (root / "init").write_text(INIT.format(first=first))
    (root / "init").chmod(0o755)
    (version,) = [path.name for path in (KERNEL / "lib" / "modules").iterdir()]
    command = ["/usr/sbin/modprobe", "-d", KERNEL, "-S", version, "-a", "--show-depends", *modules]
    listed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    order = []
    for word in re.findall(r"^insmod (\S+)", listed, re.MULTILINE):
        path = pathlib.Path(word)
        name = path.name.removesuffix(".xz").removesuffix(".zst")
        if name not in order:
            order.append(name)
            unpack(path, root / "modules" / name)
    (root / "modules" / "order").write_text("".join(f"{name}\n" for name in order))
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    packed = subprocess.run(
        [busybox, "cpio", "-o", "-H", "newc"],
        cwd=root,
        input=names.encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    archive = folder / "initrd.img"
    archive.write_bytes(packed.stdout)
    return archive


def unpack(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copy a module, uncompressed: distributions differ."""
    tool = {".xz": ["xz", "-dc"], ".zst": ["zstd", "-dqc"]}.get(source.suffix, ["cat"])
    with target.open("wb") as file:
        subprocess.run([*tool, source], stdout=file, check=True, timeout=60)


class Guest:
    """A running virtual machine; `console` is the file that its serial line goes to.

    Args:
        disk: a sealed one.
        folder: for what it is started with.
        cgroups: `v2` or `v1`, for `boot`.
        modules: what the kernel is to have.
        first: the program that is its first process.
        memory: in MiB.
        more: further words for its kernel.
    """

    def __init__(
        self,
        disk: Disk,
        folder: pathlib.Path,
        cgroups: str,
        *,
        modules: tuple[str, ...] = MODULES,
        first: str = BOOT,
        memory: int = 1024,
        more: str = "",
    ) -> None:
        self.console = folder / "console"
        self.console.touch()
        (kernel,) = (KERNEL / "boot").glob("vmlinuz-*")
        drive = f"file={disk.image},format=raw,if=none,id=disk,cache=unsafe"
        # TCG, though slow: /dev/kvm may be there and yet never run a guest, as in nested clouds.
        with (folder / "qemu.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    "qemu-system-x86_64",
                    "-machine",
                    "q35",
                    "-accel",
                    "tcg,thread=multi",
                    "-cpu",
                    "max",
                ]
                + ["-smp", "2", "-m", str(memory), "-nodefaults", "-no-reboot", "-display", "none"]
                + ["-serial", f"file:{self.console}", "-kernel", str(kernel)]
                + ["-initrd", str(build_initrd(folder, modules, first))]
                + [
                    "-append",
                    f"console=ttyS0 quiet panic=-1 mitigations=off gpuci.cgroups={cgroups} {more}",
                ]
                + ["-drive", drive, "-device", "virtio-blk-pci,drive=disk"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def text(self) -> str:
        return self.console.read_text(errors="replace").replace("\r", "")

    def wait(self, seconds: float) -> bool:
        """Whether it powered itself off in time; ended by force otherwise."""
        until = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
        over = self.process.poll() is not None
        self.close()
        return over

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)

    def cases(self, seconds: float) -> dict[str, str]:
        """What is wrong with each case that it tells of, when it is over; empty: nothing."""
        try:
            over = self.wait(seconds)
        finally:
            self.close()
        text = self.text()
        print(text)
        assert over, f"no end after {seconds} s; the console ends with:\n{text[-3000:]}"
        lines = [
            json.loads(line.removeprefix("soak:"))
            for line in text.splitlines()
            if line.startswith("soak:")
        ]
        assert lines, text[-3000:]
        assert lines[-1] == {"end": True}, text[-3000:]
        return {line["case"]: line["fault"] for line in lines if "case" in line}


def names(cases: pathlib.Path) -> list[str]:
    """The cases in a file that a guest runs, without running one."""
    for node in ast.parse(cases.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CASES":
            return [ast.unparse(name) for name in node.value.elts]
    raise AssertionError(f"{cases} has no CASES")
