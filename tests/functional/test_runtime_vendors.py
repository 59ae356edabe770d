# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""AMD's and Intel's GPUs from /sys to a step: detection, policy, wrapper, the real runc.

A simulated node has no driver: a step that may open it gets ENXIO; the device cgroup answers
EPERM, the node's mode EACCES.
"""

import errno
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from gpu_agent import paths
from gpu_agent.runtime import install
from machine import templates
from tests.functional import gpu_machine
from tests.unit.wrapper_rig import TASKS

ROOT = Path(__file__).parents[2]
RUNC = shutil.which("runc", path="/usr/local/sbin:/usr/sbin:/usr/bin:/opt/concourse/current/bin")
PLAN = f"""
import sys
sys.path[:0] = ["{ROOT}/src", "{ROOT}/lib"]
from gpu_agent.gpu.vendors import detect
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan, TaskFolders
tasks = {TASKS!r}
print(install.policy_text(GpuPlan(detect.detect().gpus, "", wait_timeout=0, tasks=tasks)))
"""
SLEEP = "import time; time.sleep(600)"
USER = {"uid": 1000, "gid": 1000}
# Concourse's, by which a task that is not privileged is known: only root is another outside.
MAPPINGS = [
    {"containerID": 0, "hostID": 4294967294, "size": 1},
    {"containerID": 1, "hostID": 1, "size": 4294967293},
]
# The place of the root is closed to others than the real root; this one is not.
ROOTFS = "/run/rootfs"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts and device nodes need root"),
    pytest.mark.skipif(RUNC is None, reason="no runc on this machine"),
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    with gpu_machine.start(tmp_path_factory) as machine:
        machine.run("mkdir", ROOTFS)
        machine.run("mount", "--bind", machine.root, ROOTFS)
        # Tasks may have this folder of the host.
        machine.run("touch", f"{ROOTFS}/.gpu-ci-task-root")
        yield machine


class Worker:
    """Two cards, the policy that the charm would write for them, and the wrapper."""

    def __init__(self, machine, vendor):
        self.machine, self.work, self.vendor = machine, machine.work, vendor
        self.made = []
        machine.run("rm", "-rf", self.work)
        machine.fakegpu("install", "--vendor", vendor, "--count", "2")
        self.put("policy.json", machine.run(sys.executable, "-c", PLAN).stdout)
        front = templates.render(
            paths.TEMPLATES,
            "runc",
            runc=RUNC,
            tasks=install.pattern(TASKS),
            python="/usr/bin/python3",
            lib=ROOT / "lib/gpu_runtime",
            store=self.work / "leases",
            policy=self.work / "policy.json",
            bin=self.work,
            log=self.work / "oci.log",
        )
        self.put("runc", front)
        machine.run("chmod", "755", self.work / "runc")

    def nodes_of(self, number):
        """What a step sees that was given that card, each with what opening it answers."""
        other = "/dev/kfd" if self.vendor == "amd" else f"/dev/dri/card{32 + number}"
        return {f"/dev/dri/renderD{160 + number}": errno.ENXIO, other: errno.ENXIO}

    def put(self, name, text):
        self.machine.run("mkdir", "-p", (self.work / name).parent)
        self.machine.run("tee", self.work / name, input=text)

    def runc(self, name, *words):
        """Calls the wrapper; what the step said, or the reason in runc's log if it was refused."""
        out, log = self.work / f"{name}.out", self.work / f"{name}.log"
        self.machine.run("rm", "-f", log)
        # A container that goes on running would hold a pipe of ours open.
        line = f'exec "$@" </dev/null >{out} 2>&1'
        command = ["sh", "-c", line, "sh", self.work / "runc", "--root", self.work / "state"]
        command += ["--log", log, "--log-format", "json"]
        done = self.machine.run(*command, *words, check=False)
        if done.returncode:
            return json.loads(self.machine.run("cat", log).stdout.splitlines()[-1])["msg"]
        return self.machine.run("cat", out).stdout

    def create(self, name):
        bundle = self.work / name
        self.machine.run("mkdir", "-p", bundle)
        self.machine.run(RUNC, "spec", "--bundle", bundle)
        spec = json.loads(self.machine.run("cat", bundle / "config.json").stdout)
        spec["root"] = {"path": ROOTFS, "readonly": False}
        spec["process"] |= {"terminal": False, "args": ["/usr/bin/python3", "-ISc", SLEEP]}
        spec["process"]["env"] += ["ATC_EXTERNAL_URL=http://ci"]
        spec["mounts"] += [{"destination": "/tmp/build/0a1b2c3d", "type": "tmpfs", "source": "x"}]
        spec["linux"]["namespaces"] += [{"type": "user"}]
        spec["linux"] |= {"uidMappings": MAPPINGS, "gidMappings": MAPPINGS}
        self.put(f"{name}/config.json", json.dumps(spec))
        words = ["--bundle", bundle, "--pid-file", bundle / "init.pid", name]
        self.made.append(name)
        return self.runc(name, "create", *words) or self.runc(name, "start", name)

    def step(self, name):
        """What a step of a user who is not root sees in a container that was created."""
        process = {
            "args": ["/usr/bin/python3", "-ISc", gpu_machine.LOOK],
            "cwd": "/",
            "user": USER,
        }
        environment = ["PATH=/usr/bin", "ATC_EXTERNAL_URL=http://ci"]
        self.put(f"{name}.process", json.dumps(process | {"env": environment}))
        pid = self.work / name / "step.pid"
        said = self.runc(
            name, "exec", "--process", self.work / f"{name}.process", "--pid-file", pid, name
        )
        return json.loads(said) if said.startswith("{") else said


@pytest.fixture(params=["amd", "intel"])
def worker(machine, request):
    made = Worker(machine, request.param)
    yield made
    for name in made.made:
        made.machine.run(
            RUNC, "--root", made.work / "state", "delete", "--force", name, check=False
        )


def test_a_step_opens_the_nodes_of_its_gpu_and_no_others(worker):
    policy = json.loads(worker.machine.run("cat", worker.work / "policy.json").stdout)
    ids = [gpu["uuid"] for gpu in policy["gpus"]]
    assert (policy["vendor"], len(ids)) == (worker.vendor, 2)
    assert worker.create("first") == worker.create("second") == ""
    refused = worker.create("third")
    assert "GPU 0 by container first" in refused
    assert "GPU 1 by container second" in refused
    for number, name in enumerate(("first", "second")):
        seen = worker.step(name)
        assert (seen["uid"], seen["nodes"]) == (1000, worker.nodes_of(number))
        assert seen["env"]["GPU_COUNT"] == "1"
        told = json.loads(seen["env"]["GPU_CI_DEVICES"])
        assert ids[number] in json.dumps(told)
        assert ids[1 - number] not in json.dumps(told)


def test_a_gpu_goes_from_a_step_that_ended_to_the_next(worker):
    assert worker.create("first") == worker.create("second") == ""
    assert worker.step("first")["nodes"] == worker.nodes_of(0)
    assert worker.create("third") == ""
    assert "container third has it now" in worker.step("first")
    assert worker.step("third")["nodes"] == worker.nodes_of(0)
