# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A machine with simulated GPUs and the wrapper, on which isolation is tested."""

import json
import os
import subprocess
import sys
from pathlib import Path

from gpu_selftest.isolation import escape_attempts as doors
from tests.fakes import FAKEGPU
from tests.functional.containerd_worker import ROOT, RUNTIME, UUIDS
from tests.functional.lease_site import alive
from tests.lab.cgroups import hierarchy, is_unified
from tests.unit.wrapper_rig import CONCOURSE

# What a test may change, and where it is kept as it was before any test.
CHANGED = "/opt/gpu-ci /etc/gpu-ci /run/gpu-ci /var/lib/gpu-ci"
KEPT = "/run/as-made"
APPLY = (
    f"""
from gpu_agent.runtime.settings import TaskFolders
CONCOURSE = {CONCOURSE!r}
"""
    """
import json, sys
from gpu_agent.gpu.vendors import detect
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
found = detect.detect()
runtime = sys.argv[1] if found.vendor == "nvidia" else ""
given = CONCOURSE if sys.argv[3] == "concourse" else {}
install.apply(GpuPlan(found.gpus, runtime, **json.loads(sys.argv[2]), **given))
"""
)
RUN = """
import dataclasses, json, signal, sys
from gpu_agent.gpu.vendors import detect
from gpu_selftest.isolation import level as isolation
from gpu_selftest.settings import Settings
# A shell starts its background jobs with SIGINT ignored, and so all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
gpus = detect.detect().gpus
def progress(text):
    print(text, file=sys.stderr, flush=True)
if "nested" in sys.argv:
    from gpu_selftest.isolation import containers
    containers.is_nested = lambda: True
if "unseen" in sys.argv:
    from gpu_runtime.holder_usage import Host
    Host._processes = lambda *_: []
runc = "" if "bare" in sys.argv else "/opt/concourse/current/bin/runc"
found = isolation.run(Settings("worker/0", gpus=gpus, runc=runc), gpus, progress)
print(json.dumps([dataclasses.asdict(one) for one in found], default=lambda enum: enum.value))
"""


class Machine:
    """A worker's machine, on which files can be changed and the self-test be run."""

    def __init__(self, worker):
        self.worker = worker
        # A run of the tests that was killed leaves what nobody can tell from the worker's.
        self._foreign = {*cgroups(), *processes()}
        self.root = Path(f"/proc/{worker.holder.pid}/root")
        self.env = {"PYTHONPATH": f"{ROOT}/src:{ROOT}/lib", "PATH": os.environ["PATH"]}

    def command(self, *words):
        done = self.worker.inside(*words, env=self.env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def make(self, *cards, **options):
        """Make the simulated GPUs by `fakegpu install` `cards`, and install the wrapper."""
        self.command("rm", "-rf", *CHANGED.split())
        self.command("ln", "-sf", "/usr/sbin/runc", "/opt/concourse/current/bin/runc")
        self.command(FAKEGPU, "install", *(cards or ("--count", "2")))
        for number, uuid in enumerate([] if cards else UUIDS):
            self.command(FAKEGPU, "set", number, f"uuid={uuid}")
        self.apply(**options)

    def keep(self):
        """Keep a copy of what a test may change."""
        copy = f"for each in {CHANGED}; do [ ! -e $each ] || cp -a --parents $each {KEPT}; done"
        self.command("sh", "-ec", f"rm -rf {KEPT}; mkdir {KEPT}; {copy}")

    def restore(self):
        """Put that copy back, which takes less of a processor than to install anew."""
        runc = "ln -sf /usr/sbin/runc /opt/concourse/current/bin/runc"
        self.command("sh", "-ec", f"rm -rf {CHANGED}; cp -a {KEPT}/. /; {runc}")

    def apply(self, ci="concourse", **options):
        """Install the wrapper for this CI system; for `none`, with the machine's own runc."""
        self.command(sys.executable, "-c", APPLY, RUNTIME, json.dumps(options), ci)

    def path(self, name):
        return self.root / name.lstrip("/")

    def edit(self, name, old, new):
        path = self.path(name)
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        if name.startswith("/opt/gpu-ci/lib"):
            self.command("rm", "-rf", "/opt/gpu-ci/lib/gpuci/__pycache__")

    def put(self, name, text):
        self.path(name).unlink(missing_ok=True)
        self.path(name).write_text(text)
        self.path(name).chmod(0o755)

    def test(self, *words):
        """Results by check; those of GPUs by check and index. `nested`: as where no rules are."""
        found = json.loads(self.command(sys.executable, "-c", RUN, *words))
        assert [one["check"] for one in found if one["check"] != "lease"] == [
            check.id for check in doors.CHECKS if check is not doors.LEASE
        ]
        gpus = sorted({one["gpu"] for one in found} - {""})
        return {
            (one["check"], gpus.index(one["gpu"])) if one["gpu"] else one["check"]: one
            for one in found
        }

    def begin(self):
        """The self-test as a process that goes on."""
        command = self.worker._in(sys.executable, "-c", RUN)
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        return subprocess.Popen(command, env=self.env, stdout=null, stderr=pipe, text=True)

    def leftovers(self):
        """Whatever of the self-test is still there: files, control groups, leases, processes."""
        holders = self.worker.leases()["holders"]
        return [
            *self.path("/run/gpu-ci").glob("selftest*"),
            *self.path("/run/gpu-ci/leases/containers").glob("gpu-selftest-*"),
            *self.path("/var/lib/gpu-ci/selftest").glob("roots*"),
            *sorted(cgroups() - self._foreign),
            *(name for name in holders if name.startswith("gpu-selftest-")),
            *(set(processes()) - self._foreign),
        ]


def cgroups():
    """Control groups of the self-test's containers."""
    return {
        folder
        for controllers, path in places()
        for found in (hierarchy(controllers) / path.lstrip("/")).glob("gpu-ci-selftest*")
        for folder in (found, *found.glob("**/"))
    }


def places():
    """Controllers and path of the control groups below which runc makes those of containers.

    Of v2, it makes them beside this process's own. Where v1 is too, those of all runs of the tests
    that go on would be in one place there: v1 tells them apart.
    """
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = {tuple(line.split(":", 2)[1:]) for line in lines}
    if is_unified():
        return own | {(controllers, os.path.dirname(path)) for controllers, path in own}
    return {(controllers, path) for controllers, path in own if controllers}


def processes():
    """Those that live in control groups of the self-test's containers on this very machine."""
    begins = [
        f":{controllers}:{path.rstrip('/')}/gpu-ci-selftest/" for controllers, path in places()
    ]
    found = []
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            text = path.read_text()
            if any(begin in text for begin in begins) and alive(path.parent.name):
                found.append(path.parent.name)
        except OSError:
            continue
    return found
