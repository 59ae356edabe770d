# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Processes of a container in threaded control groups, in other groups, and in other containers.

A threaded group of cgroup v2 does not say which processes are in it (cgroups(7)).
"""

import errno
import os
import pathlib
import signal
import time

import looks
from worker import CGROUPS, V1, finish, state_of, until

from ci.concourse.restart import cgroup_freezer as freezer

POD = "a" * 64
PARENTS = ("kubepods.slice/kubepods-pod1.slice/cri-containerd-{}.scope", "teams/vision/{}")


def threaded(folder):
    """A threaded group below a container's group, which becomes the top of a threaded tree."""
    below = folder / "below"
    below.mkdir()
    (below / "cgroup.type").write_text("threaded")
    return below


def is_silent(folder):
    """Whether a group does not say which processes it has."""
    try:
        (folder / "cgroup.procs").read_text()
    except OSError as error:
        return error.errno == errno.EOPNOTSUPP
    return False


def b_waits(worker):
    """Container b wants a's GPU and does not get it; what creates it."""
    waiting = worker.creating("b")
    until(30, "b waits", lambda: worker.waiters() == ["b"])
    time.sleep(3)
    assert waiting.poll() is None, finish(waiting)
    return waiting


def what_hides_in_a_threaded_group_dies_too(worker):
    if V1:
        return
    worker.policy(0)
    worker.create("a")
    left = looks.leave_behind(worker, "a")
    folder, init = worker.cgroup("a"), worker.init("a")
    below = threaded(folder)
    (below / "cgroup.procs").write_text(str(left))
    assert is_silent(below)
    worker.create("b")
    assert list(worker.holders()) == ["b"], worker.holders()
    assert not state_of(left)
    assert not state_of(init)


def a_step_in_a_threaded_group_keeps_its_gpu_and_stands_still(worker):
    """Its first thread has ended, and the other one is in the threaded group."""
    if V1:
        return
    pathlib.Path("/run/gpu-ci").mkdir(exist_ok=True)
    worker.policy(0)
    worker.create("a")
    step, folder = worker.launch("a", "headless"), worker.cgroup("a")
    until(10, "its first thread has ended", lambda: not state_of(step))
    below = threaded(folder)
    (thread,) = [name for name in os.listdir(f"/proc/{step}/task") if name != str(step)]
    (below / "cgroup.threads").write_text(thread)
    assert is_silent(below)
    waiting = b_waits(worker)
    switch = freezer.switch(worker.init("a"), step, "a")
    assert switch == folder / "cgroup.freeze", switch
    frozen = freezer.Freezer(1.0)
    assert frozen.freeze(switch)
    told = folder / "cgroup.events"
    until(10, "it stands still", lambda: "frozen 1" in told.read_text().splitlines())
    time.sleep(2)
    assert waiting.poll() is None, finish(waiting)
    frozen.thaw(switch)
    until(10, "it goes on", lambda: "frozen 0" in told.read_text().splitlines())
    os.kill(step, signal.SIGKILL)
    looks.gets_it(worker, waiting, "b", after="a")


def what_left_its_control_group_is_known_by_its_pid_namespace(worker):
    """As root of the machine may: a step there goes on, and what it leaves behind dies."""
    if V1:
        return
    elsewhere = CGROUPS / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    worker.policy(0)
    worker.create("a")
    left = looks.leave_behind(worker, "a")
    step = worker.step("a")
    for pid in (left, step):
        (elsewhere / "cgroup.procs").write_text(str(pid))
    waiting = b_waits(worker)
    assert state_of(step)
    worker.end("a")
    looks.gets_it(worker, waiting, "b", after="a")
    assert not state_of(left)
    assert not looks.processes(elsewhere)


def a_descriptor_sent_to_a_pod_of_another_parent_ends_with_the_lease(worker):
    """The pod's process hides in a group below it, threaded where there are such."""
    os.makedirs("/dev/dri", exist_ok=True)
    node = "/dev/dri/renderD205"
    if not os.path.exists(node):
        looks.make_node(node, 1, 5)
    for parent in PARENTS:
        worker.policy(vendor="intel", nvidia_runtime="", gpus=[looks.gpu_of(0, node)])
        worker.create("a")
        worker.exec("a", f"setsid mischief give /tmp/end-socket {node} >/dev/null 2>&1 &")
        spec = worker.spec("task", POD, ["GPU_COUNT=0"])
        spec["linux"]["cgroupsPath"] = "/" + parent.format(POD)
        worker.create(POD, spec=spec)
        taker = worker.launch(POD, "mischief", "take", "/tmp/end-socket", "/tmp/end-diary")
        diary = worker.rootfs / "tmp/end-diary"
        until(30, "it has the descriptor", diary.exists)
        folder = worker.cgroup(POD)
        assert parent.format(POD) in str(folder), folder
        below = folder / "below"
        below.mkdir() if V1 else threaded(folder)
        (below / "cgroup.procs").write_text(str(taker))
        init = worker.init(POD)
        worker.create("b")
        assert list(worker.holders()) == ["b"], worker.holders()
        assert worker.intruders()[-1:] == [folder.name], worker.intruders()
        assert not state_of(taker)
        assert not state_of(init)
        worker.clear()
