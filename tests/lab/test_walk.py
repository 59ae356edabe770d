# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The main job, on the packed charm: which GPUs a CI step sees, whatever happens around it."""

import json

import pytest

from tests.lab import outfit
from tests.lab.site import ALL, OPENS, PROBE, READY

pytestmark = pytest.mark.usefixtures("untested")


@pytest.fixture
def as_deployed(site):
    """Two GPUs, all of them allowed; the same again afterwards."""
    yield site
    site.configure(gpu_device_ids="all")
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


MAKE_IMAGE = """
mkdir -p image/rootfs/tmp image/rootfs/etc; cd image
cp -a /bin rootfs/
echo 'x:x:1000:1000::/:/bin/sh' > rootfs/etc/passwd
echo "$METADATA" > metadata.json
"""


def run_image_that_asks_for_all(site):
    """What a task of such an image prints, which runs as the image's own user."""
    asks = ["NVIDIA_VISIBLE_DEVICES=all", "CUDA_VERSION=12.4", "CUDA_VISIBLE_DEVICES=-1"]
    make = {
        "platform": "linux",
        "rootfs_uri": "raw:///srv/lab/rootfs",
        "params": {"METADATA": json.dumps({"env": ["PATH=/bin", *asks], "user": "x"})},
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


# A file in the root that all tasks have.
GO = "/tmp/go-walk"
UNTIL_GO = f"until [ -e {GO} ]; do sleep 0.1; done"


def ended(site, running):
    """Let a task go on that waits for GO; what it prints until its end."""
    site.sh(f"touch {outfit.ROOTFS}{GO}")
    output, _ = running.communicate(timeout=90)
    site.sh(f"rm {outfit.ROOTFS}{GO}")
    assert running.returncode == 0, output
    return output


def test_chosen_gpus_are_the_next_tasks(as_deployed):
    """A wrong choice first, then one under a task that has both."""
    site = as_deployed
    site.configure(gpu_device_ids="7")
    kind, message = site.status()
    assert kind == "blocked"
    assert "gpu-device-ids: no GPU 7 on this machine, which has GPU 0, 1" in message
    running = site.start_task(f"{UNTIL_GO}\n{PROBE}", params=ALL)

    site.configure(gpu_device_ids="1")
    tags = site.wait_for_tag("gpu-count=1")
    assert tags[:4] == ["gpu", "gpu-type=nvidia", "gpu-count=1", "gpu-devices=1"]
    assert f"nvidia0 {OPENS}" in ended(site, running)
    output = run_image_that_asks_for_all(site)
    assert "uid 1000" in output
    assert "nvidia0 absent" in output
    assert f"nvidia1 {OPENS}" in output
    said = variables(output)
    assert said["GPU_COUNT"] == "1"
    assert said["NVIDIA_VISIBLE_DEVICES"].startswith("GPU-")
    assert "," not in said["NVIDIA_VISIBLE_DEVICES"]
    assert "CUDA_VISIBLE_DEVICES" not in said


def test_a_card_that_goes_is_noticed_at_once_and_a_driver_that_goes_blocks_and_jobs_go_on(
    as_deployed,
):
    site = as_deployed
    outfit.fakegpu(site.machine(), "lose", "0", "--taken-away")
    try:
        # No event but what the machine asks for.
        site.await_status("Worker ready (GPU: 1x NVIDIA, self-test passed)")
        site.wait_for_tag("gpu-count=1")
        done = site.task(PROBE)
        assert "nvidia0 absent" in done.stdout
        assert f"nvidia1 {OPENS}" in done.stdout
        running = site.start_task(f"{UNTIL_GO}; echo finished")
        site.gpus("driver", "gone")
        kind, message = site.status()
        assert (kind, "no compute driver" in message) == ("blocked", True), message
        # Concourse sends no task that asks for a GPU; one with the remaining tag gets the reason.
        assert site.wait_for_tag("gpu-unusable") == ["gpu-unusable"]
        refused = site.task("echo never-seen", "gpu-unusable")
        assert refused.returncode != 0
        assert "gpu-ci-worker: too-few-gpus: " in refused.stdout
        assert "no compute driver" in refused.stdout
        assert "finished" in ended(site, running)
    finally:
        outfit.fakegpu(site.machine(), "driver", "loaded")
        site.gpus("restore", "0")
    site.await_status(READY[1])
    site.wait_for_tag("gpu-count=2")
