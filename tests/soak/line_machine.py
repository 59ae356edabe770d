# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A lab's worker with two simulated GPUs, and all who use them: tasks, gpu-run, podman, Docker.

The tasks are those of the lab's Concourse; podman and Docker are Debian's, beside it.
"""

import contextlib
import json
import pathlib
import shutil
import subprocess

from tests.functional import engine_machine
from tests.lab import concourse, outfit
from tests.lab.juju.agent import SHARED

HERE = pathlib.Path(__file__).parent / "line"
CODE = "/var/lib/juju/agents/unit-worker-0/charm"
PYTHON = [
    *("/usr/bin/env", f"PYTHONPATH={CODE}/src:{CODE}/lib:{CODE}/venv"),
    *("/usr/bin/python3", "-B"),
]
# All tasks have it as their root folder's own, and so at /held.
HELD = f"{outfit.ROOTFS}/held"
OPTIONS = {
    "container_engines": "podman=default,docker=default",
    "gpu_run_group": "gpu-users",
    # With a GPU for each task unasked, web would let no third one in while two run.
    "gpus_per_task": "0",
}
CONTAINERS_CONF = """
[containers]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
DAEMON = {"iptables": False, "bridge": "none", "exec-opts": ["native.cgroupdriver=cgroupfs"]}
# As both packages install it, and a machine's own people.
SETUP = f"""
set -e
for folder in usr etc lib; do cp -rsn {SHARED}/engines/$folder/. /$folder/; done
cp --remove-destination {SHARED}/engines/lib/systemd/system/docker.* /lib/systemd/system/
ldconfig
for group in docker gpu-users; do getent group $group >&2 || groupadd --system $group; done
id alice >&2 || useradd -m -G gpu-users alice
mkdir -p /var/lib/docker /var/lib/containers /srv/storm /etc/docker /etc/containers
for folder in /var/lib/docker /var/lib/containers /srv/storm; do
    mount -t tmpfs -o mode=755 tmpfs $folder
done
printf '#!/bin/sh\\nexit 77\\n' >/usr/bin/nvidia-container-runtime-hook
chmod 755 /usr/bin/nvidia-container-runtime-hook
cp -a {SHARED}/storm/. /srv/storm/
install -m 755 /srv/storm/bin/hold {outfit.ROOTFS}/bin/hold
mkdir -m 1777 {HELD}
for name in gpu0 gpu1 log faults; do install -m 666 /dev/null {HELD}/$name; done
mkdir -m 700 /srv/storm/fly
tar -xzOf {concourse.FLY_IN_RELEASE} fly >/srv/storm/fly/fly
chmod 755 /srv/storm/fly/fly
systemctl daemon-reload
"""
UNDO = f"""
systemctl stop docker docker.socket
systemctl reset-failed docker docker.socket
umount /var/lib/docker/overlay2 2>&-
umount /var/lib/docker /var/lib/containers /srv/storm
rm -rf {HELD} {outfit.ROOTFS}/bin/hold /etc/docker /etc/containers/containers.conf
rm -f /lib/systemd/system/docker.* /usr/bin/nvidia-container-runtime-hook
find /usr /etc /lib -xdev -lname '{SHARED}/engines/*' -delete
systemctl daemon-reload
userdel -r alice
groupdel gpu-users
groupdel docker
true
"""
TOLD = """
find /etc/docker /etc/containers /etc/systemd/system '(' -type f -o -type l ')' ! -name key.json \
    '(' -path '*docker*' -o -path '*contain*' -o -path '*podman*' ')'
"""


class Line:
    """The machine, and what is done there."""

    def __init__(self, site):
        self.site, self.sh, self.machine = site, site.sh, site.machine()
        self.before = {}

    def furnish(self):
        """Install both engines, and have the charm know them."""
        shared = self.site.lab.state_dir / "shared"
        if not (shared / "engines").exists():
            shutil.copytree(engine_machine.ENGINES.resolve(), shared / "engines", symlinks=True)
        payload(shared / "storm")
        self.sh(SETUP)
        self.machine.write("/srv/storm/fly/.flyrc", (self.site.fly.home / ".flyrc").read_text())
        self.machine.write("/etc/containers/containers.conf", CONTAINERS_CONF)
        self.machine.write("/etc/docker/daemon.json", json.dumps(DAEMON, indent=4))
        self.before = self.engines()
        self.site.configure(**OPTIONS)
        assert self.site.status()[0] == "active", self.site.status()
        self.sh("systemctl start docker")
        for engine in ("podman", "docker"):
            self.sh(f"{engine} load -i /srv/storm/plain.tar")
        self.site.tags()

    def engines(self):
        """All that the two engines are told, by what file; Docker makes its key by itself."""
        names = self.sh(TOLD).split()
        return {name: self.sh(f"cat {name} 2>/dev/null || readlink {name}") for name in names}

    def storm(self, count, seed, seconds):
        """What came of it; see line/driver.py."""
        driver = [*PYTHON, "/srv/storm/driver.py", str(count), str(seed)]
        return json.loads(self.machine.run(driver, timeout=seconds).stdout)

    def leave(self):
        """Have the charm know neither engine, and nobody use gpu-run."""
        self.site.configure(reset=tuple(name.replace("_", "-") for name in OPTIONS))

    def undo(self):
        """Take both engines off the machine."""
        self.sh("podman rm -f -t 0 -a; docker ps -aq | xargs -r docker rm -f; true")
        self.leave()
        self.sh(UNDO)
        self.site.tags()


def payload(folder):
    """What the machine gets for the storm, but for what the charm brings."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    build = ["gcc", "-static", "-Os", "-s", "-o", folder / "bin/hold", HERE / "hold.c"]
    subprocess.run(build, check=True, timeout=60)
    shutil.copy(HERE / "driver.py", folder)
    engine_machine.write_image(folder / "plain.tar", "lab.test/plain:latest", ())


@contextlib.contextmanager
def furnished(site):
    """A Line that is ready; the lab is as before afterwards."""
    line = Line(site)
    try:
        line.furnish()
        yield line
    finally:
        line.undo()
