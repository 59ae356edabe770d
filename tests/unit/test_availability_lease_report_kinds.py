# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What is said and done about leases of engines' containers and of jobs."""

import pytest

from gpu_agent.availability import lease_report as leases
from gpu_runtime import proc
from gpu_runtime.lease_table import CONTAINER, JOB
from tests.unit.test_availability_lease_report import TASK, Worker

TRAIN, UNIT = "4f0c" * 16, "gpu-run-1a2b3c4d5e6f.scope"
ALICE = "gpu-run of alice: python train.py"


@pytest.fixture
def worker(tmp_path, monkeypatch):
    return Worker(tmp_path, monkeypatch)


def hold_train(worker, gpu="GPU-0"):
    worker.hold(TRAIN, gpu, steps=(), kind=CONTAINER, who='docker container "train"', age=720)


def hold_job(worker, gpu="GPU-1"):
    worker.hold(
        UNIT, gpu, steps=("x",), kind=JOB, who=ALICE, age=90, cgroup=f"/garden/{UNIT}", bundle=""
    )


def test_each_is_told_in_its_engines_words(worker):
    hold_train(worker)
    hold_job(worker)
    worker.wait("w", 1, 40)
    with worker.store as table:
        table.waiters[0].who, table.waiters[0].named = "podman container 4f0c4f0c4f0c", ["GPU-1"]
    found = worker.report()
    first, holder, since = found["gpu-0"].splitlines()
    assert first == "leased, A100-SXM4-80GB, GPU-0"
    assert holder == '  held by docker container "train" (engine container)'
    assert since.endswith(" UTC (12 min)")
    assert f"\n  held by {ALICE} (gpu-run command)\n" in found["gpu-1"]
    assert found["queue-1"].startswith("podman container 4f0c4f0c4f0c, requests GPU-1, waiting 40")
    told = worker.read_json()
    assert {name: each["kind"] for name, each in told["containers"].items()} == {
        TRAIN: "container",
        UNIT: "job",
    }
    assert told["queue"][0]["named"] == ["GPU-1"]


def test_one_that_has_ended_says_so(worker):
    hold_train(worker)
    for pid in worker.root.glob("proc/[0-9]*"):
        (pid / "stat").unlink()
    assert worker.report()["gpu-0"].endswith(" UTC (12 min), no longer used")


def test_a_container_without_a_name_and_a_job_without_words_are_told_by_their_ids(worker):
    worker.hold(TRAIN, "GPU-0", steps=(), kind=CONTAINER)
    assert f"held by container {TRAIN} (engine container)" in " ".join(
        worker.report()["gpu-0"].split()
    )


@pytest.mark.parametrize("kind", [CONTAINER, JOB])
def test_a_gpu_is_taken_back_from_each(worker, kind):
    hold, who, name = {
        CONTAINER: (hold_train, 'docker container "train"', TRAIN),
        JOB: (hold_job, ALICE, UNIT),
    }[kind]
    hold(worker, "GPU-1")
    with pytest.raises(leases.LeaseError) as caught:
        leases.reclaim("1", "it hangs", force=False)
    assert f"GPU 1 is in use by {who} (" in str(caught.value)
    assert "wait, end it, or use force=true" in str(caught.value)
    assert leases.reclaim("1", "it hangs", force=True)["was"] == f"held by {who}"
    assert not proc.read(f"{worker.root}/cg/garden/{name}/cgroup.procs").split()
    assert leases.holders() == {}


def test_a_build_is_one_thing_among_others_that_can_be_ended(worker):
    worker.hold(TASK, "GPU-1", age=200)
    with pytest.raises(leases.LeaseError, match="wait, abort the build, or use"):
        leases.reclaim("1", "hangs", force=False)
