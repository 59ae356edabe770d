# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The installed wrapper under real containerd and runc, with containers of Concourse's shape.

Opening the node of a fake GPU tells what a container may do: ENXIO where it was given and the
device cgroup allows it. The NVIDIA runtime is the real one where GPUCI_NVIDIA_RUNTIME names it.
"""

import json

import pytest

from tests.fakes import DRIVER_VERSION
from tests.functional.containerd_worker import (
    GIVEN_RUNTIME,
    NEEDS,
    NODES,
    UUIDS,
    worker_in_a_namespace,
)

GIVEN, ABSENT = "No such device or address", "No such file or directory"
ONLY_1 = {"nvidia0": ABSENT, "nvidia1": GIVEN, "nvidiactl": GIVEN, "nvidia-uvm": GIVEN}
NONE = dict.fromkeys(NODES, ABSENT)

pytestmark = NEEDS


@pytest.fixture(scope="module")
def started():
    with worker_in_a_namespace() as worker:
        worker.charm(1)
        worker.start()
        yield worker


@pytest.fixture
def worker(started):
    started.charm(1)
    yield started
    for handle in started.ctr("container", "list", "-q").stdout.split():
        started.remove(handle)


def variables(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_a_task_gets_the_allowed_gpu_alone(worker):
    done = worker.create(worker.spec("task", "t1"))
    assert done.returncode == 0, done.stderr
    assert worker.sees("t1") == ONLY_1
    env = variables(worker.exec("t1", "env").stdout)
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["GPU_COUNT"]) == (UUIDS[1], "1")
    assert json.loads(env["GPU_CI_DEVICES"]) == [
        {"index": 1, "uuid": UUIDS[1], "model": "NVIDIA A100-SXM4-80GB"}
    ]
    assert env["MY_PARAM"] == "v"


@pytest.mark.skipif(not GIVEN_RUNTIME, reason="the stand-in runtime mounts no driver libraries")
def test_the_real_runtime_brings_the_drivers_libraries(worker):
    worker.create(worker.spec("task", "t1"))
    destinations = [mount["destination"] for mount in worker.bundle("t1")["mounts"]]
    assert any("libcuda.so." in destination for destination in destinations)


@pytest.mark.parametrize("name", ["get", "put", "check"])
def test_other_steps_see_none_and_keep_their_bundle(worker, name):
    spec = worker.spec(name, "g1", "CUDA_VERSION=12.4", "NVIDIA_VISIBLE_DEVICES=all")
    done = worker.create(spec)
    assert done.returncode == 0, done.stderr
    assert worker.sees("g1") == NONE
    assert worker.bundle("g1")["process"]["env"] == spec["process"]["env"]
    assert "NVIDIA_VISIBLE_DEVICES=all" in worker.exec("g1", "env").stdout.splitlines()


def test_the_text_of_a_bundle_that_is_no_task_stays(worker):
    """Compared with the text that containerd wrote, which a container of the same spec shows."""
    texts = []
    for installed in (True, False):
        if not installed:
            worker.charm()
        worker.create(worker.spec("get", "g1"))
        folder = worker.folder / "state" / "io.containerd.runtime.v2.task" / "concourse" / "g1"
        texts.append((folder / "config.json").read_bytes())
        worker.remove("g1")
    assert texts[0] == texts[1]


@pytest.mark.parametrize("user", ["0", "1000"])
def test_an_image_that_asks_for_all_gets_the_allowed_one(worker, user):
    image = ["NVIDIA_VISIBLE_DEVICES=all", "CUDA_VERSION=12", "CUDA_VISIBLE_DEVICES=-1"]
    done = worker.create(worker.spec("task", "t1", *image))
    assert done.returncode == 0, done.stderr
    assert worker.sees("t1", "--user", user) == ONLY_1
    lines = worker.exec("t1", "id -u; env", "--user", user).stdout.splitlines()
    assert lines[0] == user
    shown = [line for line in lines if line.startswith(("NVIDIA_VIS", "CUDA_VIS"))]
    assert shown == [f"NVIDIA_VISIBLE_DEVICES={UUIDS[1]}"]


def test_pid_1_gets_the_users_variables_but_no_loader(worker):
    spec = worker.spec("task", "t1")
    spec["process"]["env"] += ["LD_PRELOAD=/tmp/evil.so", "MINE=1"]
    assert worker.create(spec).returncode == 0
    env = worker.exec("t1", "tr '\\0' '\\n' </proc/1/environ").stdout.splitlines()
    assert "MINE=1" in env
    assert not any(line.startswith("LD_PRELOAD") for line in env)
    assert "LD_PRELOAD=/tmp/evil.so" in worker.exec("t1", "env").stdout.splitlines()


def test_signals_are_as_they_are_without_the_wrapper(worker):
    line = "cat /proc/1/status /proc/self/status"
    worker.create(worker.spec("task", "t1"))
    worker.create(worker.spec("get", "g1"))
    task, get = (
        [line for line in worker.exec(handle, line).stdout.splitlines() if "SigIgn" in line]
        for handle in ("t1", "g1")
    )
    assert task == get
    assert len(task) == 2


def test_a_privileged_task_sees_none_and_is_told(worker):
    done = worker.create(worker.spec("task-privileged", "p1"))
    assert done.returncode == 0, done.stderr
    assert worker.sees("p1") == NONE
    env = variables(worker.exec("p1", "env").stdout)
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["GPU_COUNT"]) == ("void", "0")


def test_a_refusal_reaches_the_caller_in_words(worker):
    worker.charm(1, runtime="/nowhere/nvidia-container-runtime")
    done = worker.create(worker.spec("task", "t1"))
    assert done.returncode != 0
    said = "OCI runtime create failed: gpu-ci-worker: runtime-missing: /nowhere/nvidia-container-"
    assert said in done.stderr
    assert worker.create(worker.spec("get", "g1")).returncode == 0


def test_an_image_that_needs_a_newer_cuda_is_refused_unless_that_is_switched_off(worker):
    """NVIDIA's runtime itself would start it: in the mode jit-cdi it looks at none of that."""
    worker.charm(1, driver=DRIVER_VERSION, cuda="13.0")
    image = ["NVIDIA_REQUIRE_CUDA=cuda>=13.1", "CUDA_VERSION=13.1.0"]
    done = worker.create(worker.spec("task", "t1", *image))
    assert done.returncode != 0
    assert "gpu-ci-worker: requirement-unmet: " in done.stderr
    assert f"this worker has CUDA 13.0, NVIDIA's driver {DRIVER_VERSION}. " in done.stderr
    done = worker.create(worker.spec("task", "t2", *image, "NVIDIA_DISABLE_REQUIRE=1"))
    assert done.returncode == 0, done.stderr
    assert worker.sees("t2") == ONLY_1


