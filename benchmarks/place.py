# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Where the measurements run: a mount namespace with simulated GPUs, and wrappers in it."""

import contextlib
import ctypes
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from gpu_agent import paths
from gpu_agent.model.inventory import Gpu, MigDevice
from gpu_agent.paths import PYTHON
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
from gpu_runtime import lease_manager as broker
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from machine import templates
from tests.functional.containerd_worker import ROOT, Worker, worker_in_a_namespace
from tests.unit.wrapper_rig import CONCOURSE, TASKS

CLONE_NEWNS = 0x00020000  # sched.h
PR_SET_CHILD_SUBREAPER = 36  # sys/prctl.h
LIBC = ctypes.CDLL(None, use_errno=True)
SCRATCH = Path("/run/bench")  # on a tmpfs, as containerd's bundles and the store of leases are
BUNDLES = SCRATCH / "bundles"
ROOT_OF_RUNC = SCRATCH / "runc"
IMAGE = "image/volume"  # beside the volumes that are copies of it
SPEC_BYTES = 27_000  # of a task's config.json under the real Concourse 8.3
RUNC = Path(CONCOURSE["runc"])


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def become_subreaper() -> None:
    """Containers' processes become this one's children, as they become the shim's."""
    _checked(LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


@contextlib.contextmanager
def started() -> Iterator[Worker]:
    """A worker with two GPUs, our wrapper and containerd."""
    become_subreaper()
    with worker_in_a_namespace() as worker:
        worker.charm(0, 1)
        worker.start()
        yield worker


@contextlib.contextmanager
def entered(worker: Worker) -> Iterator[None]:
    """This process is in the worker's mount namespace, so that starting a call costs nothing."""
    folder = Path.cwd()
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    theirs = os.open(f"/proc/{worker.holder.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _checked(LIBC.setns(theirs, CLONE_NEWNS))
        SCRATCH.mkdir(exist_ok=True)
        yield
    finally:
        _remove_containers()
        _checked(LIBC.setns(own, CLONE_NEWNS))
        os.chdir(folder)
        os.close(own)
        os.close(theirs)


def _remove_containers() -> None:
    """Those that a failed measurement left."""
    for state in ROOT_OF_RUNC.glob("*"):
        command = [RUNC, "--root", ROOT_OF_RUNC, "delete", "--force", state.name]
        subprocess.run(command, check=False, timeout=30)


class Wrapper:
    """The front and the back end in a folder of their own, with a policy and a store."""

    def __init__(
        self,
        name: str,
        gpus: tuple[Gpu, ...],
        *,
        runc: Path = RUNC,
        rule: Mapping[str, float] = MappingProxyType({}),
        **policy: object,
    ) -> None:
        """Install them below SCRATCH.

        Args:
            name: of the folder.
            gpus: for tasks.
            runc: the next runtime, whatever the policy.
            rule: what is to differ of gpu_runtime.lease_scheduler's constants.
            policy: what is to differ from the charm's.
        """
        self.folder = SCRATCH / name
        self.bin = self.folder / "bin"
        self.store = self.folder / "run" / "gpu-ci" / "leases"
        self.log = self.folder / "oci.log"
        self.front = self.bin / "runc"
        lib = self.folder / "lib" / "gpu_runtime"
        self.bin.mkdir(parents=True)
        (self.folder / "run").mkdir()
        shutil.copytree(
            ROOT / "lib" / "gpu_runtime", lib, ignore=shutil.ignore_patterns("__pycache__")
        )
        _set(lib / "lease_scheduler.py", rule)
        command = [PYTHON, "-I", "-m", "compileall", "-q", "--invalidation-mode"]
        subprocess.run([*command, "unchecked-hash", lib], check=True, timeout=60)
        policy_path = self.folder / "policy.json"
        self.front.write_text(
            templates.render(
                paths.TEMPLATES,
                "runc",
                runc=runc,
                tasks=install.pattern(TASKS),
                python=PYTHON,
                lib=lib,
                store=self.store,
                policy=policy_path,
                bin=self.bin,
                log=self.log,
            )
        )
        self.front.chmod(0o755)
        content = json.loads(install.policy_text(GpuPlan(gpus, str(runc), tasks=TASKS)))
        policy_path.write_text(json.dumps({**content, "cordons": [], **policy}))

    def give_back(self) -> None:
        """End the leases of containers that are gone, as the watch does."""
        store, host = Store(str(self.store)), Host()
        for name in store.read().holders:
            broker.give_back(store, host, name)

    def decisions(self) -> list[dict]:
        """The lines of its log so far, which begins anew."""
        lines = self.log.read_text().splitlines()
        self.log.unlink()
        return [json.loads(line) for line in lines]


def _set(module: Path, constants: Mapping[str, float]) -> None:
    text = module.read_text()
    for name, value in constants.items():
        text, count = re.subn(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
        if count != 1:
            raise LookupError(f"{module} sets {name} {count} times")
    module.write_text(text)


def classical_wrapper() -> Path:
    """The one of bash and jq, installed below SCRATCH."""
    path = SCRATCH / "classical-wrapper"
    text = Path(__file__).with_name("classical-wrapper").read_text()
    path.write_text(text.replace("@RUNC@", str(RUNC)).replace("@GPU@", uuid(0)))
    path.chmod(0o755)
    return path


def uuid(number: int, kind: str = "GPU") -> str:
    return f"{kind}-{number:08x}-1111-2222-3333-444444444444"


def gpus(count: int, mig: int = 0) -> tuple[Gpu, ...]:
    """`count` GPUs, each with `mig` MIG devices."""
    return tuple(
        Gpu(
            index,
            uuid(index),
            "nvidia",
            "NVIDIA A100-SXM4-80GB",
            memory_mib=81920,
            pci_address=f"0000:{index:02x}:00.0",
            minor=index,
            mig_enabled=bool(mig),
            mig=tuple(
                MigDevice(uuid(index * mig + part, "MIG"), "1g.10gb") for part in range(mig)
            ),
        )
        for index in range(count)
    )


def concourse_spec(worker: Worker, name: str, *params: str) -> dict:
    """The spec of a step as Concourse writes it: `name` is that of a golden one.

    It gets a seccomp profile and as many variables as bring it to SPEC_BYTES. Its root is to be a
    volume of its own (see make_root), beside the one of its work folder.
    """
    spec = worker.spec(name, "HANDLE")
    volumes = worker.folder / "volumes" / "live"
    image = volumes / IMAGE
    if not image.exists():
        _copy(worker.rootfs, image)
    spec["root"]["path"] = str(volumes / "HANDLE" / "volume")
    for mount in spec["mounts"]:
        if mount["source"] == str(worker.folder / "work"):
            mount["source"] = str(volumes / "work" / "volume")
            Path(mount["source"]).mkdir(parents=True, exist_ok=True)
    spec["linux"]["seccomp"] = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "syscalls": [{"names": _system_calls(), "action": "SCMP_ACT_ALLOW"}],
    }
    spec["process"]["env"] += params
    number = 0
    while len(compact(spec)) < SPEC_BYTES:
        value = f"/opt/image/{number:03}/share/with/some/path"
        spec["process"]["env"].insert(1, f"IMAGE_VARIABLE_{number:03}={value}")
        number += 1
    return spec


def make_root(spec: dict, handle: str) -> Path:
    """Make the root of a container with a spec of `concourse_spec`; the folder of its volume."""
    root = Path(spec["root"]["path"].replace("HANDLE", handle))
    _copy(root.parent.parent / IMAGE, root)
    return root.parent


def _copy(source: Path, target: Path) -> None:
    """A root file system with the same files and owners; only its folders are its own."""
    target.parent.mkdir(parents=True)
    subprocess.run(["/bin/cp", "-al", source, target], check=True, timeout=60)


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _system_calls() -> list[str]:
    """Names of this machine's system calls: a profile's size, and its cost for runc."""
    source = "#include <sys/syscall.h>\n"
    command = ["gcc", "-E", "-dM", "-"]
    done = subprocess.run(
        command, input=source, capture_output=True, text=True, check=True, timeout=60
    )
    words = (line.split()[1] for line in done.stdout.splitlines() if " __NR_" in line)
    return sorted({word.removeprefix("__NR_") for word in words})
