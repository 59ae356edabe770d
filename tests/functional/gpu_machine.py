# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A private mount namespace that stands for a machine with simulated GPUs."""

import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests import once
from tests.fakes import FAKEGPU, build_nvml, gpu_files

REAL_RUNTIME = os.environ.get("GPUCI_NVIDIA_RUNTIME")

# A program for containers: what opening each node says (0, or errno), and how it runs itself.
LOOK = """
import glob, json, os
nodes = {}
for pattern in ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/kfd", "/dev/dri/*", "/dev/dri/*/*"):
    for path in glob.glob(pattern):
        if os.path.isdir(path):
            continue
        try:
            os.close(os.open(path, os.O_RDWR))
            nodes[path] = 0
        except OSError as error:
            nodes[path] = error.errno
print(json.dumps({"nodes": nodes, "env": dict(os.environ), "uid": os.getuid()}))
"""

# Own upper layers over what fakegpu writes to, an own /run, and a root for containers.
MACHINE = """
set -e
mount -t tmpfs -o mode=755 tmpfs "$1"
for d in dev var usr etc root; do
    mkdir -p "$1/$d/u" "$1/$d/w" "$1/$d/m"
    if [ $d = root ]; then lower=/; else lower=/$d; fi
    mount -t overlay overlay -o "lowerdir=$lower,upperdir=$1/$d/u,workdir=$1/$d/w" "$1/$d/m"
done
mkdir "$1/dev/m/pts" "$1/dev/m/shm" 2>/dev/null || :
mount --rbind /dev/pts "$1/dev/m/pts"
for d in dev var usr etc; do mount --move "$1/$d/m" "/$d"; done
mount -t tmpfs tmpfs /run
mkdir /run/systemd
echo ready
exec sleep infinity
"""


class Machine:
    def __init__(self, process, root):
        self.enter = ["nsenter", f"--mount=/proc/{process.pid}/ns/mnt", "--"]
        self.root = root / "root/m"
        self.work = Path("/run/test")

    def run(self, *command, check=True, **options):
        done = subprocess.run(
            [*self.enter, *command],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **options,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def fakegpu(self, *arguments):
        return self.run(FAKEGPU, *arguments).stdout

    def exists(self, *paths):
        return [self.run("test", "-e", path, check=False).returncode == 0 for path in paths]

    def cards(self):
        return json.loads(self.fakegpu("status"))["gpus"]

    def python(self, lines):
        return json.loads(self.run("/usr/bin/python3", "-c", lines).stdout)


@contextlib.contextmanager
def start(tmp_path_factory):
    """A Machine with fakegpu and no cards yet."""
    root = tmp_path_factory.mktemp("machine")
    command = ["unshare", "-m", "sh", "-c", MACHINE, "sh", root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout.readline() != "ready\n":
                pytest.skip("no overlay can be mounted over this root file system")
            yield furnish(Machine(process, root), once.made("nvml", build_nvml))
        finally:
            process.kill()


def furnish(machine, libraries):
    files = gpu_files(libraries)
    if REAL_RUNTIME:
        real = Path(REAL_RUNTIME).parent
        files |= {path: f"/usr/bin/{path.name}" for path in real.glob("nvidia-*")}
    for source, target in files.items():
        machine.run("install", "-D", "-m", "755", source, target)
    refused = machine.run(FAKEGPU, "install", check=False)
    assert "This is no container" in refused.stderr
    machine.run("sh", "-c", "echo test > /run/systemd/container")
    return machine
