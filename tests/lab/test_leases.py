# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Exclusive GPUs on the packed charm: who gets which, who waits where, and who is next."""

import pathlib
import re

import pytest
import yaml

from tests.lab import outfit
from tests.lab.builds import Build
from tests.lab.leases import Death, Tasks, cards, holders, waiting
from tests.lab.site import OPENS, PROBE

pytestmark = pytest.mark.usefixtures("untested")

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples/multi-gpu.yml"
# benchmarks/handover.py has the promise in seconds; else it would wait for 240 s.
NEXT_SECONDS = 30.0
QUEUED = "no suitable workers found, waiting for worker"


@pytest.fixture
def tasks(site):
    """Tasks that hold GPUs; none is left afterwards."""
    tasks = Tasks(site)
    yield tasks
    tasks.end()


def uuids(site):
    """The ids of the worker's GPUs, in index order."""
    return re.findall(r'"uuid": "(GPU-[^"]+)"', site.sh("cat /etc/gpu-ci/policy.json"))


def test_who_waits_on_the_worker_is_next_when_a_holder_is_aborted(site, tasks):
    # A child that outlives its step would keep the GPU open.
    first = tasks.start("first", "setsid sleep 4242 >/dev/null 2>&1 &")
    first.begun()
    # More than the scheduler knows of, so the wrapper lets it wait.
    second = tasks.start("second", GPU_COUNT="2")
    assert [waiter["count"] for waiter in waiting(site, 1)] == [2]
    death = Death(site, first.process())
    assert site.fly.run("abort-build", "-b", first.build.number).returncode == 0
    died = death.when()
    assert second.begun() - died <= NEXT_SECONDS
    assert second.gpus() == uuids(site)
    assert second.cards() == [0, 1]
    assert site.sh("pgrep -f 'sleep 424[2]'; true") == ""
    assert first.build.wait() != 0
    assert second.end() == 0


KILL = "kill -9 $(systemctl show -p MainPID --value concourse-worker)"


def test_a_restart_or_kill_of_the_worker_leaves_a_task_its_gpu_and_who_waits_tries_again(
    site, tasks
):
    first = tasks.start("first")
    had, before = first.gpus(), holders(site)
    config = {
        "platform": "linux",
        "rootfs_uri": f"raw://{outfit.ROOTFS}",
        "params": {"GPU_COUNT": "2"},
        "run": {"path": "sh", "args": ["-c", PROBE]},
    }
    step = {"task": "wait", "tags": ["gpu"], "attempts": 3, "config": config}
    build = Build(site.fly, *site.fly.job("wait", {"jobs": [{"name": "wait", "plan": [step]}]}))
    for end in ("systemctl restart concourse-worker", KILL):
        assert [waiter["count"] for waiter in waiting(site, 1)] == [2]
        site.sh(end)
        # Concourse does not find a step that ends while it is away.
        first.answer()
        assert holders(site) == before
    assert first.cards() == [uuids(site).index(had[0])]
    assert first.end() == 0, first.build.output
    assert build.wait() == 0, build.output
    assert cards(build.output) == [0, 1]


def test_without_its_policy_a_worker_refuses_tasks_in_words_until_the_next_hook(site):
    policy = "/etc/gpu-ci/policy.json"
    site.sh(f"rm {policy}")
    try:
        done = site.task("echo never-seen", params={})
        assert done.returncode == 2, done.stdout
        assert f"No such file or directory: '{policy}'" in done.stdout
        assert "gpu-ci-worker: policy-unreadable: " in done.stdout
        assert "\nnever-seen" not in done.stdout
        assert site.fly.get(["gpu"]).returncode == 0
    finally:
        site.lab.model.update_status("worker/0")
        site.lab.settle()
    assert cards(site.task(PROBE, params={"GPU_COUNT": "2"}).stdout) == [0, 1]


def test_shared_tasks_see_all_gpus_at_once(site, tasks):
    site.configure(gpu_allocation="shared")
    try:
        assert "MAX_ACTIVE_TASKS" not in site.sh("cat /etc/concourse/worker.env")
        site.tags()
        several = [tasks.start(name) for name in ("first", "second", "third")]
        for task in several:
            assert task.gpus() == uuids(site)
            assert task.cards() == [0, 1]
        assert [task.end() for task in several] == [0, 0, 0]
    finally:
        site.configure(gpu_allocation="exclusive")
    assert "MAX_ACTIVE_TASKS" in site.sh("cat /etc/concourse/worker.env")
    site.wait_for_tag("gpu-count=2")


def test_the_example_pipeline_gets_what_it_asks_for(site):
    done = site.fly.run("set-pipeline", "-n", "-p", "example", "-c", str(EXAMPLE))
    assert done.returncode == 0, done.stderr
    # Its image would have to come from a registry, and its tasks need PyTorch.
    (job,) = yaml.safe_load(EXAMPLE.read_text())["jobs"]
    plan = [step for step in job["plan"] if "task" in step]
    for step in plan:
        del step["image"]
        step["config"]["rootfs_uri"] = f"raw://{outfit.ROOTFS}"
        step["config"]["run"] = {"path": "sh", "args": ["-c", PROBE]}
    done = site.fly.run(*site.fly.job(job["name"], {"jobs": [{**job, "plan": plan}]}))
    assert done.returncode == 0, done.stdout
    # Each task prints its cards first, and then its count.
    without, _, rest = done.stdout.replace("\r", "").partition("\nGPU_COUNT=0\n")
    assert cards(without) == []
    both, count, _ = rest.partition("\nGPU_COUNT=2\n")
    assert count
    assert cards(both) == [0, 1]


OPEN_NODES = """
for n in /dev/kfd /dev/dri/*; do (: < $n) 2>&1 | sed "s|.*: |$n |"; done
"""


@pytest.fixture
def amd(site):
    """The worker with two AMD GPUs in the place of its own; those are back afterwards."""
    site.gpus("install", "--vendor", "amd", "--count", "2")
    assert site.status() == ("active", "Worker ready (GPU: 2x AMD, self-test passed)")
    site.wait_for_tag("gpu-type=amd")
    yield site
    site.gpus("install", "--count", "2")
    site.wait_for_tag("gpu-type=nvidia")


def test_a_task_that_is_not_roots_opens_the_nodes_of_its_amd_gpu(amd):
    task = amd.fly.task(["sh", "-c", f"id -u; {OPEN_NODES}"], ["gpu"], user="ci")
    done = amd.fly.run(*task)
    assert done.returncode == 0, done.stdout
    assert "1000" in done.stdout.replace("\r", "").splitlines()
    opened = re.findall(r"^(/dev/\S+) (.*?)\r?$", done.stdout, re.MULTILINE)
    assert len(opened) == 2
    assert {reason for _, reason in opened} == {OPENS}
    assert re.fullmatch(r"/dev/kfd /dev/dri/renderD\d+", " ".join(node for node, _ in opened))
