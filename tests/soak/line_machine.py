# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A machine with two simulated GPUs and all who may use them: tasks, gpu-run, podman, Docker.

The tasks are containers of a containerd that our launcher has started, as Concourse's are; podman
and Docker are Debian's, set up by the charm's own registration.
"""

import contextlib
import json
import pathlib
import shutil
import subprocess
import tempfile

from tests import runs
from tests.functional import engine_machine, run_machine
from tests.functional.containerd_worker import GOLDEN, ROOT, UUIDS

HERE = pathlib.Path(__file__).parent / "line"
MACHINE = "line"
CONTAINERS_CONF = """
[containers]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
DAEMON = {"iptables": False, "bridge": "none", "exec-opts": ["native.cgroupdriver=cgroupfs"]}
SETUP = """
set -e
for folder in usr etc lib; do cp -rsn /srv/engines/$folder/. /$folder/; done
cp --remove-destination /srv/engines/lib/systemd/system/docker.* /lib/systemd/system/
ldconfig; getent group docker >/dev/null || groupadd --system docker
mkdir -p /var/lib/docker /var/lib/containers /srv/storm /etc/docker
for folder in /var/lib/docker /var/lib/containers /srv/storm; do
    mount -t tmpfs -o mode=755 tmpfs $folder
done
cp -a /srv/payload/. /srv/storm/
chmod 755 /srv/storm; cd /srv/storm; mkdir -m 1777 held work
for name in gpu0 gpu1 log faults; do install -m 666 /dev/null held/$name; done
install -m 755 /srv/fakes/nvidia-container-runtime-standin /usr/bin/nvidia-container-runtime
printf '#!/bin/sh\\nexit 77\\n' >/usr/bin/nvidia-container-runtime-hook
chmod 755 /usr/bin/nvidia-container-runtime-hook
mkdir -p /opt/concourse/current/bin
for name in runc containerd; do ln -sf "$(command -v $name)" /opt/concourse/current/bin/; done
systemctl daemon-reload
"""
# As a hook of the charm does it.
APPLY = """
import json, sys
from engines import registration
from gpu import detect
from oci import wrapper
from plan.parts import EnginesPlan, GpuPlan
engines = EnginesPlan(("docker", "podman"), default=True, nvidia=True)
wrapper.apply(GpuPlan(detect.detect().gpus, "/usr/bin/nvidia-container-runtime", wait_timeout=200))
registration.ensure(engines)
"""
REMOVE = """
from engines import registration
from gpu_run import service
from oci import wrapper
registration.ensure(None)
service.remove()
wrapper.remove()
"""


class Line:
    """The machine, and what is done there."""

    def __init__(self, box):
        self.box, self.sh, self.machine = box, box.sh, box.machine
        self.before = {}

    def python(self, *words, timeout=180):
        return self.machine.run([*self.box.host.python, *words], timeout=timeout)

    def furnish(self):
        self.sh(SETUP)
        for number, uuid in enumerate(UUIDS):
            self.box.fakegpu("set", str(number), f"uuid={uuid}")
        self.machine.write("/etc/containers/containers.conf", CONTAINERS_CONF)
        self.machine.write("/etc/docker/daemon.json", json.dumps(DAEMON, indent=4))
        self.before = self.engines()
        self.python("-c", APPLY)
        self.sh("systemctl start docker")
        self.sh(
            "systemd-run --quiet --unit=storm-containerd -p KillMode=process -p Delegate=yes "
            "/opt/gpu-ci/bin/containerd-launcher -c /srv/storm/config.toml"
        )
        self.box.wait("ctr -a /srv/storm/sock version")
        for engine in ("podman", "docker"):
            self.sh(f"{engine} load -i /srv/storm/plain.tar")

    def engines(self):
        """All that the two engines are told, by what file; Docker makes its key by itself."""
        listed = (
            "find /etc/docker /etc/containers /etc/systemd/system '(' -type f -o -type l ')' "
            "! -name key.json ! -name 'gpu-ci-run*'"
        )
        names = self.sh(listed).stdout.split()
        return {
            name: self.sh(f"cat {name} 2>/dev/null || readlink {name}").stdout for name in names
        }

    def storm(self, count, seed, seconds):
        """What came of it; see line/driver.py."""
        told = self.python("/srv/storm/driver.py", str(count), str(seed), timeout=seconds)
        return json.loads(told.stdout)

    def remove(self):
        self.python("-c", REMOVE)


def payload(folder):
    """What the machine gets for the storm, but for what the charm brings."""
    rootfs = folder / "rootfs"
    for name in ("bin", "dev", "proc", "sys", "tmp", "etc", "scratch", "usr/lib"):
        (rootfs / name).mkdir(parents=True)
    for name in ("scratch", "tmp/build/e55deab7"):
        (rootfs / name).mkdir(parents=True, exist_ok=True)
    (folder / "bin").mkdir()
    for source, target in (
        (ROOT / "tests/fakes/concourse/init.c", folder / "gdn-init"),
        (HERE / "hold.c", folder / "bin/hold"),
    ):
        build = ["gcc", "-static", "-Os", "-s", "-o", str(target), str(source)]
        subprocess.run(build, check=True, timeout=60)
    shutil.copy(folder / "bin/hold", rootfs / "hold")
    for name in ("hosts", "hostname", "resolv.conf"):
        (folder / name).touch()
        (rootfs / "etc" / name).touch()
    for path in (rootfs, *rootfs.rglob("*")):
        shutil.chown(path, 4294967294, 4294967294)
    (rootfs / ".gpu-ci-task-root").touch(0o644)
    shutil.copy(HERE / "driver.py", folder)
    (folder / "task.json").write_text(json.dumps(task()))
    (folder / "config.toml").write_text(
        'version = 2\nroot = "/srv/storm/root"\nstate = "/srv/storm/state"\n'
        'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        '[grpc]\naddress = "/srv/storm/sock"\n[ttrpc]\naddress = "/srv/storm/sock.ttrpc"\n'
    )
    engine_machine.write_image(folder / "plain.tar", "lab.test/plain:latest", ())


def task():
    """A task's spec as Concourse writes it, on the payload's files."""
    spec = json.loads((GOLDEN / "task.json").read_text())
    old, spec["hostname"] = spec["hostname"], "HANDLE"
    spec["root"]["path"] = "/srv/storm/rootfs"
    spec["linux"]["cgroupsPath"] = spec["linux"]["cgroupsPath"].replace(old, "HANDLE")
    for mount in spec["mounts"]:
        if mount["source"] == "/usr/local/concourse/bin/init":
            mount["source"] = "/srv/storm/gdn-init"
        elif mount["destination"] == "/scratch":
            mount["source"] = "/srv/storm/held"
        elif mount["source"].startswith("/var/lib/concourse/"):
            leaf = (
                "work" if "/live/work/" in mount["source"] else pathlib.Path(mount["source"]).name
            )
            mount["source"] = f"/srv/storm/{leaf}"
    return spec


@contextlib.contextmanager
def started():
    """A Line that is ready."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gpuci-line-") as folder:
        runs.note("folder", folder)
        payload(pathlib.Path(folder))
        binds = {"/srv/engines": engine_machine.ENGINES.resolve(), "/srv/payload": folder}
        with run_machine.started(
            MACHINE, {key: pathlib.Path(at) for key, at in binds.items()}
        ) as box:
            line = Line(box)
            line.furnish()
            yield line
