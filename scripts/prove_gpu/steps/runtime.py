# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The GPU runtime by direct calls, as a container engine's shim makes them."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import stat
import sys
import tempfile
import time
import typing

from gpu_agent.model.inventory import Inventory
from gpu_agent.runtime import nvidia_config
from gpu_runtime.lease_store import Store
from gpu_selftest.isolation import rootfs, task_bundle
from gpu_selftest.isolation.rootfs import Mount
from machine import process
from prove_gpu import rig
from prove_gpu.proof import NotRunError, Proof

# A virtual environment, whose interpreter is a link, is not mounted into containers.
_PYTHON = os.path.realpath(sys.executable)
_USERS = pathlib.Path("/proc/self/uid_map")
# In seconds: a call, which may wait for no one here, and the life of a container.
_CALL, _LIFE = 30, 20
# It stands for the next runtime: it keeps config.json as it got it, and ends.
_RECORDER = """\
#!/bin/sh
while [ $# -gt 0 ]; do
    if [ "$1" = --bundle ]; then cp "$2/config.json" "$2/{name}.json"; fi
    shift
done
"""
# It says what opening each of the nodes in argv says: 0, an error's number, or that it is missing.
# A node that is missing is made first, where the container may do that.
_INSIDE = """
import json, os, stat, sys
found = {}
for word in sys.argv[1:]:
    path, major, minor = word.split(":")
    made = "/tmp/" + os.path.basename(path)
    try:
        if not os.path.exists(path):
            os.mknod(made, stat.S_IFCHR | 0o600, os.makedev(int(major), int(minor)))
            path = made
        os.close(os.open(path, os.O_RDWR))
        found[word] = 0
    except OSError as error:
        found[word] = error.errno
print(json.dumps({"nodes": found, "visible": os.environ.get("NVIDIA_VISIBLE_DEVICES")}))
"""


@dataclasses.dataclass(frozen=True)
class _Site:
    """Where the calls of one step happen.

    Attributes:
        folder: everything of the step.
        runc: the next runtime of a container without a GPU.
        policy: policy.json.
    """

    folder: pathlib.Path
    runc: str
    policy: pathlib.Path

    @property
    def log(self) -> pathlib.Path:
        """The decision log."""
        return self.folder / "oci.log"

    def command(self, *words: str) -> list[str]:
        """Return the command of a call of the GPU runtime with these words of runc's."""
        program = str(rig.TREE / "lib/gpu_runtime/__main__.py")
        store, wrapper = str(self.folder / "leases"), str(self.folder / "bin")
        argv = [sys.executable, "-I", "-S", program]
        return [*argv, self.runc, str(self.policy), store, wrapper, str(self.log), *words]

    def bundle(
        self,
        name: str,
        *,
        work: str = f"{rig.TASKS.parent}{task_bundle.TASK}",
        params: tuple[str, ...] = (),
        image: tuple[str, ...] = (),
        argv: tuple[str, ...] = ("/bin/true",),
        mounts: tuple[Mount, ...] = (),
    ) -> pathlib.Path:
        """Make the bundle of a container that works in this folder, by default a task."""
        owner = _highest_id()
        made, root, source = (
            self.folder / place / name for place in ("bundles", "roots", "works")
        )
        rootfs.make(root, {}, owner)
        for folder in (made, source):
            folder.mkdir(parents=True)
        os.chown(source, owner, owner)
        environment = task_bundle.variables(image, params)
        first = task_bundle.process(argv, environment)
        every = [*mounts, Mount(str(source), work, ("bind", "rw"))]
        config = task_bundle.config(f"prove/{name}", str(root), first, every, {}, owner)
        (made / "config.json").write_text(json.dumps(config))
        return made


def calls(proof: Proof) -> None:
    """Call the runtime with stand-ins for runc and NVIDIA's runtime, which keep what they got."""
    found = rig.inventory()
    rig.check_unused([f"/dev/nvidia{gpu.minor}" for gpu in found.gpus])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        folder.chmod(0o711)
        for stand_in in ("runc", "nvidia"):
            path = folder / stand_in
            path.write_text(_RECORDER.format(name=stand_in))
            path.chmod(0o755)
        policy, made = rig.write_policy(folder, found, runtime=str(folder / "nvidia"))
        site = _Site(folder, str(folder / "runc"), policy)
        ids = [device.id for device in made.devices]
        _granted(proof, site, ids)
        _denied(proof, site)
        _refused(proof, site, found, len(ids))


