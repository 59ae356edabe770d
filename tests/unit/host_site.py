# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A Concourse worker with two GPUs as a folder, its GPU runtime really installed."""

import contextlib
import dataclasses
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.concourse import agent_view
from ci.concourse.checks import __main__ as concourse_checks
from ci.concourse.worker import launcher, volumes
from gpu_agent import paths as wrapper
from gpu_agent.availability import known_gpus as known
from gpu_agent.engines.front import Front
from gpu_agent.model.inventory import Gpu, Inventory, State
from gpu_agent.runtime import install
from gpu_agent.runtime import nvidia_config as nvidia
from gpu_agent.runtime.settings import GpuPlan
from gpu_selftest.check import Outcome
from gpu_selftest.quick import ci_checks, device_nodes, host_checks
from gpu_selftest.quick.ci_checks import Answer
from gpu_selftest.settings import Settings
from tests.unit.situations import GPUS, MACHINE, READY, RUNTIME
from tests.unit.wrapper_rig import CONCOURSE

IS_ROOT = os.geteuid() == 0
MOVED = (
    "HOME BIN FRONT SELFTEST LIB BACK_END LINK CONFIG POLICY RUN STORE EXTERNAL LOG "
    "ENGINES ENGINES_CONFIG"
).split()
# What the service asks for, and what its containerd has where systemd could set that.
LIMITS = {"NOFILE": "1048576", "NPROC": "infinity", "MEMLOCK": "infinity"}
KERNELS_LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max processes             unlimited            unlimited            processes
Max open files            1048576              1048576              files
Max locked memory         unlimited            unlimited            bytes
"""
DEVICES = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n510 nvidia-uvm\n\n"
BLOCK = "Block devices:\n259 blkext\n"
NODES = {"nvidiactl": (195, 255), "nvidia-uvm": (510, 0), "nvidia-uvm-tools": (510, 1)}
SERVICE = "etc/systemd/system/concourse-worker.service"
ENVIRONMENT = "etc/concourse/worker.env"
FRONT = "opt/gpu-ci/bin/runc"
ENGINES_FRONT = "opt/gpu-ci/engines/gpu-ci"
ENGINES_CONFIG = "etc/gpu-ci/engines/nvidia-container-runtime/config.toml"
CONFIG = "etc/gpu-ci/nvidia-container-runtime/config.toml"


class Room:
    """What os.statvfs says of every file system: room in GB, and files."""

    def __init__(self, gb: float, files: int = 1000, inodes: int = 1000) -> None:
        self.f_bavail, self.f_frsize = int(gb * 1e9 / 4096), 4096
        self.f_files, self.f_favail = files, inodes


class Site:
    """The worker; `inventory`, `machine`, `settings` and `room` may be replaced."""

    def __init__(self, root: Path, gpus: tuple[Gpu, ...] = GPUS) -> None:
        self.root = root
        self.inventory = dataclasses.replace(READY, gpus=gpus, vendor=gpus[0].vendor)
        self.machine = MACHINE
        self.room = Room(200)
        assert self.install()
        view = agent_view.make("worker", has_web=False)
        self.settings = Settings(
            "worker/0",
            gpus=gpus,
            files=self.installed(),
            programs=(str(launcher.PATH),),
            runc=view.runc,
            runc_remedy=view.runc_remedy,
            checks=view.checks,
            disks=view.disks,
        )
        self.put("proc/net/unix", "")
        self.put("proc/devices", DEVICES + BLOCK)
        runc = self.put("opt/concourse/8.3.0/bin/runc", "#!/bin/sh\n")
        runc.chmod(0o755)
        (root / "opt/concourse/current").symlink_to("8.3.0")
        asked = "".join(f"Limit{name}={most}\n" for name, most in LIMITS.items())
        self.put(
            SERVICE, f'ExecStart=concourse "worker" "--tag=gpu" "--tag=gpu-type=nvidia"\n{asked}'
        )
        driver = "CONCOURSE_BAGGAGECLAIM_DRIVER=overlay\n"
        self.put(ENVIRONMENT, f'{driver}CONCOURSE_CONTAINERD_BIN="{launcher.PATH}"\n')
        self.process("self", "/usr/bin/python3", "/usr/bin")
        self.process(4711, "/opt/concourse/8.3.0/bin/containerd", "/opt/gpu-ci/bin:/usr/bin")
        self.put("proc/4711/limits", KERNELS_LIMITS)
        self.process(4712, "/usr/bin/containerd", "/usr/bin")
        self.process(4713, "/opt/concourse/8.3.0/bin/concourse", "/usr/bin")
        for name, numbers in NODES.items():
            self.node(name, *numbers)
        for gpu in gpus:
            self.node(f"nvidia{gpu.minor}", 195, gpu.minor)
        self.run()

    @contextlib.contextmanager
    def _charm(self) -> Iterator[None]:
        """Have the charm's room for the wrapper work below the root."""
        with pytest.MonkeyPatch.context() as patch:
            for name in MOVED:
                patch.setattr(wrapper, name, self.root / str(getattr(wrapper, name)).lstrip("/"))
            patch.setattr(nvidia, "PACKAGED", self.root / "packaged.toml")
            patch.setattr(launcher, "PATH", self.root / str(launcher.PATH).lstrip("/"))
            yield

    def install(self) -> bool:
        self.path("usr/local/bin").mkdir(parents=True, exist_ok=True)
        with self._charm():
            done = install.apply(GpuPlan(self.inventory.gpus, RUNTIME, **CONCOURSE))
            done |= launcher.ensure()
            engines = Front(self.root / ENGINES_FRONT, wrapper.ENGINES_CONFIG)
            return engines.apply(nvidia_runtime=True) or done

    def installed(self) -> dict[str, str]:
        with self._charm():
            told = install.installed([launcher.PATH])
        return {path.removeprefix(str(self.root)): what for path, what in told.items()}

    def put(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def process(
        self, pid: int | str, program: str, path: str, namespace: str = "pid:[4026531836]"
    ) -> None:
        folder = self.root / f"proc/{pid}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "exe").unlink(missing_ok=True)
        (folder / "exe").symlink_to(program)
        (folder / "ns").mkdir(exist_ok=True)
        (folder / "ns/pid").unlink(missing_ok=True)
        (folder / "ns/pid").symlink_to(namespace)
        (folder / "environ").write_bytes(b"HOME=/root\0PATH=" + path.encode() + b"\0TERM=dumb\0")

    def node(self, name: str, major: int, minor: int, mode: int = 0o666) -> None:
        """Make a device node, which only root can."""
        if not IS_ROOT:
            return
        path = self.root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mknod(path, stat.S_IFCHR, os.makedev(major, minor))
        path.chmod(mode)

    def path(self, name: str) -> Path:
        return self.root / name

    def known(self):
        return known.read(self.root / "var/lib/gpu-ci/inventory.json")

    def lose(self, *uuids: str) -> None:
        """Have GPUs vanish from the bus."""
        left = tuple(gpu for gpu in self.inventory.gpus if gpu.uuid not in uuids)
        state = State.READY if left else State.NO_GPU
        self.inventory = dataclasses.replace(self.inventory, gpus=left, state=state)

    def start_past_the_launcher(self) -> None:
        """Have Concourse's containerd run as from before the wrapper, in a release since gone."""
        self.process(4711, "/opt/concourse/8.2.5/bin/containerd (deleted)", "/usr/bin:/bin")

    def ask_for_a_newer_driver(self) -> None:
        self.settings = dataclasses.replace(self.settings, min_driver_version="580.95.10")

    def unusable(self, state: State, detail: str = "0000:01:00.0") -> None:
        self.inventory = Inventory(state, detail=detail, driver="580.95.05", vendor="nvidia")

    def prove(self, driver: str, work_dir: Path) -> None:
        """Make a volume with this driver, there; it is made."""
        assert work_dir == self.root / "var/lib/concourse/worker"

    def concourse(self) -> Answer:
        """What Concourse's own program answers here."""
        return concourse_checks.answer(self.settings.files, self.root)

    def listen(self, program: str, cgroup: str) -> None:
        """Have this program listen on containerd's socket."""
        self.put(
            "proc/net/unix",
            "0: 00000002 00000000 00010000 0001 01 77 /run/containerd/containerd.sock\n",
        )
        self.process(4715, program, "/usr/bin")
        self.put("proc/4715/cgroup", f"0::/system.slice/{cgroup}\n")
        (self.path("proc/4715") / "fd").mkdir()
        (self.path("proc/4715") / "fd/3").symlink_to("socket:[77]")

    def run(self, **seen):
        """All results; without root, which makes no device nodes, none of those."""
        return self.judge(
            host_checks.Look(self.inventory, self.machine, self.known(), root=self.root, **seen)
        )

    def judge(self, look: host_checks.Look):
        """The results for this state of the machine."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(volumes, "prove", self.prove)
            answer = ci_checks.read(ci_checks.as_json(self.concourse()))
            found = host_checks.run(self.settings, look, answer, lambda _: self.room)
        return [one for one in found if IS_ROOT or one.check != device_nodes.CHECK.id]


def named(results, outcome):
    """Check and GPU of the results of one outcome."""
    return [(one.check, one.gpu) for one in results if one.outcome is outcome]


def red(results):
    """The one result that failed."""
    (failed,) = (one for one in results if one.outcome is Outcome.FAILED)
    return failed
