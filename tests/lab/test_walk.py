# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The main job, on the packed charm: which GPUs a CI step sees, whatever happens around it."""

import json

import pytest

from tests.lab import outfit, walk
from tests.lab.site import ALL, OPENS, PROBE, READY

pytestmark = pytest.mark.usefixtures("untested")


@pytest.fixture
def as_deployed(site):
    """Two GPUs, enabled, all of them allowed; the same again afterwards."""
    yield site
    site.configure(reset=("gpu-device-ids", "extra-tags"), enable_gpu="true")
    site.wait_for_tag("gpu-count=2")
    assert site.status() == READY


def variables(output):
    return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)


def test_units_are_ready_and_a_task_sees_both_gpus(site):
    assert site.status("web/0") == ("active", "Web ready")
    assert site.status() == READY
    done = site.task(PROBE)
    assert done.returncode == 0, done.stdout
    assert f"nvidia0 {OPENS}" in done.stdout
    assert f"nvidia1 {OPENS}" in done.stdout
    said = variables(done.stdout)
    assert said["GPU_COUNT"] == "2"
    assert len(set(said["NVIDIA_VISIBLE_DEVICES"].split(","))) == 2


def test_a_get_on_the_same_worker_sees_none(site):
    done = site.fly.get(["gpu"])
    assert done.returncode == 0, done.stdout
    seen = walk.look_at_get(site.machine())
    assert seen == {"devices": [], "variables": []}


def test_choosing_a_gpu_concerns_the_next_task_alone(as_deployed):
    site = as_deployed
    running = site.start_task(f"sleep 6\n{PROBE}", params=ALL)
    site.configure(gpu_device_ids="1")
    tags = site.wait_for_tag("gpu-count=1")
    assert tags[:4] == ["gpu", "gpu-type=nvidia", "gpu-count=1", "gpu-devices=1"]
    done = site.task(PROBE)
    assert "nvidia0 absent" in done.stdout
    assert f"nvidia1 {OPENS}" in done.stdout
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 0, output
    assert f"nvidia0 {OPENS}" in output


def test_an_id_that_is_not_there_blocks_and_jobs_go_on(as_deployed):
    site = as_deployed
    site.configure(gpu_device_ids="7")
    kind, message = site.status()
    assert kind == "blocked"
    assert "gpu-device-ids: no GPU 7 on this machine, which has GPU 0, 1" in message
    done = site.task(PROBE)
    assert f"nvidia0 {OPENS}" in done.stdout


MAKE_IMAGE = """
mkdir -p image/rootfs/tmp image/rootfs/etc; cd image
cp -a /bin rootfs/
echo 'x:x:1000:1000::/:/bin/sh' > rootfs/etc/passwd
echo "$METADATA" > metadata.json
"""


def run_image_that_asks_for_all(site, user):
    """What a task of such an image prints, which runs as that user."""
    asks = ["NVIDIA_VISIBLE_DEVICES=all", "CUDA_VERSION=12.4", "CUDA_VISIBLE_DEVICES=-1"]
    make = {
        "platform": "linux",
        "rootfs_uri": "raw:///srv/lab/rootfs",
        "params": {"METADATA": json.dumps({"env": ["PATH=/bin", *asks], "user": user})},
        "outputs": [{"name": "image"}],
        "run": {"path": "sh", "args": ["-ec", MAKE_IMAGE]},
    }
    ask = {"platform": "linux", "run": {"path": "sh", "args": ["-c", PROBE]}}
    steps = [
        {"task": "make-image", "tags": ["gpu"], "config": make},
        {"task": "ask-for-all", "tags": ["gpu"], "image": "image", "config": ask},
    ]
    done = site.fly.run(*site.fly.job("ask", {"jobs": [{"name": "ask", "plan": steps}]}))
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_an_image_that_asks_for_all_gets_what_is_allowed(as_deployed):
    site = as_deployed
    site.configure(gpu_device_ids="1")
    site.wait_for_tag("gpu-count=1")
    for user, uid in (("", "0"), ("x", "1000")):
        output = run_image_that_asks_for_all(site, user)
        assert f"uid {uid}" in output
        assert "nvidia0 absent" in output
        assert f"nvidia1 {OPENS}" in output
        said = variables(output)
        assert said["GPU_COUNT"] == "1"
        assert said["NVIDIA_VISIBLE_DEVICES"].startswith("GPU-")
        assert "," not in said["NVIDIA_VISIBLE_DEVICES"]
        assert "CUDA_VISIBLE_DEVICES" not in said


