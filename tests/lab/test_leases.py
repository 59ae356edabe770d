# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Exclusive GPUs on the packed charm: who gets which, who waits where, and who is next."""

import pathlib
import re

import pytest
import yaml

from tests.lab import outfit
from tests.lab.builds import Build
from tests.lab.leases import Death, Tasks, cards, holders, journal, waiting
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


@pytest.fixture
def as_deployed(site):
    """The options on leases; as deployed afterwards."""
    yield site
    reset = ("gpu-allocation", "gpus-per-task", "gpu-wait-timeout")
    site.configure(reset=reset, enable_gpu="true")
    site.wait_for_tag("gpu-count=2")


def uuids(site):
    """The ids of the worker's GPUs, in index order."""
    return re.findall(r'"uuid": "(GPU-[^"]+)"', site.sh("cat /etc/gpu-ci/policy.json"))


def test_two_tasks_get_different_gpus_and_a_third_the_one_that_comes_free(site, tasks):
    first, second = tasks.start("first"), tasks.start("second")
    both = {tuple(task.gpus()): tuple(task.cards()) for task in (first, second)}
    one, other = uuids(site)
    assert both == {(one,): (0,), (other,): (1,)}
    third = tasks.start("third")
    third.build.line(QUEUED)
    assert waiting(site, 0) == []
    assert second.end() == 0
    assert third.gpus() == second.gpus()
    assert third.cards() == second.cards()
    assert third.begun() > second.begun()


@pytest.mark.parametrize("end", ["kill", "abort"])
def test_who_waits_on_the_worker_is_next_when_a_holder_dies(site, tasks, end):
    # A child that outlives its step would keep the GPU open.
    first = tasks.start("first", "setsid sleep 4242 >/dev/null 2>&1 &")
    first.begun()
    # More than the scheduler knows of, so the wrapper lets it wait.
    second = tasks.start("second", GPU_COUNT="2")
    assert [waiter["count"] for waiter in waiting(site, 1)] == [2]
    death = Death(site, first.process())
    if end == "kill":
        site.sh(f"kill -9 {first.process()}")
    else:
        assert site.fly.run("abort-build", "-b", first.build.number).returncode == 0
    died = death.when()
    assert second.begun() - died <= NEXT_SECONDS
    assert second.gpus() == uuids(site)
    assert second.cards() == [0, 1]
    assert site.sh("pgrep -f 'sleep 424[2]'; true") == ""
    assert first.build.wait() != 0
    assert second.end() == 0


KILL = "kill -9 $(systemctl show -p MainPID --value concourse-worker)"


@pytest.mark.parametrize(
    "end", ["systemctl restart concourse-worker", KILL], ids=["restart", "kill"]
)
def test_a_restart_of_the_worker_changes_nothing(site, tasks, end):
    first, second = tasks.start("first"), tasks.start("second")
    had = first.gpus(), second.gpus()
    before = holders(site)
    third = tasks.start("third")
    third.build.line(QUEUED)
    site.sh(end)
    # Concourse does not find a step that ends while it is away.
    for task in (first, second):
        task.answer()
    assert holders(site) == before
    assert first.end() == 0, first.build.output
    assert third.gpus() == had[0]
    assert (second.end(), third.end()) == (0, 0)


def test_who_waits_on_the_worker_when_that_restarts_gets_its_gpus_at_another_attempt(site, tasks):
    first = tasks.start("first")
    first.begun()
    config = {
        "platform": "linux",
        "rootfs_uri": f"raw://{outfit.ROOTFS}",
        "params": {"GPU_COUNT": "2"},
        "run": {"path": "sh", "args": ["-c", PROBE]},
    }
    step = {"task": "wait", "tags": ["gpu"], "attempts": 2, "config": config}
    build = Build(site.fly, *site.fly.job("wait", {"jobs": [{"name": "wait", "plan": [step]}]}))
    waiting(site, 1)
    site.sh("systemctl restart concourse-worker")
    first.answer()
    assert first.gpus() in [held["gpus"] for held in holders(site).values()]
    assert first.end() == 0, first.build.output
    assert build.wait() == 0, build.output
    assert cards(build.output) == [0, 1]


def test_a_hijack_gets_its_gpu_if_nobody_has_had_it_since(site, tasks):
    done = site.task(f"{PROBE}\nexit 3", params={"GPU_COUNT": "2"})
    number = re.findall(r"executing build (\d+)", done.stdout)[0]
    hijack = ("hijack", "-b", number, "-s", "one-off", "--", "sh", "-c", PROBE)
    status, output = site.fly.on_terminal(*hijack)
    assert status == 0, output
    assert f"nvidia0 {OPENS}" in output
    assert f"NVIDIA_VISIBLE_DEVICES={','.join(uuids(site))}" in output
    holder = tasks.start("holder")
    holder.begun()
    status, output = site.fly.on_terminal(*hijack)
    assert status == 255, output
    # Its container ended as a whole when its GPU went on, and these are containerd's words.
    assert "cannot exec in a stopped state" in output


