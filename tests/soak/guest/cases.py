# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The cases, one after the other; each tells how it went as one JSON line on the console.

`boot` runs it in the virtual machine, and tests/soak/test_cgroups.py reads the lines.
"""

import os
import pathlib
import signal
import time

import looks
import record
import worker as workers
from frozen import a_step_that_stands_still_keeps_its_gpu_and_goes_on_by_the_guard
from hiding import (
    a_descriptor_sent_to_a_pod_of_another_parent_ends_with_the_lease,
    a_step_in_a_threaded_group_keeps_its_gpu_and_stands_still,
    what_hides_in_a_threaded_group_dies_too,
    what_left_its_control_group_is_known_by_its_pid_namespace,
)
from killed_looks import no_gpu_is_held_twice_while_who_looks_is_killed
from looks import ABSENT, DENIED, GIVEN, opened
from worker import BUNDLES, V1, finish, state_of, until


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
    os.makedirs("/dev/dri", exist_ok=True)
    for minor, node in enumerate(nodes, 10):
        os.chown(looks.make_node(node, 195, minor), 0, 105)
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
    folder, init = worker.cgroup("a"), worker.init("a")
    worker.end("a")
    looks.gets_it(worker, waiting, "b", after="a")
    looks.assert_over(folder, init)


def a_finished_step_keeps_its_container_until_its_gpu_is_needed(worker):
    worker.policy(0, 1)
    worker.create("a")
    worker.exec("a", "true")
    init = worker.init("a")
    worker.create("b")
    assert sorted(worker.holders()) == ["a", "b"], worker.holders()
    assert state_of(init), "another GPU was free"


def a_killed_step_gives_its_gpu_to_the_next(worker):
    worker.policy(0)
    worker.create("a")
    step = worker.step("a")
    waiting = worker.creating("b")
    until(30, "b waits", lambda: worker.waiters() == ["b"])
    os.kill(step, signal.SIGKILL)
    looks.gets_it(worker, waiting, "b", after="a")


def a_killed_container_gives_its_gpu_to_the_next(worker):
    worker.policy(0)
    worker.create("a")
    worker.step("a")
    waiting = worker.creating("b")
    until(30, "b waits", lambda: worker.waiters() == ["b"])
    os.kill(worker.init("a"), signal.SIGKILL)
    looks.gets_it(worker, waiting, "b", after="a")


def a_killed_shim_takes_its_step_along(worker):
    """Containerd kills the container then, and the next task gets the GPU after that."""
    worker.policy(0)
    worker.create("a")
    step = worker.step("a")
    os.kill(looks.parent(worker.init("a")), signal.SIGKILL)
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
    looks.gets_it(worker, waiting, "b", after="a")


def a_worker_killed_whole_leaves_no_gpu_behind(worker):
    """Containerd and the shim die at once, the step does not: containerd ends it at its start."""
    worker.policy(0)
    worker.create("a")
    step = worker.step("a")
    shim = looks.parent(worker.init("a"))
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
    left = looks.leave_behind(worker, "a")
    folder = worker.cgroup("a")
    worker.create("b")
    assert list(worker.holders()) == ["b"], worker.holders()
    looks.assert_over(folder, left, worker.init("a"))


def what_hides_in_a_control_group_below_dies_too(worker):
    worker.policy(0)
    worker.create("a")
    left = looks.leave_behind(worker, "a")
    folder = worker.cgroup("a")
    below = folder / "below" / "deeper"
    below.mkdir(parents=True)
    (below / "cgroup.procs").write_text(str(left))
    assert str(left) not in (folder / "cgroup.procs").read_text().split()
    worker.create("b")
    looks.assert_over(folder, left, worker.init("a"))


def what_became_the_first_process_dies_too(worker):
    """A pipeline can own it, by what it mounts over /tmp/gdn-init."""
    worker.policy(0)
    spec = worker.spec("task", "a")
    spec["process"]["args"] = ["/bin/sh", "-c", "trap '' TERM INT HUP; while :; do sleep 9; done"]
    worker.create("a", spec=spec)
    worker.exec("a", "true")
    folder, init = worker.cgroup("a"), worker.init("a")
    assert state_of(init)
    worker.create("b")
    assert list(worker.holders()) == ["b"], worker.holders()
    looks.assert_over(folder, init)


def what_cannot_be_caught_goes_with_its_container(worker):
    worker.policy(0)
    worker.create("a")
    worker.exec("a", "chain &")
    folder, init = worker.cgroup("a"), worker.init("a")
    assert looks.processes(folder) - {init}, "the chain runs"
    worker.create("b")
    assert list(worker.holders()) == ["b"], worker.holders()
    looks.assert_over(folder, init)


def a_step_goes_on_without_its_first_thread(worker):
    """Its state is that of a dead process, and v1 shows it in the root group."""
    worker.policy(0)
    worker.create("a")
    folder = worker.cgroup("a")
    step = worker.launch("a", "headless")
    until(10, "its first thread has ended", lambda: not state_of(step))
    waiting = worker.creating("b")
    until(30, "b waits", lambda: worker.waiters() == ["b"])
    time.sleep(3)
    assert waiting.poll() is None, finish(waiting)
    assert looks.processes(folder) >= {step}, f"{step} lives"
    os.kill(step, signal.SIGKILL)
    looks.gets_it(worker, waiting, "b", after="a")
    looks.assert_over(folder)


def an_orphaned_start_ends_for_who_comes_next(worker):
    """The runtime's call is killed before any init.pid, so that the spec alone tells the group."""
    worker.policy(0)
    spec = worker.spec("task", "a")
    hang = {"path": "/bin/busybox", "args": ["sleep", "1000"]}
    spec["hooks"] = {"createContainer": [hang]}
    call = worker.creating("a", spec=spec)
    folder = looks.planned("a")
    # A start that is killed before its hook runs ends by itself.
    until(30, "the hook runs", lambda: "sleep" in map(looks.program, looks.processes(folder)))
    orphans = looks.processes(folder)
    (runc,) = [pid for pid, _ in worker.leases("holders", {})["a"]["calls"]]
    assert not (BUNDLES / "a" / "init.pid").exists()
    os.kill(runc, signal.SIGKILL)
    said, code = finish(call)
    assert code != 0, said
    assert looks.processes(folder) == orphans, (
        f"{orphans} were left, {looks.processes(folder)} are"
    )
    worker.create("b")
    assert list(worker.holders()) == ["b"], worker.holders()
    looks.assert_over(folder, *orphans)


