# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A task of more than a minute in control groups as in an unprivileged LXD container on cgroup v1.

It keeps its GPU through a pause and a restart of the worker, while another task wants it, and all
that reports leases is right.
"""

import json
import time

import pytest

from gpu_runtime import holder_usage as usage
from tests.lab import concourse, nested
from tests.lab.leases import Tasks, holders, waiting
from tests.lab.site import LOOK_SECONDS, READY

# After this long, in seconds, nothing counts as a start any more.
LONG = usage.STARTING + 5
# How far a receipt's times may be from the task's own, in seconds, on a loaded machine.
LATE = 10


@pytest.fixture(scope="module")
def nested_site(site, tmp_path_factory):
    """A worker with the release of `lab up --nested`; afterwards with its own again."""
    if why := nested.obstacle():
        pytest.skip(why)
    own, _ = concourse.choose(site.lab)
    path = nested.release(own, tmp_path_factory.mktemp("nested") / "nested.tgz")
    site.lab.model.attach_resource("worker", "concourse", path)
    site.await_status(READY[1])
    site.worker("lab-worker-0", 60)
    yield site
    site.lab.model.attach_resource("worker", "concourse", own)
    site.await_status(READY[1])
    site.worker("lab-worker-0", 60)


def uptime(site):
    return float(site.sh("cut -d' ' -f1 /proc/uptime"))


def act(site, name, **params):
    action = site.lab.model.run_action("worker/0", name, params)
    site.lab.settle()
    row = site.lab.store.row("SELECT * FROM action WHERE id = ?", action)
    assert row["status"] == "completed", dict(row)
    return row["results"]


def until_state(site, state):
    deadline = time.monotonic() + 150
    while (seen := [one["state"] for one in site.fly.workers()]) != [state]:
        assert time.monotonic() < deadline, seen
        time.sleep(LOOK_SECONDS)


def receipt(site, container):
    """The receipt of a container's lease; waits for it."""
    deadline = time.monotonic() + 60
    while True:
        lines = site.sh("cat /var/log/gpu-ci/receipts.log 2>&-; true").splitlines()
        if found := [one for one in map(json.loads, lines) if one["container"] == container]:
            assert len(found) == 1, found
            return found[0]
        assert time.monotonic() < deadline, lines
        time.sleep(0.5)


@pytest.fixture
def tasks(nested_site):
    tasks = Tasks(nested_site)
    yield tasks
    tasks.end()


def test_a_long_task_keeps_its_gpu_and_the_next_waits_for_its_end(nested_site, tasks):
    site = nested_site
    # All that the self-test proves of the wrapper, and its containers, holds with this runc too.
    assert site.status() == READY
    first = tasks.start("first", GPU_COUNT="1")
    begun, had = first.begun(), first.gpus()
    (container,) = [name for name, held in holders(site).items() if held["gpus"] == had]
    # This is the arrangement.
    groups = site.sh(f"cat /proc/{first.process()}/cgroup").splitlines()
    assert [line for line in groups if container in line] == [f"0::/garden/{container}"]
    first.build.line(r"\[gpu-ci\] GPU \d: ")

    act(site, "pause", reason="new fans")
    assert site.status()[1] == "Paused: new fans (1 step left)"
    until_state(site, "landing")
    act(site, "resume")
    until_state(site, "running")
    first.answer()
    site.sh("systemctl restart concourse-worker")
    first.answer()
    assert holders(site)[container]["gpus"] == had

    second = tasks.start("second", GPU_COUNT="2")
    assert [one["count"] for one in waiting(site, 1)] == [2]
    first.build.line(r"\[gpu-ci\] 1 min: GPU ", LONG)
    time.sleep(max(0.0, begun + LONG - uptime(site)))
    assert len(waiting(site, 1)) == 1
    assert f"container {container} (CI step)" in act(site, "gpu-leases")
    first.answer()

    ends = uptime(site)
    assert first.end() == 0, first.build.output
    assert second.begun() > ends
    assert second.cards() == [0, 1]
    assert second.end() == 0, second.build.output
    told = receipt(site, container)
    assert told["outcome"] == "ended"
    assert abs(told["held_s"] - (ends - begun)) < LATE, (told, ends - begun)