def _granted(proof: Proof, site: _Site, ids: list[str]) -> None:
    bundle = site.bundle(
        "one",
        params=("GPU_COUNT=1",),
        image=("NVIDIA_VISIBLE_DEVICES=all", "CUDA_VISIBLE_DEVICES=7"),
    )
    began = time.monotonic()
    status, code = _create(site, bundle, "one")
    proof.figure("a call that grants a GPU", round((time.monotonic() - began) * 1000), "ms")
    proof.equal("one GPU: exit status and code", (0, ""), (status, code))
    proof.equal("one GPU: called next", ["nvidia"], _called(bundle))
    values = _values(bundle / "nvidia.json")
    proof.equal(
        "one GPU: NVIDIA_VISIBLE_DEVICES", [[ids[0]]], [values.get("NVIDIA_VISIBLE_DEVICES", [])]
    )
    proof.equal("one GPU: GPU_COUNT", ["1"], values.get("GPU_COUNT"))
    proof.equal(
        "one GPU: the image's CUDA_VISIBLE_DEVICES", None, values.get("CUDA_VISIBLE_DEVICES")
    )
    proof.equal("one GPU: the lease", {"one": [ids[0]]}, _leases(site))
    lines = [json.loads(line) for line in site.log.read_text().splitlines()]
    proof.equal(
        "one GPU: the decision log",
        [("one", [ids[0]])],
        [(line["container"], line["granted"]) for line in lines],
    )
    proof.figure("of these, the decision", lines[-1]["decided_ms"], "ms")
    bundle = site.bundle("all", params=("GPU_COUNT=all",))
    # The first container has no process, so that its lease is over.
    status, code = _create(site, bundle, "all")
    proof.equal("all GPUs: exit status and code", (0, ""), (status, code))
    values = _values(bundle / "nvidia.json")
    proof.equal(
        "all GPUs: NVIDIA_VISIBLE_DEVICES", [",".join(ids)], values.get("NVIDIA_VISIBLE_DEVICES")
    )
    proof.equal("all GPUs: the leases", {"all": ids}, _leases(site))


def _denied(proof: Proof, site: _Site) -> None:
    bundle = site.bundle("none", params=("GPU_COUNT=0",), image=("NVIDIA_VISIBLE_DEVICES=all",))
    status, code = _create(site, bundle, "none")
    proof.equal("no GPU: exit status and code", (0, ""), (status, code))
    proof.equal("no GPU: called next", ["runc"], _called(bundle))
    values = _values(bundle / "runc.json") if (bundle / "runc.json").exists() else {}
    proof.equal("no GPU: NVIDIA_VISIBLE_DEVICES", ["void"], values.get("NVIDIA_VISIBLE_DEVICES"))
    others = {
        "another step": f"{rig.TASKS.parent}{rig.TASKS.others[0]}",
        "a task of another CI system": f"/srv/{task_bundle.TASK}",
    }
    for place, (words, work) in enumerate(others.items()):
        bundle = site.bundle(f"other-{place}", work=work, params=("GPU_COUNT=1",))
        before = (bundle / "config.json").read_bytes()
        status, code = _create(site, bundle, f"other-{place}")
        proof.equal(f"{words}: exit status and code", (0, ""), (status, code))
        same = (bundle / "config.json").read_bytes() == before
        proof.equal(
            f"{words}: called next, and config.json unchanged",
            (["runc"], True),
            (_called(bundle), same),
        )


def _refused(proof: Proof, site: _Site, found: Inventory, count: int) -> None:
    major = int((found.cuda or "13.0").split(".")[0])
    cases = {
        "too-few-gpus": ((f"GPU_COUNT={count + 1}",), ()),
        "gpu-count-invalid": (("GPU_COUNT=many",), ()),
        "requirement-unmet": (("GPU_COUNT=1",), (f"NVIDIA_REQUIRE_CUDA=cuda>={major + 1}.0",)),
    }
    for expected, (params, image) in cases.items():
        bundle = site.bundle(expected, params=params, image=image)
        status, code = _create(site, bundle, expected)
        proof.equal(
            f"refusal {expected}: exit status, code, called next",
            (1, expected, []),
            (status, code, _called(bundle)),
        )


def _create(site: _Site, bundle: pathlib.Path, name: str) -> tuple[int, str]:
    """Return the exit status of a create, and the code of its refusal."""
    log = bundle / "log.json"
    words = ["--log", str(log), "--log-format", "json", "create", "--bundle", str(bundle), name]
    done = process.run(site.command(*words), timeout=_CALL, check=False)
    if done.stdout or done.stderr:
        print(done.stdout, done.stderr)
    entries = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return done.returncode, entries[-1].get("code", entries[-1]["msg"]) if entries else ""


def _called(bundle: pathlib.Path) -> list[str]:
    return [name for name in ("nvidia", "runc") if (bundle / f"{name}.json").exists()]


def _values(path: pathlib.Path) -> dict[str, list[str]]:
    """Return the values of each variable in a config.json: there must be one."""
    found: dict[str, list[str]] = {}
    for entry in json.loads(path.read_text())["process"]["env"]:
        name, _, value = entry.partition("=")
        found.setdefault(name, []).append(value)
    return found


def _leases(site: _Site) -> dict[str, list[str]]:
    table = Store(str(site.folder / "leases")).read()
    return {name: holder.gpus for name, holder in table.holders.items()}