def a_descriptor_in_another_container_ends_with_the_lease(worker):
    """What is open there, and what is only mapped, such as one that came through a socket.

    Nothing opens the simulated cards, so these have the numbers of /dev/zero and /dev/full.
    """
    os.makedirs("/dev/dri", exist_ok=True)
    nodes = [looks.make_node(f"/dev/dri/renderD{200 + minor}", 1, minor) for minor in (5, 7)]
    worker.policy(vendor="intel", nvidia_runtime="", gpus=[*map(looks.gpu_of, range(2), nodes)])
    worker.create("a")
    worker.exec("a", "true")
    worker.create("b")
    worker.step("b")
    spec = worker.spec("task", "maps", ["GPU_COUNT=0"])
    bind = {"destination": "/bound", "type": "bind", "options": ["bind"], "source": nodes[0]}
    spec["mounts"].append(bind)
    worker.create("maps", spec=spec)
    worker.launch("maps", "mapper", "/bound")
    for handle, node in (("opens", "/dev/zero"), ("innocent", "/dev/full")):
        worker.create(handle, ["GPU_COUNT=0"])
        worker.launch(handle, "sh", "-c", f"exec sleep 1000 <>{node}")
    handles = ("maps", "opens", "innocent", "b")
    before = {handle: (worker.cgroup(handle), worker.inside(handle)) for handle in handles}
    worker.create("c")
    assert sorted(worker.holders()) == ["b", "c"], worker.holders()
    assert sorted(worker.intruders()) == ["maps", "opens"], worker.intruders()
    for handle in ("maps", "opens"):
        looks.assert_over(before[handle][0], *before[handle][1])
    for handle in ("innocent", "b"):
        assert worker.inside(handle) == before[handle][1], f"{handle} was harmed"


