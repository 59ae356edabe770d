# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A worker in a mount namespace: fake GPUs, the installed wrapper, real containerd and runc."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import pytest

from tests import once, runs
from tests.fakes import FAKEGPU, STANDIN_RUNTIME, build_nvml, gpu_files
from tests.lab import cgroups
from tests.unit.wrapper_rig import CONCOURSE

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "unit" / "golden"
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr", "runc", "busybox", "gcc", "nsenter")
NODES = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")
UUIDS = [f"GPU-0000000{index}-1111-2222-3333-444444444444" for index in (0, 1)]
LAUNCHER = "/opt/gpu-ci/bin/containerd-launcher"
RUNTIME = "/usr/bin/nvidia-container-runtime"
MISSING = [name for name in PROGRAMS if not shutil.which(name)]
# Marks of the tests that start one.
NEEDS = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts and containers need root"),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
]
GIVEN_RUNTIME = os.environ.get("GPUCI_NVIDIA_RUNTIME", "")

# A host of its own as far as the wrapper, the fake GPUs and containerd can tell.
SETUP = f"""
mount -t tmpfs -o mode=755 tmpfs "$LAB/mnt"
for folder in dev etc opt usr var; do
    layer=$LAB/mnt/$folder
    mkdir -p "$layer/upper" "$layer/work" "$layer/merged"
    mount -t overlay overlay "$layer/merged" \\
        -o "lowerdir=/$folder,upperdir=$layer/upper,workdir=$layer/work"
done
for folder in pts shm; do mount --rbind "/dev/$folder" "$LAB/mnt/dev/merged/$folder"; done
for folder in dev etc opt usr var; do mount --move "$LAB/mnt/$folder/merged" "/$folder"; done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/systemd /opt/concourse/current/bin "$(dirname {FAKEGPU})"
echo lab >/run/systemd/container
for name in runc containerd; do ln -s "$(command -v $name)" /opt/concourse/current/bin/; done
cp "$LAB"/gpu/* "$(dirname {FAKEGPU})"
cp "$LAB"/nvidia/* /usr/bin
{FAKEGPU} install --count 2
{FAKEGPU} set 0 uuid={UUIDS[0]}
{FAKEGPU} set 1 uuid={UUIDS[1]}
touch "$LAB/ready"
"""

# What the charm does: `apply(GpuPlan)` and its launcher, or `remove()`, and says whether that
# changed anything.
CHARM = (
    f"""
from gpu_agent.runtime.settings import TaskFolders
CONCOURSE = {CONCOURSE!r}
"""
    """
import json, sys
from ci.concourse.worker import launcher
from gpu_agent.model.inventory import Gpu
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
runtime, options, *indexes = sys.argv[1:]
gpus = tuple(
    Gpu(int(i), f"GPU-0000000{i}-1111-2222-3333-444444444444", "nvidia",
        "NVIDIA A100-SXM4-80GB", 81920, f"0000:0{i}:00.0", int(i))
    for i in indexes
)
plan = GpuPlan(gpus, runtime, **json.loads(options), **CONCOURSE)
print(install.apply(plan) | launcher.ensure() if gpus else install.remove())
"""
)


