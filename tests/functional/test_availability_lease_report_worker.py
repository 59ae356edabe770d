# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-leases and gpu-release on a worker with the installed wrapper, real containerd and runc."""

import concurrent.futures
import json
import time

import pytest

from tests.functional.containerd_worker import NEEDS, UUIDS, worker_in_a_namespace
from tests.functional.lease_site import act

pytestmark = NEEDS


@pytest.fixture(scope="module")
def started():
    with worker_in_a_namespace() as worker:
        worker.charm(1)
        worker.start()
        yield worker


@pytest.fixture
def worker(started):
    yield started
    for handle in started.ctr("container", "list", "-q").stdout.split():
        started.remove(handle)


def wait_for(worker, key):
    for _ in range(100):
        found = act(worker, "report")
        if key in found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{key} never came: {found}")


def test_a_gpu_released_by_force_goes_to_the_one_that_waits(worker):
    assert worker.create(worker.spec("task", "t1")).returncode == 0
    with concurrent.futures.ThreadPoolExecutor() as pool:
        step = pool.submit(worker.exec, "t1", "sleep 500")
        for _ in range(100):
            if "(task, " in act(worker, "report")["gpu-1"]:
                break
            time.sleep(0.05)
        assert act(worker, "report")["gpu-1"].startswith(
            f"leased, A100-SXM4-80GB, {UUIDS[1]}, container t1 (task, "
        )
        waiting = pool.submit(worker.create, worker.spec("task", "t2"))
        said = wait_for(worker, "waiter-1")
        assert said["waiting"] == "1"
        assert said["waiter-1"].startswith("container t2, asks for 1, for ")
        began = time.monotonic()
        assert act(worker, "release", "1", "hangs", "force")["released"] == "container t1"
        assert step.result(30).returncode != 0
        assert waiting.result(30).returncode == 0
        # Else it would wait for its whole gpu-wait-timeout, 240 s.
        assert time.monotonic() - began < 60
    said = act(worker, "report")
    assert f"leased, A100-SXM4-80GB, {UUIDS[1]}, container t2 (starting, " in said["gpu-1"]
    assert said["waiting"] == "nobody"
    lines = worker.inside("cat", "/var/log/gpu-ci/oci.log").stdout.splitlines()
    assert any(json.loads(line)["reason"] == f"{UUIDS[1]}: hangs" for line in lines)


def test_a_cordoned_gpu_is_refused_with_its_reason(worker):
    reason = "in use outside CI: pid 4711 (python3)"
    assert act(worker, "cordon", UUIDS[1], reason) is True
    done = worker.create(worker.spec("task", "t1"))
    assert done.returncode != 0
    assert reason in done.stderr
    assert act(worker, "report")["gpu-1"].startswith(f"cordoned: {reason}, ")
    assert act(worker, "cordon") is True
    assert worker.create(worker.spec("task", "t2")).returncode == 0
