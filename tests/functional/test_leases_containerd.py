# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Leases through real containerd and runc: who gets a GPU, who waits, and what ends a lease."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

import pytest

from machine import procfs as outside
from tests.functional.containerd_worker import NEEDS, UUIDS, worker_in_a_namespace
from tests.functional.lease_site import LONG, alive, cgroup, site, until, until_child

# s, from the death of a holder to the next one's: less than a second where the machine is quiet
HANDOVER = 10.0
HIJACK = "4b825dc6-42cb-4eb9-a060-e54bf8d69288"
# Ends its first thread and goes on in another, until it is told to stop.
THREADS = """
#include <pthread.h>
#include <unistd.h>
static void *go_on(void *_) { while (access("/tmp/stop", F_OK)) usleep(20000); _exit(0); }
int main(void) { pthread_t one; pthread_create(&one, 0, go_on, 0); pthread_exit(0); }
"""

pytestmark = NEEDS


@pytest.fixture(scope="module")
def started():
    with worker_in_a_namespace() as worker:
        worker.charm(0, 1)
        # A runc that takes its time, when told to, after the wrapper has let it pass.
        real = shutil.which("runc")
        slow = worker.folder / "slow-runc"
        slow.write_text(
            "#!/bin/sh\n"
            'case " $* " in *" exec "*) while [ -e /run/hold ]; do sleep 0.05; done ;; esac\n'
            f'exec {real} "$@"\n'
        )
        slow.chmod(0o755)
        worker.inside("ln", "-sfn", slow, "/opt/concourse/current/bin/runc")
        program = worker.rootfs / "bin" / "threads"
        command = ["gcc", "-static", "-pthread", "-x", "c", "-o", program, "-"]
        subprocess.run(command, input=THREADS.encode(), check=True, timeout=60)
        worker.start()
        yield worker


@pytest.fixture
def two(started):
    """Two GPUs, and nobody waits for long."""
    yield from site(started, 0, 1, wait_timeout=0)


@pytest.fixture
def one(started):
    """One GPU, and whoever needs it waits."""
    yield from site(started, 1, wait_timeout=60)


def test_two_tasks_at_once_get_different_gpus_and_a_third_the_one_that_comes_free(two):
    calls = [two.worker.begin_create(two.task(handle)) for handle in ("t1", "t2")]
    for call in calls:
        said, _ = call.communicate(timeout=30)
        assert call.returncode == 0, said
    held = [two.gpus(handle) for handle in ("t1", "t2")]
    assert sorted(held) == [UUIDS[:1], UUIDS[1:]]
    two.worker.charm(0, 1, wait_timeout=60)
    steps = [two.step(handle) for handle in ("t1", "t2")]
    third = two.wait("t3")
    os.kill(steps[1], signal.SIGKILL)
    assert until(lambda: two.gpus("t3")) < HANDOVER
    said, _ = third.communicate(timeout=30)
    assert third.returncode == 0, said
    assert two.gpus("t3") == held[1]
    env = two.worker.exec("t3", "env").stdout.splitlines()
    assert f"NVIDIA_VISIBLE_DEVICES={held[1][0]}" in env
    assert "GPU_COUNT=1" in env


def end(one, pid):
    (one.worker.rootfs / "tmp" / "stop").touch()
    until(lambda: not alive(pid))


def kill(one, pid):
    os.kill(pid, signal.SIGKILL)


def kill_container(one, pid):
    one.worker.ctr("task", "kill", "-s", "KILL", "t1")


def kill_shim(one, pid):
    """The parent of a container's init, and of all that ran in it, is its shim."""
    init = one.pid("t1", "init")
    stat = pathlib.Path(f"/proc/{init}/stat").read_text().rpartition(")")[2].split()
    os.kill(int(stat[1]), signal.SIGKILL)


UNTIL_TOLD = "while ! [ -e /tmp/stop ]; do sleep 0.02; done"


@pytest.mark.parametrize("death", [end, kill, kill_container, kill_shim])
def test_whoever_waits_gets_the_gpu_when_its_holder_dies(one, death):
    one.create("t1")
    stop = one.worker.rootfs / "tmp" / "stop"
    stop.unlink(missing_ok=True)
    pid = one.step("t1", UNTIL_TOLD)
    call = one.wait("t2")
    time.sleep(0.6)
    assert not one.gpus("t2"), "its holder lives"
    death(one, pid)
    stop.unlink(missing_ok=True)
    assert until(lambda: one.gpus("t2")) < HANDOVER
    said, _ = call.communicate(timeout=30)
    assert call.returncode == 0, said
    assert not alive(pid)


def test_a_restart_in_between_changes_nothing(one):
    one.create("t1")
    pid = one.step("t1", LONG, "task", "--detach")
    one.running[-1].wait(10)  # else ctr would take it along
    one.worker.restart()
    one.wait("t2")
    time.sleep(1.2)
    assert not one.gpus("t2")
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: one.gpus("t2")) < HANDOVER