def a_hijack_gets_the_gpu_if_it_is_free(worker):
    worker.policy(0)
    worker.create("a")
    worker.exec("a", "true")
    worker.step("a", name="hijack")
    assert list(worker.holders()) == ["a"], worker.holders()
    assert opened(worker.exec("a", "cat /dev/nvidia0", name="look")[0]) == GIVEN


def a_hijack_of_a_container_that_ended_fails_in_the_words_of_containerd(worker):
    worker.policy(0)
    worker.create("a")
    worker.exec("a", "true")
    worker.create("b")
    worker.step("b")
    said, code = worker.exec("a", "echo in", name="hijack")
    assert code != 0, said
    assert "stopped" in said, said
    assert list(worker.holders()) == ["b"], worker.holders()


def a_hijack_is_refused_in_words_while_another_uses_the_gpu(worker):
    """Where tasks shared it, nobody was ended for it."""
    worker.policy(0, allocation="shared")
    for handle in ("a", "b"):
        worker.create(handle)
    worker.exec("a", "true")
    worker.step("b")
    worker.policy(0)
    said, code = worker.exec("a", "echo in", name="hijack")
    assert code != 0, said
    assert "gpu-ci-worker: gpu-given-back: " in said, said
    assert "container b" in said, said
    assert state_of(worker.init("a"))


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
    assert "gpu-ci-worker: too-few-gpus: " in said, said


def a_recording_of_containers_in_every_state(worker):
    """Copied to /out; tests/unit/recorded holds the one that the unit tests read."""
    worker.policy(allocation="shared")
    for handle in ("running", "finished", "left-behind", "below", "hijacked", "fresh"):
        worker.create(handle)
    worker.step("running")
    worker.exec("finished", "true")
    looks.leave_behind(worker, "left-behind")
    below = worker.cgroup("below") / "below" / "deeper"
    below.mkdir(parents=True)
    (below / "cgroup.procs").write_text(str(looks.leave_behind(worker, "below")))
    worker.exec("hijacked", "true")
    worker.step("hijacked", name="7d3f1c5e-0000-4000-8000-000000000001")
    record.record(pathlib.Path("/out"), sorted(BUNDLES.iterdir()))


CASES = [
    the_machine_has_the_control_groups_that_were_asked_for,
    a_task_sees_its_gpu_and_no_other,
    a_privileged_task_cannot_make_itself_a_gpu,
    an_amd_gpu_is_two_nodes_and_their_group,
    the_next_task_waits_until_the_step_has_ended,
    a_finished_step_keeps_its_container_until_its_gpu_is_needed,
    a_killed_step_gives_its_gpu_to_the_next,
    a_killed_container_gives_its_gpu_to_the_next,
    a_killed_shim_takes_its_step_along,
    a_killed_containerd_leaves_the_gpu_to_its_step,
    a_worker_killed_whole_leaves_no_gpu_behind,
    what_a_step_left_behind_dies_before_the_gpu_goes_on,
    what_hides_in_a_control_group_below_dies_too,
    what_became_the_first_process_dies_too,
    what_cannot_be_caught_goes_with_its_container,
    a_step_goes_on_without_its_first_thread,
    an_orphaned_start_ends_for_who_comes_next,
    a_descriptor_in_another_container_ends_with_the_lease,
    a_step_that_stands_still_keeps_its_gpu_and_goes_on_by_the_guard,
    what_hides_in_a_threaded_group_dies_too,
    a_step_in_a_threaded_group_keeps_its_gpu_and_stands_still,
    what_left_its_control_group_is_known_by_its_pid_namespace,
    a_descriptor_sent_to_a_pod_of_another_parent_ends_with_the_lease,
    no_gpu_is_held_twice_while_who_looks_is_killed,
    a_hijack_gets_the_gpu_if_it_is_free,
    a_hijack_of_a_container_that_ended_fails_in_the_words_of_containerd,
    a_hijack_is_refused_in_words_while_another_uses_the_gpu,
    two_tasks_on_two_gpus_have_one_each,
    a_recording_of_containers_in_every_state,
]


looks.run(CASES, workers.Worker())
