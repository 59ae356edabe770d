# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The worker of containerd_worker.py with Debian's own podman and Docker, out of .engines/.

Without a network: its images are made here, of busybox and of variables.
"""

import contextlib
import hashlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import uuid

import pytest

from tests import runs
from tests.functional import containerd_worker, lease_site
from tests.functional.containerd_worker import ROOT, RUNTIME, Worker
from tests.lab import cgroups

ENGINES = ROOT / ".engines"
HAS_ENGINES = (ENGINES / "usr/sbin/dockerd").exists()
NEEDS = [
    *containerd_worker.NEEDS,
    pytest.mark.skipif(
        not HAS_ENGINES,
        reason="there is no podman and no dockerd: scripts/setup test could not download them",
    ),
]
FRONT = "/opt/gpu-ci/engines/gpu-ci"
DOCKER = ("/usr/bin/docker",)
PODMAN = ("/usr/bin/podman",)

# As in a machine of its own: networks and firewall of the host are out of reach.
SETUP = (
    'ip link set lo up; export ENGINES="$LAB/engines"\n'
    + containerd_worker.SETUP.replace("lowerdir=/$folder", "lowerdir=$ENGINES/$folder:/$folder")
    + """
ldconfig
mkdir -p /var/lib/docker /var/lib/containers "$LAB/docker" "$LAB/containers"
mount --bind "$LAB/docker" /var/lib/docker
mount --bind "$LAB/containers" /var/lib/containers
# Docker takes --gpus only where it finds this; nobody may ever run it.
printf '#!/bin/sh\\nexit 77\\n' >/usr/bin/nvidia-container-runtime-hook
chmod 755 /usr/bin/nvidia-container-runtime-hook
if [ -e "$LAB/lacking" ]; then
    cp "$(command -v runc)" /usr/bin/real-runc
    install -m 755 "$LAB/lacking" /usr/bin/runc
fi
touch "$LAB/furnished"
"""
)

# Docker before 23 has a privileged container get every capability that the kernel knows (20.10
# oci/caps/utils.go), which no runtime can give where this machine lacks one. That one apart, runc
# gets what the engine wrote.
_LACKED, _NUMBER = "CAP_SYS_RESOURCE", 24  # linux/capability.h
LACKING = f"""#!/bin/sh
file= before=
for word do
    case $before in
        --bundle) file=$word/config.json ;;
        --process) file=$word ;;
    esac
    before=$word
done
if [ -n "$file" ] && grep -qs {_LACKED} "$file"; then
    sed -zi 's/"{_LACKED}",\\s*//g; s/,\\s*"{_LACKED}"//g' "$file"
fi
exec /usr/bin/real-runc "$@"
"""

CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
[engine.runtimes]
gpu-ci = ["/opt/gpu-ci/engines/gpu-ci"]
"""

# What the charm does: `apply(GpuPlan)`.
CHARM = """
import json, sys
from gpu_agent.engines.front import Front
from gpu_agent.model.inventory import Gpu
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
options, *indexes = sys.argv[1:]
gpus = tuple(
    Gpu(int(i), f"GPU-0000000{i}-1111-2222-3333-444444444444", "nvidia",
        "NVIDIA A100-SXM4-80GB", 81920, f"0000:0{i}:00.0", int(i))
    for i in indexes
)
install.apply(GpuPlan(gpus, "/usr/bin/nvidia-container-runtime", **json.loads(options)))
Front().apply(nvidia_runtime=True)
"""

# The charm's own registration; where no systemd is, Docker gets the signal that it would send.
REGISTER = """
import os, signal, sys
from gpu_agent.engines import registry
from gpu_agent.engines.docker import engine as docker
from gpu_agent.engines.docker.daemon_json import DaemonJson
from gpu_agent.engines.engine import Engine, EnginesPlan
def reload(_):
    os.kill(int(sys.argv[1]), signal.SIGHUP)
    return True
file = DaemonJson(reload=reload)
engines = registry.PODMAN, Engine("docker", file.ensure, file.remove, docker.is_in_use)
names = tuple(sys.argv[3:])
plan = EnginesPlan(names, names if sys.argv[2] == "default" else ()) if names else None
print(registry.ensure(plan, engines))
"""