def test_a_step_lives_through_a_restart_though_its_shim_answers_late(one):
    """As on a machine under load; containerd's own patience is 5 seconds."""
    one.create("t1")
    pid = one.step("t1", LONG, "task", "--detach")
    one.running[-1].wait(10)
    init = int((one.worker.folder_of("t1") / "init.pid").read_text())
    shim = outside.parent(init)
    os.kill(shim, signal.SIGSTOP)
    late = threading.Timer(8, os.kill, (shim, signal.SIGCONT))
    late.start()
    try:
        one.worker.restart()
    finally:
        late.join()
    time.sleep(1)
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("nested", [False, True])
def test_a_container_whose_gpu_goes_to_another_is_over_as_a_whole(one, nested):
    one.create("t1")
    stop = one.worker.rootfs / "tmp" / "stop"
    stop.unlink(missing_ok=True)
    pid = one.step("t1", f"busybox setsid sleep 1000 & {UNTIL_TOLD}")
    init = one.pid("t1", "init")
    child = until_child(one, "t1", pid)
    if nested:
        below = cgroup(init) / "nested"
        below.mkdir()
        (below / "cgroup.procs").write_text(f"{child}")
    call = one.wait("t2")
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: one.gpus("t2")) < HANDOVER
    assert not alive(child)
    assert not alive(init), "a pipeline can own it too"
    assert call.communicate(timeout=30)
    if nested:
        until(lambda: not (below / "cgroup.procs").read_text())
        below.rmdir()


def test_a_process_in_a_group_below_its_containers_is_in_use(one):
    one.create("t1")
    pid = one.step("t1")
    below = cgroup(one.pid("t1", "init")) / "nested"
    below.mkdir()
    (below / "cgroup.procs").write_text(f"{pid}")
    one.wait("t2")
    time.sleep(1.2)
    assert not one.gpus("t2")
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: one.gpus("t2")) < HANDOVER
    below.rmdir()


def test_a_process_whose_first_thread_has_ended_is_in_use(one):
    one.create("t1")
    stop = one.worker.rootfs / "tmp" / "stop"
    stop.unlink(missing_ok=True)
    pid = one.step("t1", "exec threads")
    until(lambda: not alive(pid))
    one.wait("t2")
    time.sleep(1.2)
    assert not one.gpus("t2")
    assert len([*pathlib.Path(f"/proc/{pid}/task").iterdir()]) == 2
    stop.touch()
    assert until(lambda: one.gpus("t2")) < HANDOVER
    stop.unlink()


def test_a_refusal_names_who_holds_which_gpu(two):
    for handle in ("t1", "t2"):
        two.create(handle)
    done = two.create("t3")
    assert done.returncode != 0
    assert "gpu-ci-worker: wait-timeout: timed out after 0 s " in done.stderr
    for handle in ("t1", "t2"):
        number = UUIDS.index(two.gpus(handle)[0])
        assert f"GPU {number} by container {handle} for " in done.stderr
    assert not two.waiters
    last = two.decisions()[-1]
    assert (last["container"], last["granted"], last["asked"]) == ("t3", [], 1)
    assert last["code"] == "wait-timeout"


def test_who_waited_longest_is_first(one):
    one.create("t1")
    pid = one.step("t1")
    for handle in ("w1", "w2", "w3"):
        one.wait(handle)
    os.kill(pid, signal.SIGKILL)
    for handle, others in (("w1", ["w2", "w3"]), ("w2", ["w3"])):
        assert until(lambda handle=handle: one.gpus(handle)) < HANDOVER
        assert one.waiters == others
        pid = one.step(handle, "true && sleep 1000")
        os.kill(pid, signal.SIGKILL)


def test_a_task_with_two_gpus_waits_for_both(two):
    two.worker.charm(0, 1, wait_timeout=60)
    steps = []
    for handle in ("t1", "t2"):
        two.create(handle)
        steps.append(two.step(handle))
    call = two.wait("t3", "GPU_COUNT=2")
    os.kill(steps[0], signal.SIGKILL)
    time.sleep(1.2)
    assert two.waiters == ["t3"]
    os.kill(steps[1], signal.SIGKILL)
    assert until(lambda: two.gpus("t3")) < HANDOVER
    assert two.gpus("t3") == UUIDS
    assert call.communicate(timeout=30)
    env = two.worker.exec("t3", "env").stdout.splitlines()
    assert {"GPU_COUNT=2", f"NVIDIA_VISIBLE_DEVICES={','.join(UUIDS)}"} <= {*env}


def hijack(site, handle, line="env"):
    return site.worker.exec(handle, line, name=HIJACK)