def container(proof: Proof) -> None:
    """Open the GPUs' nodes in containers of the real runc, with and without a grant."""
    found = rig.inventory()
    runc = shutil.which("runc")
    if not runc:
        raise NotRunError("there is no runc on PATH")
    nodes = {gpu.uuid: f"/dev/nvidia{gpu.minor}" for gpu in found.gpus if not gpu.mig_enabled}
    if not nodes:
        raise NotRunError("MIG is on for every GPU")
    rig.check_unused([*nodes.values()])
    real = shutil.which("nvidia-container-runtime")
    stand_in = rig.TREE / "tests/fakes/nvidia-container-runtime-standin"
    proof.figure("runc", process.run([runc, "--version"], timeout=10).stdout.splitlines()[0])
    proof.figure("NVIDIA's runtime", real or "a stand-in, which adds the device nodes alone")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o711)
        runtime = real or str(_copy(stand_in, folder / "stand-in"))
        policy, _ = rig.write_policy(folder, found, runtime=runtime)
        nvidia_config.configure(folder, runc)
        site = _Site(folder, runc, policy)
        with _state(site) as state:
            python = rootfs.interpreter(_PYTHON)
            try:
                _inside(site, state, "trial", python, [], own=False)
            except process.CommandError as error:
                raise NotRunError(f"runc makes no container here: {error}") from error
            _with_gpu(proof, site, state, python, nodes)


def _with_gpu(
    proof: Proof,
    site: _Site,
    state: str,
    python: tuple[Mount, ...],
    nodes: dict[str, str],
) -> None:
    words = {
        path: f"{path}:{os.major(number)}:{os.minor(number)}"
        for path in nodes.values()
        if (number := os.stat(path).st_rdev)
    }
    here = {path: _opened(path) for path in words}
    proof.figure("opening the nodes outside, as errors", here)
    said = _inside(site, state, "granted", python, [*words.values()], count=1)
    granted = [path for uuid, path in nodes.items() if uuid in _leases(site).get("granted", [])]
    proof.equal("granted: GPUs in the lease", 1, len(granted))
    for path, word in words.items():
        expected = [here[path]] if path in granted else [1, 2, 13]
        number = said["nodes"][word]
        proof.check(f"granted: opening {path}", number in expected, expected, number)
    said = _inside(site, state, "denied", python, [*words.values()], count=0)
    for path, word in words.items():
        number = said["nodes"][word]
        proof.check(
            f"denied: opening {path}", number in (1, 2, 13), "EPERM, ENOENT, EACCES", number
        )
    proof.equal("denied: NVIDIA_VISIBLE_DEVICES", "void", said["visible"])


def _inside(
    site: _Site,
    state: str,
    name: str,
    python: tuple[Mount, ...],
    words: list[str],
    *,
    count: int = 0,
    own: bool = True,
) -> dict[str, typing.Any]:
    """Run the program in a container; return what it says.

    Args:
        site: where.
        state: runc's folder.
        name: the container's id.
        python: what the interpreter needs.
        words: the program's arguments.
        count: how many GPUs it asks for.
        own: whether it is made through the GPU runtime, and not by runc itself.

    Raises:
        machine.process.CommandError: it is not made, or fails.
    """
    argv = (_PYTHON, "-I", "-S", "-c", _INSIDE, *words)
    bundle = site.bundle(name, params=(f"GPU_COUNT={count}",), argv=argv, mounts=python)
    flags = ["--root", state, "--log", str(bundle / "log.json"), "--log-format", "json"]
    create = [*flags, "create", "--bundle", str(bundle), "--pid-file", f"{bundle}/init.pid", name]
    out, complaints = bundle / "stdout", bundle / "stderr"
    command = site.command(*create) if own else [site.runc, *create]
    status = process.run_detaching(command, timeout=_CALL, stdout=out, stderr=complaints)
    if status:
        log = bundle / "log.json"
        said = log.read_text() if log.exists() else complaints.read_text()
        raise process.CommandError(command[-1:], status, said)
    process.run([site.runc, "--root", state, "start", name], timeout=_CALL)
    rig.until(lambda: out.read_text().endswith("\n"), _LIFE)
    process.run([site.runc, "--root", state, "delete", "--force", name], timeout=_CALL)
    if not out.read_text():
        raise process.CommandError([name], 1, complaints.read_text() or "it says nothing")
    return json.loads(out.read_text().splitlines()[-1])


@contextlib.contextmanager
def _state(site: _Site) -> typing.Iterator[str]:
    """Provide runc's folder, and remove the containers that are left in it."""
    state = site.folder / "runc-state"
    state.mkdir(mode=0o711)
    process.adopt_orphans()
    try:
        yield str(state)
    finally:
        for left in state.iterdir():
            argv = [site.runc, "--root", str(state), "delete", "--force", left.name]
            process.run(argv, timeout=_CALL, check=False)


def _opened(path: str) -> int:
    """Return what opening a node here says: 0, or the error's number."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return error.errno or -1
    return 0


def _copy(source: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    shutil.copyfile(source, target)
    target.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    return target


def _highest_id() -> int:
    """Return the highest user id here, which Concourse maps to its containers' root."""
    lines = [line.split() for line in _USERS.read_text().splitlines()]
    return max(int(first) + int(count) - 1 for first, _, count in lines)
