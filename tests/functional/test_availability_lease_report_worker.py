# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-leases and gpu-reclaim on a worker with the installed wrapper, real containerd and runc."""

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


def test_a_gpu_reclaimed_by_force_goes_to_the_one_that_waits(worker):
    assert worker.create(worker.spec("task", "t1")).returncode == 0
    with concurrent.futures.ThreadPoolExecutor() as pool:
        step = pool.submit(worker.exec, "t1", "sleep 500")
        for _ in range(100):
            if act(worker, "report")["gpu-1"].endswith("runs: task"):
                break
            time.sleep(0.05)
        assert act(worker, "report")["gpu-1"].startswith(
            f"leased, A100-SXM4-80GB, {UUIDS[1]}\n  held by container t1 (CI step)\n"
        )
        waiting = pool.submit(worker.create, worker.spec("task", "t2"))
        said = wait_for(worker, "queue-1")
        assert said["queue"] == "1 request"
        assert said["queue-1"].startswith("container t2, requests 1 GPU, waiting ")
        began = time.monotonic()
        assert act(worker, "reclaim", "1", "hangs", "force")["was"] == "held by container t1"
        assert step.result(30).returncode != 0
        assert waiting.result(30).returncode == 0
        # Else it would wait for its whole gpu-wait-timeout, 4 minutes.
        assert time.monotonic() - began < 60
    said = act(worker, "report")
    assert f"{UUIDS[1]}\n  held by container t2 (CI step)\n" in said["gpu-1"]
    assert said["gpu-1"].endswith(", starting")
    assert said["queue"] == "empty"
    lines = worker.inside("cat", "/var/log/gpu-ci/oci.log").stdout.splitlines()
    assert any(json.loads(line)["reason"] == f"{UUIDS[1]}: hangs" for line in lines)


def test_a_gpu_in_use_outside_ci_is_refused_with_its_reason(worker):
    reason = "pid 4711 (python3)"
    assert act(worker, "external", UUIDS[1], reason) is True
    done = worker.create(worker.spec("task", "t1"))
    assert done.returncode != 0
    assert reason in done.stderr
    assert act(worker, "report")["gpu-1"].startswith(f"in use outside CI: {reason}, ")
    assert act(worker, "external") is True
    assert worker.create(worker.spec("task", "t2")).returncode == 0