APPLETS = ("sh", "cat", "sleep", "env", "ls", "mknod", "setsid", "true")


class Machine(Worker):
    """A worker with podman, dockerd and two GPUs."""

    def __init__(self, folder: pathlib.Path) -> None:
        engines = folder / "engines"
        for name in ("dev", "etc", "opt", "usr", "var"):
            (engines / name).mkdir(parents=True)
            if (ENGINES / name).is_dir():
                (engines / name).rmdir()
                (engines / name).symlink_to(ENGINES / name)
        if _lacks():
            (folder / "lacking").write_text(LACKING)
        self.daemon: subprocess.Popen | None = None
        self.parent = _cgroup_parent()
        super().__init__(folder, SETUP, ("-m", "-n"))
        self._wait((folder / "furnished").exists)
        self._put("/etc/containers/containers.conf", CONTAINERS_CONF)

    def _put(self, path: str, text: str) -> None:
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path(path).write_text(text)

    def _in(self, *argv: object) -> list[str]:
        nsenter = ["nsenter", "-t", str(self.holder.pid), "-m", "-n", "--wd=/", "--"]
        return [*nsenter, *map(str, argv)]

    def path(self, name: str) -> pathlib.Path:
        """A path of the machine, from outside."""
        return pathlib.Path(f"/proc/{self.holder.pid}/root{name}")

    def install(self, *gpus: int, **options: object) -> None:
        """Have wrapper and runtime for these GPUs; `options` are GpuPlan's."""
        env = {"PYTHONPATH": f"{ROOT}/src:{ROOT}/lib", "PATH": os.environ["PATH"]}
        done = self.inside(sys.executable, "-c", CHARM, json.dumps(options), *gpus, env=env)
        assert done.returncode == 0, done.stderr

    def register(self, *names: str, default: bool = False) -> str:
        """Have these engines know our runtime, as the charm does; none: none of them."""
        assert self.daemon
        env = {"PYTHONPATH": f"{ROOT}/src:{ROOT}/lib", "PATH": os.environ["PATH"]}
        mode = "default" if default else "named"
        words = (sys.executable, "-c", REGISTER, self.daemon.pid, mode, *names)
        done = self.inside(*words, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def start_docker(self, **settings: object) -> None:
        """Start dockerd with our runtime; `settings` are daemon.json's."""
        config = {
            "runtimes": {"gpu-ci": {"path": FRONT}}, "iptables": False, "bridge": "none",
            "exec-opts": ["native.cgroupdriver=cgroupfs"], "cgroup-parent": self.parent,
            "default-ulimits": {
                "nofile": {"Name": "nofile", "Hard": 20000, "Soft": 20000},
                "nproc": {"Name": "nproc", "Hard": 32768, "Soft": 32768},
            },
            **settings,
        }  # fmt: skip
        self._put("/etc/docker/daemon.json", json.dumps(config))
        self.said = (self.folder / "dockerd.log").open("w")
        path = "/usr/sbin:/usr/bin:/sbin:/bin"
        self.daemon = subprocess.Popen(
            self._in("/usr/bin/env", "-i", f"PATH={path}", "/usr/sbin/dockerd"),
            stdin=subprocess.DEVNULL, stdout=self.said, stderr=self.said,
        )  # fmt: skip
        lease_site.until(lambda: self.inside(*DOCKER, "version").returncode == 0, 60)

    def load(self, name: str, *variables: str) -> None:
        """Have an image under that name in both engines."""
        archive = self.folder / f"{name}.tar"
        write_image(archive, f"lab.test/{name}:latest", variables)
        for engine in (PODMAN, *([DOCKER] if self.daemon else [])):
            done = self.inside(*engine, "load", "-i", archive)
            assert done.returncode == 0, done.stderr

    def command(self, engine: tuple[str, ...], verb: str, *words: str) -> list[object]:
        """An engine's command line; containers are below the test's own control group."""
        named = [word for word in words if word.startswith("--runtime=")]
        runtime, rest = (
            named or ["--runtime=gpu-ci"],
            [word for word in words if word not in named],
        )
        if engine == PODMAN:
            return [*engine, *runtime, verb, f"--cgroup-parent={self.parent}", *rest]
        return [*engine, verb, *runtime, *rest]

    def start(self, engine: tuple[str, ...], *words: str) -> subprocess.CompletedProcess[str]:
        """`podman run` or `docker run`, with these words after it."""
        return self.inside(*self.command(engine, "run", *words))

    def begin_start(self, engine: tuple[str, ...], *words: str) -> subprocess.Popen[str]:
        """The same, which goes on beside the test."""
        return subprocess.Popen(
            self._in(*self.command(engine, "run", *words)),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def sweep(self) -> None:
        """End all containers, and forget all leases."""
        for engine in (PODMAN, *([DOCKER] if self.daemon else [])):
            names = self.inside(*engine, "ps", "-aq").stdout.split()
            if names:
                self.inside(*engine, "unpause", *names)
                self.inside(*engine, "kill", *names)  # rm gives a first process 10 s to heed it
                self.inside(*engine, "rm", "-f", *names)
        self.inside("rm", "-rf", "/run/gpu-ci/leases")

    def close(self) -> None:
        self.sweep()
        if self.daemon:
            self.daemon.send_signal(signal.SIGTERM)
            self.daemon.wait(60)
            self.said.close()
        super().close()
        top = pathlib.Path("/sys/fs/cgroup")
        for hierarchy in (top, *top.iterdir()):
            made = pathlib.Path(f"{hierarchy}{self.parent}")
            # Above it too, in hierarchies where the tests' own group lies elsewhere.
            for folder in (*sorted(made.glob("**/"), reverse=True), made.parent):
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _lacks() -> bool:
    """Whether root has not that capability here, as in some containers and virtual machines."""
    status = pathlib.Path("/proc/self/status").read_text()
    bounding = status.partition("CapBnd:")[2].split()[0]
    return not int(bounding, 16) >> _NUMBER & 1


def _cgroup_parent() -> str:
    """Where containers are: below what a run of the tests takes away, which is in v2 beside it."""
    lines = pathlib.Path("/proc/self/cgroup").read_text().splitlines()
    paths = {name: path for _, name, path in (line.split(":", 2) for line in lines)}
    own = os.path.dirname(paths[""]) if cgroups.is_unified() else paths["devices"]
    return f"{own.rstrip('/')}/gpu-ci-engines-{uuid.uuid4().hex[:8]}"


def write_image(path: pathlib.Path, name: str, variables: tuple[str, ...]) -> None:
    """An image of one layer as `docker save` writes it, which both engines load."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for folder in ("bin", "etc", "proc", "sys", "dev", "tmp", "usr", "usr/lib"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        archive.add(containerd_worker.shutil.which("busybox") or "", arcname="bin/busybox")
        for applet in APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(entry)
    data = layer.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64", "os": "linux",
            "config": {"Env": ["PATH=/bin", *variables], "Cmd": ["sh"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()  # fmt: skip
    named = f"{hashlib.sha256(config).hexdigest()}.json"
    told = [{"Config": named, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
    parts = {
        named: config, f"{digest}/layer.tar": data, "manifest.json": json.dumps(told).encode(),
    }  # fmt: skip
    with tarfile.open(path, "w") as archive:
        for inside, content in parts.items():
            entry = tarfile.TarInfo(inside)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


@contextlib.contextmanager
def engine_machine():
    """A Machine whose engines run."""
    with tempfile.TemporaryDirectory() as folder:
        runs.note("folder", folder)
        pathlib.Path(folder).chmod(0o711)
        machine = Machine(pathlib.Path(folder))
        try:
            machine.install(0, 1)
            machine.start_docker()
            machine.load("plain")
            machine.load("cuda", "CUDA_VERSION=12.4", "NVIDIA_VISIBLE_DEVICES=all", "GPU_COUNT=7")
            yield machine
        finally:
            machine.close()


__all__ = ["DOCKER", "NEEDS", "PODMAN", "RUNTIME", "engine_machine"]