def test_other_gpus_are_for_the_next_container(worker):
    worker.create(worker.spec("task", "t1"))
    worker.charm(0)
    worker.create(worker.spec("task", "t2"))
    lines = worker.exec("t1", "cat /dev/nvidia1 2>&1; env").stdout.splitlines()
    assert lines[0].endswith(GIVEN)
    assert f"NVIDIA_VISIBLE_DEVICES={UUIDS[1]}" in lines
    assert worker.sees("t2") == {**ONLY_1, "nvidia0": GIVEN, "nvidia1": ABSENT}
    done = worker.exec("t1", "true")
    assert f"gpu-ci-worker: gpu-withdrawn: GPU {UUIDS[1]} is " in done.stderr


def test_shared_gpus_are_for_all(worker):
    worker.charm(0, 1, allocation="shared")
    for handle in ("t1", "t2"):
        worker.create(worker.spec("task", handle))
        assert worker.sees(handle) == {**ONLY_1, "nvidia0": GIVEN}
        env = variables(worker.exec(handle, "env").stdout)
        assert (env["NVIDIA_VISIBLE_DEVICES"], env["GPU_COUNT"]) == (",".join(UUIDS), "2")


def test_an_id_can_be_used_again(worker):
    for _ in range(2):
        assert worker.create(worker.spec("task", "t1")).returncode == 0
        assert worker.sees("t1") == ONLY_1
        worker.remove("t1")
    worker.create(worker.spec("task", "t2"))
    assert worker.inside("ls", "/run/gpu-ci/leases/containers").stdout.split() == ["t2.json"]


def test_a_process_leaves_with_its_own_words_only(worker):
    worker.create(worker.spec("task", "t1"))
    done = worker.exec("t1", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 7)


def test_by_the_name_runc_the_nvidia_runtime_finds_no_way_back(worker):
    worker.create(worker.spec("task", "t1"))
    config = worker.inside("cat", "/etc/gpu-ci/nvidia-container-runtime/config.toml").stdout
    assert 'runtimes = ["/opt/concourse/current/bin/runc"]' in config
    assert worker.inside("/usr/local/bin/runc-gpu-wrapper", "--version").stdout.startswith("runc ")


def test_after_a_removal_the_next_container_finds_the_real_runc(worker):
    worker.create(worker.spec("task", "t1"))
    assert worker.charm() == "True"
    worker.create(worker.spec("task", "t2"))
    assert worker.sees("t1") == ONLY_1
    assert worker.sees("t2") == NONE
