# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Containerd as a CI worker has it, and containers of Concourse's shape."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import time

CGROUPS = pathlib.Path("/sys/fs/cgroup")
V1 = (CGROUPS / "devices").is_dir()
# Where systemd puts a service; under v1 it makes no other hierarchy's group for one.
HIERARCHIES = [CGROUPS / name for name in ("systemd", "devices", "pids")] if V1 else [CGROUPS]
SERVICE = "system.slice/concourse-worker.service"
HOME = pathlib.Path("/var/lib/worker")
STORE = pathlib.Path("/run/gpu-ci/leases")
LOG = pathlib.Path("/var/log/gpu-ci/oci.log")
POLICY = pathlib.Path("/etc/gpu-ci/policy.json")
LAUNCHER = "/opt/gpu-ci/bin/containerd-launcher"
NVIDIA_RUNTIME = "/usr/bin/nvidia-container-runtime"
BUNDLES = pathlib.Path("/run/containerd/io.containerd.runtime.v2.task/concourse")
ROOT_INSIDE = 4294967294  # who is root in the user namespace that Concourse makes
UUIDS = [f"GPU-0000000{index}-1111-2222-3333-444444444444" for index in (0, 1)]
CTR = ("ctr", "-n", "concourse")
CONFIG = """version = 2
disabled_plugins = ["io.containerd.grpc.v1.cri"]
"""


def until(seconds, what, ready):
    """Wait for `ready()` to be true; what it returned."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := ready():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


def state_of(pid):
    """A process's state letter in /proc/PID/stat; empty: it is gone, or a zombie."""
    try:
        letter = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return letter.strip("ZX")


