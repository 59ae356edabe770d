# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The wrapper killed in front of each step: bundles stay valid, no GPU is lost or given twice."""

import json
import shutil
import signal
import subprocess
import time

import pytest

from gpu_runtime import cgroups as groups
from gpu_runtime import lease_store as store
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_table import Holder
from tests.unit.wrapper_caller import EXECED, UUIDS, Bundle, hold
from tests.unit.wrapper_rig import GPUS


def each_step(begin):
    """Goes on while `begin` (told the step) says that its call was killed; how often it was."""
    step = 0
    while True:
        step += 1
        status = begin(step)
        if status != -signal.SIGKILL:
            return step - 1, status


def test_a_create_that_is_killed_leaves_a_valid_bundle_and_the_gpu(rig, caller):
    def begin(step):
        shutil.rmtree(rig.store.parent, ignore_errors=True)
        mine, other = Bundle(rig, "ID"), Bundle(rig, "OTHER")
        before = json.loads(mine.config.read_text())
        status = caller.call(mine.create, step)
        found = json.loads(mine.config.read_text())
        if found != before:
            assert f"NVIDIA_VISIBLE_DEVICES={UUIDS[0]}" in found["process"]["env"]
        assert caller.call(other.create) == EXECED, "it has no owner any more"
        assert caller.holders() == {"OTHER": UUIDS[:1]}
        assert caller.call(mine.create) == EXECED, "and again"
        assert caller.holders() == {"ID": UUIDS[:1]}
        assert caller.records() == ["ID", "OTHER"]
        assert [path.name for path in mine.folder.iterdir()] == ["config.json"]
        return status

    steps, last = each_step(begin)
    assert (steps > 15, last) == (True, EXECED)


def test_an_exec_that_is_killed_leaves_a_valid_process_and_the_gpu(rig, caller):
    process = rig.folder / "runc-process1"
    asked = {"args": ["sh"], "env": ["PATH=/bin"], "cwd": "/"}
    words = ["exec", "--process", str(process), "--detach", "--pid-file", "x/task.pid", "ID"]

    def begin(step):
        shutil.rmtree(rig.store.parent, ignore_errors=True)
        mine, other = Bundle(rig, "ID"), Bundle(rig, "OTHER")
        assert caller.call(mine.create) == EXECED
        process.write_text(json.dumps(asked))
        status = caller.call(words, step)
        found = json.loads(process.read_text())
        assert {**found, "env": asked["env"]} == asked
        assert found["env"][0] == "PATH=/bin"
        assert caller.call(other.create) == EXECED
        assert caller.holders() == {"OTHER": UUIDS[:1]}
        assert caller.call(words) == EXECED, "nobody uses it: it may be had again"
        assert caller.holders() == {"ID": UUIDS[:1]}
        return status

    steps, last = each_step(begin)
    assert (steps > 8, last) == (True, EXECED)


@pytest.fixture
def owner():
    """A process that may stand for a call of runc that goes on; its id and start."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process.pid, Host()._started(process.pid)
        process.kill()


def hurry():
    """From now on time passes by sleeping alone."""
    slept, now = 0.0, Host.now()

    def sleep(seconds):
        nonlocal slept
        slept += seconds

    time.sleep = sleep
    Host.now = staticmethod(lambda: now + slept)


def test_a_create_that_is_killed_while_it_waits_is_in_nobodys_way(rig, caller, owner):
    rig.policy(gpus=GPUS[:1], wait_timeout=1)

    def begin(step):
        mine, other = Bundle(rig, "ID"), Bundle(rig, "OTHER")
        before = json.loads(mine.config.read_text())
        hold(rig, owner)
        status = caller.call(mine.create, step, hurry)
        assert json.loads(mine.config.read_text()) == before
        assert caller.holders() == {"HOLDER": UUIDS[:1]}
        hold(rig, (owner[0], owner[1] + 1))  # that is, somebody who is gone
        assert caller.call(other.create) == EXECED
        assert caller.holders() == {"OTHER": UUIDS[:1]}
        shutil.rmtree(rig.store.parent)
        return status

    steps, last = each_step(begin)
    assert (steps > 15, last) == (True, 1)


def test_one_that_is_killed_while_it_kills_has_not_given_the_gpu_away(rig, caller, tmp_path):
    """The process that it was killing is the holder's still."""
    rig.policy(gpus=GPUS[:1])
    left = subprocess.Popen(["sleep", "1000"])
    group = tmp_path / "group"
    group.mkdir()
    (group / "cgroup.procs").write_text(f"{left.pid}\n")

    def prepare():
        real = Host._inside
        groups.folders = lambda *_: [str(group)]
        Host._inside = lambda self, pid, cgroup: pid == left.pid or real(self, pid, cgroup)

    with store.Store(str(rig.store)) as table:
        holder = Holder("/nowhere", UUIDS[:1], [], exclusive=True, since=0)
        holder.cgroup, holder.execs = "/group/HOLDER", True
        table.holders["HOLDER"] = holder
    other = Bundle(rig, "OTHER")
    for step in range(1, 30):
        status = caller.call(other.create, step, prepare)
        if left.poll() is not None:
            break
        assert status == -signal.SIGKILL
        assert "OTHER" not in caller.holders()
    assert left.wait(10) == -signal.SIGKILL
    (group / "cgroup.procs").write_text("")
    assert caller.call(other.create, 0, prepare) == EXECED
    assert caller.holders() == {"OTHER": UUIDS[:1]}
