# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The cases, one after the other; each tells how it went as one JSON line on the console.

`boot` runs it in the virtual machine, and tests/soak/test_cgroups.py reads the lines.
"""

import json
import os
import pathlib
import signal
import stat
import time
import traceback

import record
import worker as workers
from worker import BUNDLES, V1, finish, state_of, until

GIVEN, DENIED, ABSENT = (
    "No such device or address",
    "Operation not permitted",
    "No such file or directory",
)
# From the end of a holder to the next one, in seconds: 2 is promised, of real processors.
SOON = 4


def opened(said):
    return said.strip().rpartition(": ")[2]


def the_machine_has_the_control_groups_that_were_asked_for(worker):
    kinds = [
        line.partition(" - ")[2].split()[0]
        for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
        if " - cgroup" in line
    ]
    assert kinds == (["cgroup"] * 9 + ["cgroup2"] if V1 else ["cgroup2"]), kinds
    assert f"gpuci.cgroups={'v1' if V1 else 'v2'}" in pathlib.Path("/proc/cmdline").read_text()


def a_task_sees_its_gpu_and_no_other(worker):
    """v2 has no devices controller: runc loads a BPF program. What that denies is EPERM too."""
    worker.policy(1)
    spec = worker.spec("task", "a")
    # What bind mounts bring in shows that it is not the node that is missing.
    spec["mounts"] += [
        {"destination": f"/bound{index}", "type": "bind", "options": ["bind"]}
        | {"source": f"/dev/nvidia{index}"}
        for index in (0, 1)
    ]
    worker.create("a", spec=spec)
    nodes = ("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia0", "/bound0", "/bound1")
    answers = [opened(worker.exec("a", f"cat {node}")[0]) for node in nodes]
    assert answers == [GIVEN, GIVEN, ABSENT, DENIED, GIVEN], answers
    said, _ = worker.exec("a", "env")
    assert f"NVIDIA_VISIBLE_DEVICES={workers.UUIDS[1]}" in said.split(), said


def a_privileged_task_cannot_make_itself_a_gpu(worker):
    worker.policy(0)
    worker.create("a", golden="task-privileged")
    said, _ = worker.exec("a", "cd /tmp && mknod node c 195 0 && echo made && cat node")
    assert said.startswith("made\n"), said
    assert opened(said) == DENIED, said


def an_amd_gpu_is_two_nodes_and_their_group(worker):
    nodes = ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129"]
    os.mkdir("/dev/dri")
    for minor, node in enumerate(nodes, 10):
        os.mknod(node, stat.S_IFCHR | 0o660, os.makedev(195, minor))
        os.chown(node, 0, 105)
    gpus = [
        {"index": index, "uuid": f"GPU-000000000000000{index}", "model": "AMD Instinct MI210"}
        | {"devices": [f"GPU-000000000000000{index}"], "nodes": ["/dev/kfd", nodes[1 + index]]}
        for index in (0, 1)
    ]
    worker.policy(vendor="amd", nvidia_runtime="", gpus=gpus)
    worker.create("a")
    answers = [opened(worker.exec("a", f"cat {node}")[0]) for node in nodes]
    assert answers == [GIVEN, GIVEN, ABSENT], answers
    assert "105" in worker.exec("a", "id -G")[0].split()


def the_next_task_waits_until_the_step_has_ended(worker):
    worker.policy(0)
    worker.create("a")
    worker.step("a")
    waiting = worker.creating("b")
    until(30, "b waits", lambda: worker.waiters() == ["b"])
    time.sleep(3)
    assert waiting.poll() is None, finish(waiting)
    assert worker.holders() == {"a": [workers.UUIDS[0]]}, worker.holders()
    worker.end("a")
    gets_it(worker, waiting, "b", after="a")
    assert state_of(worker.init("a")), "the container of the step that ended is kept"


def a_killed_step_gives_its_gpu_to_the_next(worker):
    worker.policy(0)
    worker.create("a")
    step = worker.step("a")
    waiting = worker.creating("b")
    until(30, "b waits", lambda: worker.waiters() == ["b"])
    os.kill(step, signal.SIGKILL)
    gets_it(worker, waiting, "b", after="a")


def a_killed_container_gives_its_gpu_to_the_next(worker):
    worker.policy(0)
    worker.create("a")
    worker.step("a")
    waiting = worker.creating("b")
    until(30, "b waits", lambda: worker.waiters() == ["b"])
    os.kill(worker.init("a"), signal.SIGKILL)
    gets_it(worker, waiting, "b", after="a")


def a_killed_shim_takes_its_step_along(worker):
    """Containerd kills the container then, and the next task gets the GPU after that."""
    worker.policy(0)
    worker.create("a")
    step = worker.step("a")
    os.kill(parent(worker.init("a")), signal.SIGKILL)
    worker.create("b")
    assert list(worker.holders()) == ["b"], worker.holders()
    assert not state_of(step), f"{step} lives"


def a_killed_containerd_leaves_the_gpu_to_its_step(worker):
    worker.policy(0)
    worker.create("a")
    step = worker.step("a")
    worker.containerd.kill()
    worker.containerd.wait(10)
    worker.start()
    waiting = worker.creating("b")
    until(30, "b waits", lambda: worker.waiters() == ["b"])
    time.sleep(2)
    assert waiting.poll() is None, finish(waiting)
    assert state_of(step)
    os.kill(step, signal.SIGKILL)
    gets_it(worker, waiting, "b", after="a")


def a_worker_killed_whole_leaves_no_gpu_behind(worker):
    """Containerd and the shim die at once, the step does not: containerd ends it at its start."""
    worker.policy(0)
    worker.create("a")
    step = worker.step("a")
    shim = parent(worker.init("a"))
    worker.containerd.kill()
    worker.containerd.wait(10)
    os.kill(shim, signal.SIGKILL)
    until(10, "the shim is dead", lambda: not state_of(shim))
    assert state_of(step)
    worker.start()
    worker.create("b")
    assert list(worker.holders()) == ["b"], worker.holders()
    assert not state_of(step), f"{step} lives"


def what_a_step_left_behind_dies_before_the_gpu_goes_on(worker):
    worker.policy(0)
    worker.create("a")
    left = leave_behind(worker, "a")
    worker.create("b")
    assert list(worker.holders()) == ["b"], worker.holders()
    assert not state_of(left), f"{left} lives"
    assert worker.inside("a") == [worker.init("a")], worker.inside("a")


def what_hides_in_a_control_group_below_dies_too(worker):
    worker.policy(0)
    worker.create("a")
    left = leave_behind(worker, "a")
    below = worker.cgroup("a") / "below" / "deeper"
    below.mkdir(parents=True)
    (below / "cgroup.procs").write_text(str(left))
    assert str(left) not in (worker.cgroup("a") / "cgroup.procs").read_text().split()
    worker.create("b")
    assert not state_of(left), f"{left} lives"
    assert worker.inside("a") == [worker.init("a")], worker.inside("a")


def what_cannot_be_caught_goes_with_its_container(worker):
    worker.policy(0)
    worker.create("a")
    worker.exec("a", "chain &")
    folder, init = worker.cgroup("a"), worker.init("a")
    others = processes(folder) - {init}
    assert others, "the chain runs"
    worker.create("b")
    assert list(worker.holders()) == ["b"], worker.holders()
    others = processes(folder) - {init}
    assert not others, f"the chain has come to {others}"


def a_hijack_gets_the_gpu_if_it_is_free_and_a_sentence_if_not(worker):
    worker.policy(0)
    worker.create("a")
    worker.exec("a", "true")
    worker.create("b")
    worker.step("b")
    said, code = worker.exec("a", "echo in", name="hijack")
    assert code != 0, said
    assert "gpu-ci-worker: this container gave its GPU back" in said, said
    assert "container b" in said, said
    worker.end("b")
    until(30, "b's step is over", lambda: not (BUNDLES / "b" / "task.pid").exists())
    worker.step("a", name="hijack")
    assert list(worker.holders()) == ["a"], worker.holders()
    assert opened(worker.exec("a", "cat /dev/nvidia0", name="look")[0]) == GIVEN
    said, code = worker.exec("b", "echo in", name="hijack")
    assert code != 0, said


def two_tasks_on_two_gpus_have_one_each(worker):
    worker.policy(0, 1)
    both = [worker.creating(handle) for handle in "ab"]
    for started in both:
        said, code = finish(started)
        assert code == 0, said
    held = worker.holders()
    assert sorted(held) == ["a", "b"], held
    assert sorted(held["a"] + held["b"]) == workers.UUIDS, held
    said, code = finish(worker.creating("c", ["GPU_COUNT=3"]))
    assert code != 0
    assert "gpu-ci-worker: this task needs 3 GPUs, and this worker has 2 GPUs" in said, said


def a_recording_of_containers_in_every_state(worker):
    """Copied to /out; tests/unit/recorded holds the one that the unit tests read."""
    worker.policy(allocation="shared")
    for handle in ("running", "finished", "left-behind", "below", "hijacked", "fresh"):
        worker.create(handle)
    worker.step("running")
    worker.exec("finished", "true")
    leave_behind(worker, "left-behind")
    below = worker.cgroup("below") / "below" / "deeper"
    below.mkdir(parents=True)
    (below / "cgroup.procs").write_text(str(leave_behind(worker, "below")))
    worker.exec("hijacked", "true")
    worker.step("hijacked", name="7d3f1c5e-0000-4000-8000-000000000001")
    record.record(pathlib.Path("/out"), sorted(BUNDLES.iterdir()))


def processes(folder):
    try:
        return set(map(int, (folder / "cgroup.procs").read_text().split()))
    except OSError:  # the control group is gone, or goes
        return set()


def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def leave_behind(worker, handle):
    """Run a step that leaves a process behind in its container; the pid of that."""
    before = set(worker.inside(handle))
    worker.exec(handle, "setsid sleep 4321 &")
    (left,) = set(worker.inside(handle)) - before
    assert not (BUNDLES / handle / "task.pid").exists()
    return left


def gets_it(worker, waiting, handle, after):
    """`after` has just ended, and `handle` is to have its GPU."""
    began = time.monotonic()
    until(60, f"{handle} holds it", lambda: list(worker.holders()) == [handle])
    took = time.monotonic() - began
    said, code = finish(waiting)
    assert code == 0, said
    assert took < SOON, f"{took:.1f} s passed from the end of {after} to {handle}"
    assert opened(worker.exec(handle, "cat /dev/nvidia0")[0]) == GIVEN
    tell(note=f"{handle} had it {took:.2f} s after {after}'s end")


CASES = [
    the_machine_has_the_control_groups_that_were_asked_for,
    a_task_sees_its_gpu_and_no_other,
    a_privileged_task_cannot_make_itself_a_gpu,
    an_amd_gpu_is_two_nodes_and_their_group,
    the_next_task_waits_until_the_step_has_ended,
    a_killed_step_gives_its_gpu_to_the_next,
    a_killed_container_gives_its_gpu_to_the_next,
    a_killed_shim_takes_its_step_along,
    a_killed_containerd_leaves_the_gpu_to_its_step,
    a_worker_killed_whole_leaves_no_gpu_behind,
    what_a_step_left_behind_dies_before_the_gpu_goes_on,
    what_hides_in_a_control_group_below_dies_too,
    what_cannot_be_caught_goes_with_its_container,
    a_hijack_gets_the_gpu_if_it_is_free_and_a_sentence_if_not,
    two_tasks_on_two_gpus_have_one_each,
    a_recording_of_containers_in_every_state,
]


def tell(**line):
    print("soak:" + json.dumps(line))


def main():
    tell(note=f"kernel {os.uname().release}")
    worker = workers.Worker()
    for case in CASES:
        began = time.monotonic()
        fault = ""
        try:
            case(worker)
        except Exception:  # noqa: BLE001  the other cases are to run
            fault = f"{traceback.format_exc()}\n{worker.evidence()}"
        tell(case=case.__name__, fault=fault, seconds=round(time.monotonic() - began, 1))
        worker.clear()
    tell(end=True)


main()