def test_disabling_takes_wrapper_and_tags_away(as_deployed):
    site = as_deployed
    site.configure(enable_gpu="false", extra_tags="gpu-less")
    assert site.status() == ("active", outfit.IDLE)
    assert site.sh("ls /opt/gpu-ci /etc/gpu-ci /usr/local/bin/runc-gpu-wrapper 2>&-; true") == ""
    logs = site.sh("ls /var/log/gpu-ci 2>&-; true").split()
    assert {*logs} <= {"receipts.log"}, "usage is kept as long as the unit exists"
    assert "CONTAINERD_BIN" not in site.sh("cat /etc/concourse/worker.env")
    assert site.wait_for_tag("gpu-less") == ["gpu-less"]
    done = site.task(PROBE, "gpu-less")
    assert done.returncode == 0, done.stdout
    assert "nvidia0 absent" in done.stdout
    assert "nvidia1 absent" in done.stdout


def test_a_lost_gpu_changes_tags_and_status(as_deployed):
    site = as_deployed
    site.gpus("lose", "0")
    try:
        assert site.status()[1].startswith("Worker ready (GPU: 1x NVIDIA")
        site.wait_for_tag("gpu-count=1")
        done = site.task(PROBE)
        assert "nvidia0 absent" in done.stdout
        assert f"nvidia1 {OPENS}" in done.stdout
    finally:
        site.gpus("restore", "0")
    site.wait_for_tag("gpu-count=2")


def test_a_card_that_goes_or_comes_is_noticed_before_an_update_status(as_deployed):
    site = as_deployed
    fakegpu = site.machine().run
    fakegpu(["/usr/local/lib/fake-gpu/fakegpu", "lose", "0", "--taken-away"])
    try:
        site.await_status("Worker ready (GPU: 1x NVIDIA, self-test passed)")
        site.wait_for_tag("gpu-count=1")
    finally:
        fakegpu(["/usr/local/lib/fake-gpu/fakegpu", "restore", "0"])
    site.await_status(READY[1])
    site.wait_for_tag("gpu-count=2")


def test_an_index_keeps_its_card_when_another_is_lost(as_deployed):
    site = as_deployed
    site.configure(gpu_device_ids="1")
    site.gpus("lose", "0")
    try:
        assert site.status() == ("active", "Worker ready (GPU: 1x NVIDIA, self-test passed)")
        assert f"nvidia1 {OPENS}" in site.task(PROBE).stdout
    finally:
        site.gpus("restore", "0")
    site.gpus("lose", "1")
    try:
        kind, message = site.status()
        assert kind == "blocked"
        assert "No GPU of gpu-device-ids is on this machine any more" in message
    finally:
        site.gpus("restore", "1")


@pytest.mark.parametrize(
    ("fault", "repair", "said"),
    [
        (("driver", "gone"), ("driver", "loaded"), "no compute driver"),
        (("nvml-fault", "18"), ("nvml-fault", "none"), "libnvidia-ml.so.1 differ"),
        (("nvml-fault", "999"), ("nvml-fault", "none"), "NVML failed"),
    ],
)
def test_a_failing_driver_blocks_with_the_remedy_and_jobs_go_on(as_deployed, fault, repair, said):
    site = as_deployed
    running = site.start_task("sleep 3; echo finished")
    site.gpus(*fault)
    try:
        kind, message = site.status()
        assert (kind, said in message) == ("blocked", True), message
        # Concourse sends no task that asks for a GPU; one with the remaining tag gets the reason.
        assert site.wait_for_tag("gpu-unusable") == ["gpu-unusable"]
        refused = site.task("echo never-seen", "gpu-unusable")
        assert refused.returncode != 0
        assert "gpu-ci-worker: too-few-gpus: " in refused.stdout
        assert said in refused.stdout
        output, _ = running.communicate(timeout=60)
        assert "finished" in output
    finally:
        site.gpus(*repair)


def test_inventory_action_lists_the_cards(site):
    action = site.lab.model.run_action("worker/0", "gpu-inventory", {})
    site.lab.settle()
    row = site.lab.store.row("SELECT * FROM action WHERE id = ?", action)
    assert row["status"] == "completed"
    results = json.loads(row["results"])
    assert results["count"] == "2"
    assert results["gpu-1"].startswith("NVIDIA A100-SXM4-80GB, 81920 MiB\n  GPU-")
