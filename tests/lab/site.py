# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A lab that is up, in the words of its tests."""

import contextlib
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

from tests.lab import concourse
from tests.lab.machines import Machine
from tests.lab.session import Lab

# What a task that is asked for its devices prints of each card's node.
PROBE = """
for n in 0 1; do
  if [ ! -e /dev/nvidia$n ]; then echo "nvidia$n absent"
  else (: < /dev/nvidia$n) 2>&1 | sed "s/.*: /nvidia$n /"; fi
done
id -u | sed 's/^/uid /'
env | grep -E '^(NVIDIA_|GPU_|CUDA_)' | sort
"""
# What a task asks for that is to get all GPUs of its worker.
ALL = {"GPU_COUNT": "all"}
# What the unit says that `make lab` brings up, as often as nothing is wrong.
READY = ("active", "Worker ready (GPU: 2x NVIDIA, self-test passed)")
UNWATCHED = "; GPU health service is off (gpu-health=disabled)"
# Added to it if GPUCI_NVIDIA_RUNTIME names a newer runtime than the pinned one.
NEWER = re.compile(r"; toolkit [0-9.]+ is newer than [0-9.]+, the newest tested")
# Concourse makes this with its first task, its stand-in never.
BRIDGE = """
[ -e /sys/class/net/concourse0 ] || {
  ip link add concourse0 type bridge
  ip address add 10.80.0.1/16 dev concourse0
  ip link set concourse0 up
}
"""
# Concourse's message while its only worker with those tags reconnects; it may still list it.
AWAY = "no workers satisfying"
AWAY_SECONDS = 30
# Between two looks by fly, which is a program in Python.
LOOK_SECONDS = 1.0
# How long a task may take to begin, with its container, beside other tests.
BEGIN_SECONDS = 180
# How often a unit hears of a change. Juju's second time costs a hook that finds nothing to do.
TOLD = 2 if "GPUCI_SOAK" in os.environ else 1
# With a matching rule of the device cgroup a simulated card opens with ENXIO, else with EPERM.
OPENS = "No such device or address"
GIVEN_RUNTIME = "GPUCI_NVIDIA_RUNTIME" in os.environ
# What of ours may be on a machine, and what shows it.
TRACES = {
    "processes": "for p in /proc/[0-9]*; do readlink $p/exe; done | grep -E "
    "'concourse|containerd|gpu-ci'",
    "mounts": "grep -E 'garden|/run/containerd|concourse/worker/' /proc/self/mountinfo",
    "cgroups": r"find /sys/fs/cgroup -type d \( -name 'garden*' -o -name 'concourse-*' \)",
    "units": "ls /etc/systemd/system{,/*.wants} | grep -E 'concourse|gpu-ci'",
    "files": "find /opt/concourse /opt/gpu-ci /etc/concourse /etc/gpu-ci /var/lib/gpu-ci "
    "/var/log/gpu-ci /run/gpu-ci /usr/local/bin/runc-gpu-wrapper "
    "/etc/sysctl.d/90-gpu-ci-worker.conf /var/lib/concourse/* /run/containerd 2>&- ",
    "users": "grep ^concourse /etc/passwd /etc/group",
    "links": "ip -br link | grep -E 'concourse|veth'",
    "rules": "(iptables-save; iptables-save -t nat) 2>&- | grep -iE 'concourse|CNI-'",
}

# A disk of its own for a folder, which has no room left; and what is on it brought back.
FILL = """
set -e
mkdir -p /run/full
mount -t tmpfs -o size=1g,mode=755 full /run/full
cp -a {folder} /run/full/folder
mount --bind /run/full/folder {folder}
cat /dev/zero >/run/full/filler 2>&- || true
"""
EMPTY = """
set -e
mkdir -p /run/below
mount --bind / /run/below
find /run/below{folder} -mindepth 1 -delete
cp -a /run/full/folder/. /run/below{folder}
umount /run/below
umount --lazy {folder} /run/full
"""