def test_a_hijack_after_the_step_gets_the_gpu_if_it_is_free(two):
    two.worker.charm(1, wait_timeout=0)
    two.create("t1")
    during = two.worker.exec("t1", "env").stdout
    assert hijack(two, "t1").stdout == during
    assert two.create("t2").returncode == 0, "after a hijack too"
    assert not two.gpus("t1")
    done = hijack(two, "t1")
    assert done.returncode != 0
    assert "stopped" in done.stderr, "its container ended when another one got its GPU"
    assert two.gpus("t2") == [UUIDS[1]]


def test_a_hijack_does_not_get_before_those_who_wait(one):
    one.create("t1")
    pid = one.step("t1")
    waiting = one.wait("t2")
    os.kill(waiting_pid := one.worker.leases()["waiters"][0]["call"][0], signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    done = hijack(one, "t1", LONG)
    os.kill(waiting_pid, signal.SIGCONT)
    assert done.returncode != 0
    assert "a task waits for it" in done.stderr
    assert until(lambda: one.gpus("t2")) < HANDOVER
    assert waiting.communicate(timeout=30)


def test_the_lease_goes_on_with_a_second_process(one):
    one.create("t1")
    first = one.step("t1")
    second = one.step("t1", name=HIJACK)
    one.wait("t2")
    os.kill(first, signal.SIGKILL)
    time.sleep(1.2)
    assert not one.gpus("t2")
    os.kill(second, signal.SIGKILL)
    assert until(lambda: one.gpus("t2")) < HANDOVER


def test_a_process_that_was_let_in_and_has_not_begun_counts(one):
    one.create("t1")
    one.worker.inside("touch", "/run/hold")
    for name in ("task", HIJACK):  # the second while the first still starts
        words = ["task", "exec", "--exec-id", name, "t1", "sh", "-c", LONG]
        one.keep(one.worker.begin(*words))
    until(lambda: one.worker.leases()["holders"]["t1"]["execs"])
    one.wait("t2")
    time.sleep(1.2)
    assert not one.gpus("t2")
    one.worker.inside("rm", "/run/hold")
    for name in ("task", HIJACK):
        pid = one.pid("t1", name)
        time.sleep(0.6)
        assert not one.gpus("t2")
        os.kill(pid, signal.SIGKILL)
    assert until(lambda: one.gpus("t2")) < HANDOVER


def test_a_process_whose_start_was_killed_counts_no_more(one):
    one.create("t1")
    one.worker.inside("touch", "/run/hold")
    one.keep(one.worker.begin("task", "exec", "--exec-id", "task", "t1", "sh", "-c", LONG))
    until(lambda: one.worker.leases()["holders"]["t1"]["execs"])
    one.wait("t2")
    ((pid, _),) = one.worker.leases()["holders"]["t1"]["calls"]
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: one.gpus("t2")) < HANDOVER


def test_whoever_is_killed_while_waiting_is_in_nobodys_way(one):
    one.create("t1")
    pid = one.step("t1")
    first = one.wait("t2", "GPU_COUNT=1")
    one.wait("t3")
    os.kill(one.worker.leases()["waiters"][0]["call"][0], signal.SIGKILL)
    said, _ = first.communicate(timeout=30)
    assert first.returncode != 0, said
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: one.gpus("t3")) < HANDOVER
    assert not one.waiters
    assert not one.gpus("t2")


def test_a_create_that_runc_fails_gives_its_gpu_back(two):
    two.worker.charm(1, wait_timeout=0)
    spec = two.task("t1")
    spec["hooks"] = {"createRuntime": [{"path": "/bin/false"}]}
    assert two.worker.create(spec).returncode != 0
    assert two.gpus("t1") == [UUIDS[1]], "the wrapper let it pass"
    assert two.create("t2").returncode == 0
    for handle in ("t1", "t2"):
        two.worker.remove(handle)
    assert two.create("t1").returncode == 0, "and the same id again"
    assert two.gpus("t1") == [UUIDS[1]]


def test_a_cordoned_gpu_is_for_nobody_new(two):
    two.worker.charm(1, wait_timeout=0)
    two.create("t1")
    pid = two.step("t1")
    two.worker.inside("mkdir", "-p", "/run/gpu-ci/cordons")
    reason = json.dumps({"reason": "in use outside CI: pid 4711 (python3)"})
    path = f"/run/gpu-ci/cordons/{UUIDS[1]}.json"
    two.worker.inside("sh", "-c", f"echo '{reason}' >{path}")
    assert hijack(two, "t1", "echo still").stdout == "still\n", "its step goes on"
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    done = hijack(two, "t1")
    assert done.returncode != 0
    assert "is in use outside CI: pid 4711 (python3)" in done.stderr
    done = two.create("t2")
    assert done.returncode != 0
    assert "in use outside CI" in done.stderr
    two.worker.inside("rm", path)
    two.worker.remove("t2")
    assert two.create("t2").returncode == 0
