# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the tests of leases do on a worker: tasks, steps, calls that wait, and looking."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from gpu_agent import paths
from tests.functional.containerd_worker import ROOT

LONG = "sleep 1000"
ACT = """
import json, sys
from gpu_agent.availability import external_use, lease_report as leases
from gpu_runtime.unavailable import EXTERNAL, EXTERNAL_PROCESS, Unavailable
name, *words = sys.argv[1:]
if name == "reclaim":
    said = leases.reclaim(*words[:2], force=len(words) > 2)
elif name == "external":
    uses = {uuid: Unavailable(EXTERNAL, EXTERNAL_PROCESS, words[1]) for uuid in words[:1]}
    said = external_use.ensure(uses.items())
else:
    said = leases.report()
print(json.dumps(said))
"""


class Site:
    """A worker with calls that go on beside the test."""

    def __init__(self, worker) -> None:
        self.worker = worker
        self.running: list[subprocess.Popen[str]] = []

    def task(self, handle, *params):
        spec = self.worker.spec("task", handle)
        spec["process"]["env"] += params
        return spec

    def create(self, handle, *params):
        done = self.worker.create(self.task(handle, *params))
        assert "already exists" not in done.stderr
        return done

    def wait(self, handle, *params):
        """A create that has to wait; it is among those who do when this returns."""
        call = self.keep(self.worker.begin_create(self.task(handle, *params)))
        until(lambda: handle in self.waiters or call.poll() is not None)
        assert call.poll() is None, call.communicate()
        return call

    def step(self, handle, line=LONG, name="task", *flags):
        """A process in the container; its pid."""
        words = ["task", "exec", "--exec-id", name, *flags, handle, "sh", "-c", line]
        self.keep(self.worker.begin(*words))
        return self.pid(handle, name)

    def keep(self, call):
        self.running.append(call)
        return call

    def pid(self, handle, name="task"):
        path = self.worker.folder_of(handle) / f"{name}.pid"
        until(lambda: path.exists() and path.read_text())
        return int(path.read_text())

    @property
    def waiters(self):
        return [waiter["container"] for waiter in self.worker.leases()["waiters"]]

    def gpus(self, handle):
        return self.worker.leases()["holders"].get(handle, {}).get("gpus", [])

    def decisions(self):
        lines = self.worker.inside("cat", "/var/log/gpu-ci/oci.log").stdout.splitlines()
        return [json.loads(line) for line in lines]

    def close(self):
        self.worker.inside("rm", "-f", "/run/hold")
        for waiter in self.worker.leases()["waiters"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(waiter["call"][0], signal.SIGKILL)
        for handle in self.worker.ctr("container", "list", "-q").stdout.split():
            self.worker.remove(handle)
            # After the death of a shim containerd cleans up behind the caller's back.
            until(lambda handle=handle: not self.worker.folder_of(handle).exists())
        for call in self.running:
            call.kill()
            call.communicate(timeout=10)
        self.worker.inside("rm", "-rf", "/run/gpu-ci")


def site(worker, *gpus, **options):
    """A worker with these GPUs and options; what a test leaves there is ended after it."""
    worker.charm(*gpus, **options)
    found = Site(worker)
    try:
        yield found
    finally:
        found.close()


def act(worker, *words):
    """What an operator's action says that is called on the worker."""
    path = {"PYTHONPATH": f"{ROOT}/src:{ROOT}/lib", "PATH": os.environ["PATH"]}
    done = worker.inside(sys.executable, "-c", ACT, *words, env=path)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def with_rights_of_the_watch(*argv):
    """The command that runs another one with no more rights than the watch's unit has."""
    unit = (paths.TEMPLATES / "gpu-ci-health.service").read_text()
    (names,) = re.findall("^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    rights = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in names.split())
    return ["setpriv", f"--bounding-set=-all,{rights}", "--no-new-privs", *argv]


def until(ready, seconds=30.0):
    """How long it took until `ready`."""
    began = time.monotonic()
    while not ready():
        assert time.monotonic() - began < seconds, "it did not happen"
        time.sleep(0.01)
    return time.monotonic() - began


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def cgroup(pid):
    lines = pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    paths = {name: path for _, name, path in (line.split(":", 2) for line in lines)}
    if "devices" in paths:
        return pathlib.Path(f"/sys/fs/cgroup/devices{paths['devices']}")
    return pathlib.Path(f"/sys/fs/cgroup{paths['']}")


def until_child(one, handle, parent):
    """The process of another session in the container."""
    procs = cgroup(one.pid(handle, "init")) / "cgroup.procs"

    def session(pid):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3]

    def found():
        with contextlib.suppress(FileNotFoundError):
            return [
                int(pid)
                for pid in procs.read_text().split()
                if session(pid) == pid and int(pid) not in (parent, one.pid(handle, "init"))
            ]

    until(found)
    return found()[0]