class Site:
    """Asks and changes what a developer would, with the lab's own parts."""

    def __init__(self, lab: Lab):
        self.lab = lab
        self.fly = concourse.Fly(lab)

    def machine(self, unit: str = "worker/0") -> Machine:
        """The machine of a unit."""
        return self.lab.model.machine(unit)

    def sh(self, script: str, unit: str = "worker/0") -> str:
        """The output of a shell line in a unit's machine."""
        return self.machine(unit).enter("/bin/bash", "-c", script).stdout

    def configure(self, app: str = "worker", reset: tuple[str, ...] = (), **options: str) -> None:
        """`juju config`, and wait until the units have noticed; told once but in `make soak`."""
        values = {name.replace("_", "-"): value for name, value in options.items()}
        self.lab.model.set_config(app, values, reset, times=TOLD)
        if not values:
            sql = "SELECT name FROM unit WHERE app = ?"
            for unit in self.lab.store.column(sql, app):
                self.lab.model.update_status(unit)
        self.lab.settle()

    def status(self, unit: str = "worker/0") -> tuple[str, str]:
        """The status and message of a unit, less what tests chose: no watch, a newer runtime."""
        row = self.lab.model.unit(unit)
        message = NEWER.sub("", row["message"]) if GIVEN_RUNTIME else row["message"]
        return row["status"], message.replace(UNWATCHED, "")

    def gpus(self, *arguments: str) -> None:
        """Change the simulated GPUs of worker/0; its next event notices."""
        self.machine().run(["/usr/local/lib/fake-gpu/fakegpu", *arguments])
        self.lab.model.update_status("worker/0")
        self.lab.settle()

    def await_status(self, message: str, unit: str = "worker/0") -> None:
        """Let the agents run, with no event but what machines ask for, until a unit says this."""
        self.lab.controller.settle(lambda: self.status(unit)[1] == message, 180)
        journal = self.sh("journalctl --boot -u gpu-ci-devices")
        assert self.status(unit)[1] == message, journal

    def tags(self, name: str = "lab-worker-0", seconds: float = 30) -> list[str]:
        """The tags of a worker that Concourse lists as running; waits for it."""
        worker = self.worker(name, seconds)
        return list(worker["tags"] or ())

    def worker(self, name: str, seconds: float) -> dict:
        """A worker that runs, as `fly workers` lists it; waits for it."""
        deadline = time.monotonic() + seconds
        while True:
            listed = self.fly.workers()
            found = [w for w in listed if w["name"] == name and w["state"] == "running"]
            if found:
                return found[0]
            assert time.monotonic() < deadline, f"{name} does not run: {listed}"
            time.sleep(LOOK_SECONDS)

    def wait_for_tag(self, tag: str, name: str = "lab-worker-0") -> list[str]:
        """The tags of a worker once this is among them; Concourse hears of them late."""
        deadline = time.monotonic() + 30
        while tag not in (tags := self.tags(name)):
            assert time.monotonic() < deadline, tags
            time.sleep(LOOK_SECONDS)
        return tags

    def task(self, script: str, *tags: str, params: dict[str, str] | None = None):
        """Run a shell script as a CI task with all GPUs, or these params; its completed fly."""
        params = ALL if params is None else params
        arguments = self.fly.task(["sh", "-c", script], list(tags or ["gpu"]), params)
        deadline = time.monotonic() + AWAY_SECONDS
        while AWAY in (done := self.fly.run(*arguments)).stdout and time.monotonic() < deadline:
            time.sleep(1)
        return done

    def start_task(
        self, script: str, *tags: str, params: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a shell script as a CI task, and wait until it has printed `begun`."""
        argv = ["sh", "-c", f"echo begun; {script}"]
        arguments = self.fly.task(argv, list(tags or ["gpu"]), params)
        deadline = time.monotonic() + AWAY_SECONDS
        while True:
            fly = subprocess.Popen(
                self.fly.command(*arguments), env=self.fly.environment, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            assert fly.stdout
            said, limit = "", threading.Timer(BEGIN_SECONDS, fly.kill)
            limit.start()
            try:
                for line in fly.stdout:
                    if line.strip() == "begun":
                        return fly
                    said += line
            finally:
                limit.cancel()
            assert AWAY in said, f"the task did not begin: {fly.wait()}: {said}"
            assert time.monotonic() < deadline, said
            fly.communicate()
            time.sleep(1)

    def settings(self, unit: str) -> dict[str, str]:
        """What the web of a unit was started with, and its process."""
        found = self.sh(
            "systemctl show -p MainPID concourse-web; "
            "tr '\\0' '\\n' </proc/$(systemctl show -P MainPID concourse-web)/environ",
            unit,
        )
        return dict(line.split("=", 1) for line in found.splitlines() if "=" in line)

    @contextlib.contextmanager
    def full(self, folder: str) -> Iterator[Callable[[], object]]:
        """Have a folder of worker/0 on a full disk of its own; yield what makes room there."""
        run = self.machine().run
        run(["/bin/bash", "-c", FILL.format(folder=folder)])
        try:
            yield lambda: self.sh("rm /run/full/filler")
        finally:
            run(["/bin/bash", "-c", EMPTY.format(folder=folder)])

    def published(self, unit: str, key: str) -> set[str]:
        """What a unit says under a key in its relations."""
        sql = "SELECT value FROM databag WHERE entity = ? AND key = ?"
        return set(self.lab.store.column(sql, unit, key))

    def traces(self, unit: str = "worker/0") -> dict[str, list[str]]:
        """What of ours is on a unit's machine, kind by kind; each empty after removal."""
        return {
            kind: self.sh(f"{script}; true", unit).splitlines() for kind, script in TRACES.items()
        }