class Worker:
    """One containerd in the cgroup of a service, and what runs under it."""

    def __init__(self):
        self.steps = []
        self._make_image()
        for index, minor in (("0", 0), ("1", 1), ("ctl", 255)):
            node = f"/dev/nvidia{index}"
            os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(195, minor))
            os.chmod(node, 0o666)
        for top in HIERARCHIES:
            (top / SERVICE).mkdir(parents=True)
        # As systemd has it under v2: containers' groups lie beside the service's.
        for folder in () if V1 else (CGROUPS, CGROUPS / "system.slice"):
            (folder / "cgroup.subtree_control").write_text("+cpu +memory +pids")
        (HOME / "config.toml").write_text(CONFIG)
        self.start()

    def start(self):
        """Start containerd in the control groups of its service."""
        enter = "".join(f"echo $$ >{top}/{SERVICE}/cgroup.procs; " for top in HIERARCHIES)
        with open(HOME / "log", "a") as log:
            self.containerd = subprocess.Popen(
                ["/bin/sh", "-ec", f"{enter} exec {LAUNCHER} -c {HOME}/config.toml"],
                stdout=log,
                stderr=log,
            )
        until(60, "containerd answers", lambda: not self.ctr("version").returncode)

    def _make_image(self):
        for name in ("mnt", "work", "scratch"):
            (HOME / name).mkdir(parents=True)
        shutil.copy("/soak/gdn-init", HOME)
        self.rootfs = HOME / "rootfs"
        for name in ("bin", "dev", "proc", "sys", "tmp", "etc", "scratch", "usr/lib"):
            (self.rootfs / name).mkdir(parents=True)
        shutil.copy("/bin/busybox", self.rootfs / "bin")
        for name in ("chain", "headless", "mapper", "mischief"):
            shutil.copy(f"/soak/{name}", self.rootfs / "bin")
        for name in ("sh", "cat", "sleep", "env", "id", "setsid", "mknod"):
            (self.rootfs / "bin" / name).symlink_to("busybox")
        for name in ("hosts", "hostname", "resolv.conf"):
            (HOME / name).touch()
            (self.rootfs / "etc" / name).touch()
        for path in (self.rootfs, *self.rootfs.rglob("*")):
            os.lchown(path, ROOT_INSIDE, ROOT_INSIDE)
        # Tasks may have this folder of the host.
        (self.rootfs / ".gpu-ci-task-root").touch(0o644)

    def policy(self, *indexes, **changes):
        """Allow the GPUs with these indexes, one a task, with 60 s to wait."""
        gpus = [
            {"index": index, "uuid": UUIDS[index], "model": "NVIDIA A100-SXM4-80GB"}
            | {"devices": [UUIDS[index]], "nodes": []}
            for index in indexes
        ]
        content = {"version": 3, "allocation": "exclusive", "gpus_per_task": 1, "wait_timeout": 60}
        content["hijack_limit"] = 1800
        content |= {"privileged_tasks": "no-gpu", "vendor": "nvidia", "cordons": []}
        content |= {"nvidia_runtime": NVIDIA_RUNTIME, "config_home": "/etc/gpu-ci"}
        content |= {"gpus": gpus, **changes}
        POLICY.parent.mkdir(parents=True, exist_ok=True)
        POLICY.write_text(json.dumps(content))

    @staticmethod
    def ctr(*words):
        """Have ctr do something to its end."""
        return subprocess.run(
            [*CTR, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60
        )

    def spec(self, golden, handle, params=()):
        """A golden spec on this rootfs; `params` are the author's variables."""
        spec = json.loads(pathlib.Path(f"/soak/{golden}.json").read_text())
        old, spec["hostname"] = spec["hostname"], handle
        spec["root"]["path"] = str(self.rootfs)
        spec["process"]["env"] += params
        if spec["linux"]["cgroupsPath"]:
            spec["linux"]["cgroupsPath"] = spec["linux"]["cgroupsPath"].replace(old, handle)
        for mount in spec["mounts"]:
            source = pathlib.Path(mount["source"])
            if source.name == "init":
                mount["source"] = str(HOME / "gdn-init")
            elif "concourse" in source.parts:
                leaf = "work" if "work" in source.parts else source.name
                mount["source"] = str(HOME / ("scratch" if leaf == "volume" else leaf))
        return spec

    def creating(self, handle, params=(), golden="task", spec=None):
        """Begin to create and start a container; the process that does."""
        path = HOME / f"{handle}.json"
        path.write_text(json.dumps(spec or self.spec(golden, handle, params)))
        return begin("run", "-d", "--null-io", "--config", path, handle)

    def create(self, handle, params=(), golden="task", spec=None):
        said, code = finish(self.creating(handle, params, golden, spec))
        assert code == 0, said

    def exec(self, handle, line, name="task"):
        """Run a line in a container to its end; what it said, and the exit status."""
        done = self.ctr("task", "exec", "--exec-id", name, handle, "sh", "-c", line)
        return done.stdout + done.stderr, done.returncode

    def step(self, handle, name="task"):
        """Start a process in a container that goes on until end(); its pid."""
        fifo = self.rootfs / "tmp" / f"end-{handle}-{name}"
        os.mkfifo(fifo)
        fifo.chmod(0o666)
        return self.launch(handle, "sh", "-c", f"read -r line </tmp/{fifo.name}", name=name)

    def launch(self, handle, *words, name="task"):
        """Start a process in a container; its pid."""
        started = begin("task", "exec", "--exec-id", name, handle, *words)
        self.steps.append(started)
        path = BUNDLES / handle / f"{name}.pid"

        def pid():
            assert started.poll() is None, started.communicate()
            return path.exists() and path.read_text()

        return int(until(60, f"{path} appears", pid))

    def init(self, handle):
        return int((BUNDLES / handle / "init.pid").read_text())

    def cgroup(self, handle):
        """The folder of a container's control group, the one that decides on devices."""
        for line in pathlib.Path(f"/proc/{self.init(handle)}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == ("devices" if V1 else ""):
                return CGROUPS / controllers / path[1:]
        raise AssertionError(f"{handle} has no control group")

    def inside(self, handle):
        """The pids in a container's cgroup and below it."""
        files = self.cgroup(handle).rglob("cgroup.procs")
        return sorted(int(word) for file in files for word in file.read_text().split())

    def end(self, handle, name="task"):
        """Let a container's step come to its own end."""
        fifo = self.rootfs / "tmp" / f"end-{handle}-{name}"
        with open(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK), "w") as file:
            file.write("\n")

    def holders(self):
        """Who holds which GPUs, as the store says."""
        return {name: entry["gpus"] for name, entry in self.leases("holders", {}).items()}

    def waiters(self):
        """Who waits, as the store says."""
        return [entry["container"] for entry in self.leases("waiters", [])]

    @staticmethod
    def leases(key, default):
        try:
            return json.loads((STORE / "leases.json").read_text())[key]
        except FileNotFoundError:
            return default

    @staticmethod
    def intruders():
        """The containers that were ended for what they had open, as the log says."""
        lines = map(json.loads, LOG.read_text().splitlines())
        return [line["container"] for line in lines if line["kind"] == "intruder ended"]

    def evidence(self):
        """What helps to see why a case failed."""
        files = [HOME / "log", *STORE.rglob("*.json"), *LOG.parent.iterdir()]
        return "\n".join(f"{path}: {path.read_text()[-2000:]}" for path in files)

    def clear(self):
        """Remove every container and its lease, and end the processes that talked to them."""
        for waiter in self.leases("waiters", []):
            with contextlib.suppress(ProcessLookupError):
                os.kill(waiter["call"][0], signal.SIGKILL)
        handles = self.ctr("container", "list", "-q").stdout.split()
        if handles:
            self.ctr("task", "delete", "-f", *handles)
            done = self.ctr("container", "delete", *handles)
            assert done.returncode == 0, done.stderr
        for started in self.steps:
            started.kill()
            started.wait(10)
        self.steps.clear()
        shutil.rmtree(STORE, ignore_errors=True)
        for path in (self.rootfs / "tmp").glob("end-*"):
            path.unlink()


def begin(*words):
    """Have ctr do something, for finish() to wait for."""
    return subprocess.Popen(
        [*CTR, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process, seconds=90):
    """What a process said, and its exit status."""
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        said, _ = process.communicate()
        raise AssertionError(f"no end after {seconds} s: {said}") from None
    return said, process.returncode