@pytest.mark.parametrize(("count", "got"), [("0", []), ("2", [0, 1]), ("all", [0, 1])])
def test_a_task_gets_as_many_as_it_asks_for(site, count, got):
    done = site.task(PROBE, params={"GPU_COUNT": count})
    assert done.returncode == 0, done.stdout
    assert f"GPU_COUNT={len(got)}\n" in done.stdout.replace("\r", "")
    assert cards(done.stdout) == got


@pytest.mark.parametrize(
    ("count", "said"),
    [
        ("3", "gpu-ci-worker: too-few-gpus: "),
        ("two", "gpu-ci-worker: gpu-count-invalid: "),
    ],
)
def test_a_count_that_cannot_be_fails_at_once_in_words(site, count, said):
    done = site.task("echo never-seen", params={"GPU_COUNT": count})
    assert done.returncode == 2
    assert said in done.stdout
    assert "\nnever-seen" not in done.stdout
    assert journal(site)[-1]["waited_ms"] == 0


def test_switching_gpus_off_and_on_again_leaves_a_running_job_its_gpu(as_deployed, tasks):
    site = as_deployed
    first = tasks.start("first")
    had = first.gpus()
    held = {name: held for name, held in holders(site).items() if held["gpus"] == had}
    site.configure(enable_gpu="false")
    assert site.status() == ("active", outfit.IDLE)
    first.answer()
    site.configure(enable_gpu="true")
    site.wait_for_tag("gpu-count=2")
    assert held.items() <= holders(site).items()
    both = tasks.start("both", GPU_COUNT="2")
    assert [waiter["count"] for waiter in waiting(site, 1)] == [2]
    first.answer()
    assert first.cards() == [uuids(site).index(had[0])]
    assert first.end() == 0, first.build.output
    assert both.cards() == [0, 1]
    assert both.end() == 0


def test_without_its_policy_a_worker_refuses_tasks_in_words_until_the_next_hook(site):
    policy = "/etc/gpu-ci/policy.json"
    site.sh(f"rm {policy}")
    try:
        for params in ({"GPU_COUNT": "1"}, {}):
            done = site.task("echo never-seen", params=params)
            assert done.returncode == 2, done.stdout
            assert f"No such file or directory: '{policy}'" in done.stdout
            assert "gpu-ci-worker: policy-unreadable: " in done.stdout
            assert "\nnever-seen" not in done.stdout
        assert site.fly.get(["gpu"]).returncode == 0
    finally:
        site.lab.model.update_status("worker/0")
        site.lab.settle()
    assert cards(site.task(PROBE, params={"GPU_COUNT": "2"}).stdout) == [0, 1]


def test_without_a_limit_tasks_wait_in_the_wrapper_and_not_for_ever(as_deployed, tasks):
    site = as_deployed
    site.configure(gpus_per_task="0", gpu_wait_timeout="2s")
    assert "MAX_ACTIVE_TASKS" not in site.sh("cat /etc/concourse/worker.env")
    site.tags()
    assert cards(site.task(PROBE, params={}).stdout) == []
    first, second = tasks.start("first", GPU_COUNT="1"), tasks.start("second", GPU_COUNT="1")
    had = first.gpus() + second.gpus()
    assert sorted(had) == sorted(uuids(site))
    refused = site.task("true", params={"GPU_COUNT": "1"})
    assert refused.returncode == 2
    for container in holders(site):
        assert container in refused.stdout
    assert 2000 <= journal(site)[-1]["waited_ms"] < 4000
    third = tasks.start("third", GPU_COUNT="1")
    waiting(site, 1)
    assert second.end() == 0
    assert third.gpus() == had[1:]


def test_shared_tasks_see_all_gpus_at_once(as_deployed, tasks):
    site = as_deployed
    site.configure(gpu_allocation="shared")
    assert "MAX_ACTIVE_TASKS" not in site.sh("cat /etc/concourse/worker.env")
    site.tags()
    several = [tasks.start(name) for name in ("first", "second", "third")]
    for task in several:
        assert task.gpus() == uuids(site)
        assert task.cards() == [0, 1]
    assert [task.end() for task in several] == [0, 0, 0]


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
    assert re.findall(r"^GPU_COUNT=(\d+)", done.stdout, re.MULTILINE) == ["0", "2"]
    assert f"nvidia1 {OPENS}" in done.stdout.replace("\r", "").splitlines()


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


def test_a_task_opens_the_nodes_of_its_amd_gpu_whoever_it_runs_as(amd):
    site = amd
    for user, uid in (("", 0), ("ci", 1000)):
        task = site.fly.task(["sh", "-c", f"id -u; {OPEN_NODES}"], ["gpu"], user=user)
        done = site.fly.run(*task)
        assert done.returncode == 0, done.stdout
        assert str(uid) in done.stdout.replace("\r", "").splitlines()
        opened = re.findall(r"^(/dev/\S+) (.*?)\r?$", done.stdout, re.MULTILINE)
        assert len(opened) == 2
        assert {reason for _, reason in opened} == {OPENS}
        assert re.fullmatch(r"/dev/kfd /dev/dri/renderD\d+", " ".join(node for node, _ in opened))