class Worker:
    """A mount namespace with containerd in it, started the way Concourse starts it."""

    def __init__(
        self, folder: pathlib.Path, setup: str = SETUP, spaces: tuple[str, ...] = ("-m",)
    ) -> None:
        self.folder = folder
        self.started = False
        self.cgroups = parents_of_containers()
        for name in ("mnt", "work", "scratch", "gpu", "nvidia"):
            (folder / name).mkdir()
        for source, path in gpu_files(once.made("nvml", build_nvml)).items():
            shutil.copy(source, folder / "gpu" / pathlib.Path(path).name)
        shutil.copy(
            GIVEN_RUNTIME or STANDIN_RUNTIME, folder / "nvidia" / "nvidia-container-runtime"
        )
        if GIVEN_RUNTIME:
            for name in ("nvidia-cdi-hook", "nvidia-ctk"):
                shutil.copy(pathlib.Path(GIVEN_RUNTIME).with_name(name), folder / "nvidia" / name)
        self._make_image()
        (folder / "setup").write_text(setup)
        config = folder / "config.toml"
        config.write_text(
            f'version = 2\nroot = "{folder}/root"\nstate = "{folder}/state"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\naddress = "{folder}/sock"\n[ttrpc]\naddress = "{folder}/sock.ttrpc"\n'
        )
        # The shell waits for a line, so that the wrapper is there before containerd is; with each
        # that follows it starts containerd again.
        self.log = (folder / "containerd.log").open("w")
        start = f"{LAUNCHER} --config={config} </dev/null"
        self.holder = subprocess.Popen(
            ["unshare", *spaces, "--propagation", "private", "sh", "-ec"]
            + [f". {folder}/setup; while read go; do {start} || :; done"],
            env={"PATH": os.environ["PATH"], "LAB": str(folder)},
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
        )
        self._wait((folder / "ready").exists)

    def _make_image(self) -> None:
        """A root folder that belongs to a container's root, as Concourse's volumes do."""
        init = ROOT / "tests" / "fakes" / "concourse" / "init.c"
        command = ["gcc", "-static", "-Os", "-s", "-o", self.folder / "gdn-init", init]
        subprocess.run(command, check=True, timeout=60)
        self.rootfs = self.folder / "rootfs"
        for name in ("bin", "dev", "proc", "sys", "tmp", "etc", "scratch", "usr/lib"):
            (self.rootfs / name).mkdir(parents=True)
        shutil.copy(shutil.which("busybox") or "", self.rootfs / "bin" / "busybox")
        for name in ("sh", "cat", "sleep", "env", "id", "tr"):
            (self.rootfs / "bin" / name).symlink_to("busybox")
        for name in ("hosts", "hostname", "resolv.conf"):
            (self.folder / name).touch()
            (self.rootfs / "etc" / name).touch()
        for path in (self.rootfs, *self.rootfs.rglob("*")):
            os.lchown(path, 4294967294, 4294967294)
        # Tasks may have this folder of the host.
        (self.rootfs / ".gpu-ci-task-root").touch(0o644)

    def start(self) -> None:
        """Start containerd by the launcher, which must be there by now."""
        self._go()
        self.started = True

    def _go(self) -> None:
        assert self.holder.stdin
        self.holder.stdin.write(b"go\n")
        self.holder.stdin.flush()
        self._wait(lambda: self.ctr("version").returncode == 0)

    def restart(self) -> None:
        """Kill containerd and start it again; its shims and their containers go on."""
        children = f"/proc/{self.holder.pid}/task/{self.holder.pid}/children"
        (containerd,) = pathlib.Path(children).read_text().split()
        os.kill(int(containerd), signal.SIGKILL)
        self._go()

    def _wait(self, ready: Callable[[], bool]) -> None:
        for _ in range(400):
            assert self.holder.poll() is None, (self.folder / "containerd.log").read_text()
            if ready():
                return
            time.sleep(0.05)
        raise AssertionError((self.folder / "containerd.log").read_text())

    def _in(self, *argv: object) -> list[str]:
        nsenter = ["nsenter", "-t", str(self.holder.pid), "-m", "--wd=/", "--"]
        return [*nsenter, *map(str, argv)]

    def inside(self, *argv: object, **named) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._in(*argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            **named,
        )

    def charm(self, *gpus: int, runtime: str = RUNTIME, **options: object) -> str:
        """Install the wrapper for these GPUs, or none; `options` are GpuPlan's."""
        path = {"PYTHONPATH": f"{ROOT}/src:{ROOT}/lib", "PATH": os.environ["PATH"]}
        done = self.inside(
            sys.executable, "-c", CHARM, runtime, json.dumps(options), *gpus, env=path
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _ctr(self, *words: object) -> list[object]:
        return ["ctr", "-a", self.folder / "sock", "-n", "concourse", *words]

    def ctr(self, *words: object) -> subprocess.CompletedProcess[str]:
        return self.inside(*self._ctr(*words))

    def begin(self, *words: object) -> subprocess.Popen[str]:
        """Let ctr go on by itself; what it says comes by communicate()."""
        return subprocess.Popen(
            self._in(*self._ctr(*words)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def spec(self, name: str, handle: str, *env: str) -> dict:
        """A golden spec on this rootfs, with `env` as the image's variables."""
        spec = json.loads((GOLDEN / f"{name}.json").read_text())
        old, spec["hostname"] = spec["hostname"], handle
        spec["root"]["path"] = str(self.rootfs)
        spec["process"]["env"] = [*env, *spec["process"]["env"]]
        if spec["linux"]["cgroupsPath"]:
            place = spec["linux"]["cgroupsPath"].replace(old, handle)
            spec["linux"]["cgroupsPath"] = place.replace("garden/", f"{garden()}/")
        for mount in spec["mounts"]:
            source = mount["source"]
            if source == "/usr/local/concourse/bin/init":
                mount["source"] = str(self.folder / "gdn-init")
            elif source.startswith("/var/lib/concourse/"):
                leaf = "work" if "/live/work/" in source else pathlib.Path(source).name
                leaf = "scratch" if leaf == "volume" else leaf
                mount["source"] = str(self.folder / leaf)
        return spec

    def _creation(self, spec: dict) -> list[object]:
        path = self.folder / f"{spec['hostname']}.json"
        path.write_text(json.dumps(spec))
        return ["run", "-d", "--null-io", "--config", path, spec["hostname"]]

    def create(self, spec: dict) -> subprocess.CompletedProcess[str]:
        return self.ctr(*self._creation(spec))

    def begin_create(self, spec: dict) -> subprocess.Popen[str]:
        return self.begin(*self._creation(spec))

    def exec(
        self, handle: str, line: str, *flags: str, name: str = "task"
    ) -> subprocess.CompletedProcess[str]:
        words = ["task", "exec", "--exec-id", name, *flags]
        # On a busy machine ctr 1.6 loses what a process says at its very end.
        line = f"({line}); code=$?; sleep 0.1; exit $code"
        return self.ctr(*words, handle, "sh", "-c", line)

    def folder_of(self, handle: str) -> pathlib.Path:
        """The container's bundle."""
        return self.folder / "state" / "io.containerd.runtime.v2.task" / "concourse" / handle

    def bundle(self, handle: str) -> dict:
        return json.loads((self.folder_of(handle) / "config.json").read_text())

    def leases(self) -> dict:
        """The table of leases; empty before the first."""
        path = pathlib.Path(f"/proc/{self.holder.pid}/root/run/gpu-ci/leases/leases.json")
        return json.loads(path.read_text()) if path.exists() else {"holders": {}, "waiters": []}

    def sees(self, handle: str, *flags: str) -> dict[str, str]:
        """What opening each node says inside."""
        line = "".join(f"cat /dev/{node} 2>&1; " for node in NODES) + "true"
        done = self.exec(handle, line, *flags)
        assert done.returncode == 0, done.stderr
        said = done.stdout.splitlines()
        return {node: text.rpartition(": ")[2] for node, text in zip(NODES, said, strict=True)}

    def remove(self, handle: str) -> None:
        self.ctr("task", "kill", "-s", "KILL", handle)
        self.ctr("task", "delete", "-f", handle)
        self.ctr("container", "delete", handle)

    def close(self) -> None:
        """End everything in this namespace, and take back the cgroups that runc leaves."""
        if self.started:
            for handle in self.ctr("container", "list", "-q").stdout.split():
                self.remove(handle)
        mine = os.readlink(f"/proc/{self.holder.pid}/ns/mnt")
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(process / "ns" / "mnt") == mine:
                    os.kill(int(process.name), signal.SIGKILL)
        assert self.holder.stdin
        self.holder.stdin.close()
        self.holder.wait(10)
        self.log.close()
        for folder in parents_of_containers() - self.cgroups:
            with contextlib.suppress(OSError):
                folder.rmdir()


def own_cgroups() -> set[pathlib.Path]:
    """Where runc makes a relative path for this process: below its own cgroup, of v2 beside it."""
    found = set()
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        hierarchy = cgroups.hierarchy(controllers)
        found |= {hierarchy / path.lstrip("/"), (hierarchy / path.lstrip("/")).parent}
    return {place for place in found if cgroups.ROOT in place.parents or place == cgroups.ROOT}


def garden() -> str:
    """The group of this process's containers.

    Of v2 beside v1, runc 1.1.5 makes it below the root whatever group its caller is in, and tests
    that run side by side call their containers alike.
    """
    return f"garden-{os.getpid()}"


def parents_of_containers() -> set[pathlib.Path]:
    """Where runc has made a group for containers of a process in this one's cgroups."""
    return {place / garden() for place in own_cgroups() if (place / garden()).is_dir()}


@contextlib.contextmanager
def worker_in_a_namespace() -> Iterator[Worker]:
    """A Worker; its folder is not pytest's, which no container's root may enter."""
    with tempfile.TemporaryDirectory() as folder:
        runs.note("folder", folder)
        pathlib.Path(folder).chmod(0o711)
        worker = Worker(pathlib.Path(folder))
        try:
            yield worker
        finally:
            worker.close()
