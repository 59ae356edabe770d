# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The packed charm on a real Juju model, in the order of the tests: each goes on from the last.

The same walk as tests/lab/test_walk.py and test_lifecycle.py, on machines that Juju has.
"""

import json
import os
import re
import shlex

import jubilant
import pytest

from tests.fly import SHOW_GPUS
from tests.integration.site import DEPLOY_SECONDS
from tests.lab.builds import Build
from tests.lab.walk import LOOK_AT_GET

READY = "Worker ready (GPU: "
# Of Concourse's containers (worker/runtime/cni_network.go).
BRIDGE = "10.80.0.1"


@pytest.fixture
def gpus(site) -> int:
    """How many GPUs tasks can have; a test that wants one is skipped where there is none."""
    found = site.act("worker/0", "gpu-inventory")
    if found["state"] != "ready":
        pytest.skip(f"no GPU on worker/0's machine: {site.status('worker/0')[1]}")
    return int(found["count"])


def seen(output: str) -> list[str]:
    """The GPUs that a task has shown."""
    found = re.search(r"variable NVIDIA_VISIBLE_DEVICES=(\S+)", output)
    return found[1].split(",") if found else []


def test_web_and_worker_become_ready(site):
    """Arrange: an empty model. Act: the README's commands. Assert: ready, or the remedy."""
    site.deploy("web", "web", deployment_mode="web")
    site.deploy("worker", "worker", deployment_mode="worker", enable_gpu=True)
    database = os.environ.get("GPUCI_POSTGRESQL")
    if database:
        site.juju.deploy(os.path.abspath(database), "postgresql", to=site.machines.get("web"))
    else:
        site.juju.deploy("postgresql", channel="14/stable")
    site.juju.integrate("web:postgresql", "postgresql:database")
    site.juju.integrate("web:web-tsa", "worker:worker-tsa")
    site.active("web/0", "Web ready", DEPLOY_SECONDS)
    site.worker_ready("worker/0")
    site.login("web/0")
    site.wait_for_tags()


def test_actions_answer(site):
    """Arrange: web and worker. Act: actions. Assert: results, and Juju's own refusals."""
    assert "state" in site.act("worker/0", "gpu-inventory")
    admin = site.act("web/0", "get-admin-password")
    assert admin["username"]
    assert admin["password"]
    with pytest.raises(jubilant.TaskError, match="must be of type string, given 1"):
        site.act("worker/0", "gpu-cordon", gpu=1, reason="no string")


def test_tasks_have_a_gpu_each(site, gpus):
    """Arrange: a ready worker. Act: as many tasks at once as GPUs. Assert: each has its own."""
    site.wait_for_tags("gpu", f"gpu-count={gpus}")
    task = site.fly.task(["sh", "-c", f"{SHOW_GPUS}\nsleep 20"], ["gpu"])
    builds = [Build(site.fly, *task) for _ in range(gpus)]
    had = [build.line("variable NVIDIA_VISIBLE_DEVICES=(.*)", 300)[1] for build in builds]
    assert [build.wait(120) for build in builds] == [0] * gpus
    assert all(uuid.startswith("GPU-") for uuid in had)
    assert len(set(had)) == gpus
    everything = site.task(SHOW_GPUS, GPU_COUNT="all")
    assert everything.returncode == 0, everything.stdout
    assert sorted(seen(everything.stdout)) == sorted(had)


def test_a_get_sees_no_gpu(site, gpus):
    """Arrange: a ready worker. Act: a get. Assert: its container has no GPU."""
    done = site.fly.get(["gpu"])
    assert done.returncode == 0, done.stdout
    look = site.sh(f"python3 -c {shlex.quote(LOOK_AT_GET)}", "worker/0")
    assert json.loads(look) == {"devices": [], "variables": []}


def test_gpu_actions_do_what_they_say(site, gpus):
    """Arrange: free GPUs. Act: test, cordon, uncordon. Assert: leases, tags and status follow."""
    assert site.act("worker/0", "gpu-selftest", level="quick")["verdict"] == "passed"
    assert site.act("worker/0", "gpu-leases")["free"] == f"{gpus} of {gpus}"
    site.act("worker/0", "gpu-cordon", gpu="gpu-0", reason="its fan rattles")
    assert site.act("worker/0", "gpu-leases")["free"] == f"{gpus - 1} of {gpus}"
    assert "1 cordoned: GPU 0 (its fan rattles" in site.status("worker/0")[1]
    site.act("worker/0", "gpu-uncordon", gpu="gpu-0", reason="a new fan")
    site.active("worker/0", READY)
    assert site.act("worker/0", "gpu-leases")["free"] == f"{gpus} of {gpus}"


def test_choosing_a_gpu_concerns_the_next_task_alone(site, gpus):
    """Arrange: a task runs. Act: allow GPU 0 alone. Assert: it goes on; the next has GPU 0."""
    running = Build(site.fly, *site.fly.task(["sh", "-c", "echo begun; sleep 30"], ["gpu"]))
    running.line("begun", 300)
    site.configure("worker", gpu_device_ids="0", extra_tags="rack-7")
    site.wait_for_tags("rack-7", "gpu-count=1", "gpu-devices=0")
    done = site.task(SHOW_GPUS, GPU_COUNT="all")
    assert len(seen(done.stdout)) == 1, done.stdout
    assert running.wait(120) == 0, running.output
    site.configure("worker", gpu_device_ids="all", extra_tags="")
    site.wait_for_tags("gpu", f"gpu-count={gpus}")
    site.active("worker/0", f"{READY}{gpus}x")


def test_an_id_that_is_not_there_blocks_and_jobs_go_on(site, gpus):
    """Arrange: a ready worker. Act: ask for GPU 77. Assert: blocked by name, a task runs."""
    site.configure("worker", gpu_device_ids="77")
    site.blocked("worker/0", "gpu-device-ids: no GPU 77 on this machine")
    assert site.task("true").returncode == 0
    site.configure("worker", gpu_device_ids="all")
    site.active("worker/0", f"{READY}{gpus}x")


def test_a_bad_option_blocks_and_a_good_one_mends_it(site):
    """Arrange: a worker. Act: a vendor typo, then auto. Assert: blocked by name, then ready."""
    before = site.status("worker/0")
    site.configure("worker", gpu_vendor="nvidea")
    site.blocked("worker/0", "gpu-vendor")
    with pytest.raises(jubilant.CLIError):
        site.configure("worker", enable_gpu="perhaps")
    site.configure("worker", gpu_vendor="auto")
    site.until("worker/0", lambda kind, said: (kind, said) == before)


def test_disabling_takes_wrapper_and_tags_away(site):
    """Arrange: a worker. Act: enable-gpu=false, then true. Assert: as before GPUs, as with."""
    before = site.status("worker/0")
    site.configure("worker", enable_gpu="false", extra_tags="gpu-less")
    site.until("worker/0", lambda kind, said: (kind, said) == ("active", "Worker ready"))
    ours = "ls /opt/gpu-ci /etc/gpu-ci /usr/local/bin/runc-gpu-wrapper 2>&-; true"
    assert site.sh(ours, "worker/0") == ""
    site.wait_for_tags("gpu-less")
    done = site.task(SHOW_GPUS, ["gpu-less"])
    assert done.returncode == 0, done.stdout
    assert "device /dev/nvidia" not in done.stdout
    site.configure("worker", extra_tags="", enable_gpu="true")
    site.until("worker/0", lambda kind, said: (kind, said) == before)


def test_a_build_lives_through_a_refresh(site):
    """Arrange: a task runs. Act: refresh to the same charm. Assert: it ends well; ready again."""
    tags = site.workers()[0]["tags"] or []
    before = site.status("worker/0")
    script = "echo begun; sleep 40; echo finished"
    running = Build(site.fly, *site.fly.task(["sh", "-c", script], tags))
    running.line("begun", 300)
    site.juju.refresh("worker", path=site.charm)
    assert running.wait(180) == 0, running.output
    running.line("finished")
    site.until("worker/0", lambda kind, said: (kind, said) == before)


def test_a_removed_relation_can_be_made_again(site):
    """Arrange: web and worker. Act: part them, relate them. Assert: it says so; ready again."""
    before = site.status("worker/0")
    site.juju.remove_relation("web:web-tsa", "worker:worker-tsa")
    site.until("worker/0", lambda kind, _: kind in ("blocked", "waiting"))
    refusals = []

    def dying() -> bool:
        try:
            site.juju.integrate("web:web-tsa", "worker:worker-tsa")
        except jubilant.CLIError as error:
            refusals.append(error.stderr)
            return True
        return False

    site.wait_while(dying)
    assert all("already exists" in refusal for refusal in refusals)
    site.until("worker/0", lambda kind, said: (kind, said) == before)
    site.wait_for_tags()


def test_a_second_worker_joins_works_and_leaves_without_a_trace(site):
    """Arrange: one worker. Act: add a unit, remove it. Assert: a worker more, then no trace."""
    workers = len(site.workers())
    place = site.machines.get("other")
    site.juju.add_unit("worker", to=place)
    (unit,) = set(site.units("worker")) - {"worker/0"}
    site.worker_ready(unit)
    site.wait_while(lambda: len(site.workers()) == workers)
    assert len(site.workers()) == workers + 1
    site.juju.remove_unit(unit)
    site.wait_while(lambda: unit in site.units("worker"))
    assert len(site.workers()) == workers
    if place:
        assert site.traces("other") == {}


def test_one_machine_is_enough(site):
    """Arrange: a free machine. Act: mode all, a task. Assert: no address moves, no trace left."""
    site.deploy("solo", "solo", deployment_mode="all")
    site.active("solo/0", "Web and worker ready", DEPLOY_SECONDS)
    url = site.login("solo/0")
    site.wait_for_tags()
    done = site.task("echo ran", site.workers()[0]["tags"] or ())
    assert "ran" in done.stdout, done.stdout
    # The task's bridge is an address of the machine now, which Juju may offer before all others.
    site.wait_while(lambda: BRIDGE not in site.juju.cli("status", "--format=json"))
    site.active("solo/0", "Web and worker ready")
    assert site.act("solo/0", "get-admin-password")["url"] == url
    assert site.workers()
    site.juju.remove_application("solo")
    site.wait_while(lambda: "solo" in site.juju.status().apps)
    if "solo" in site.machines:
        assert site.traces("solo") == {}


def test_removed_applications_leave_no_trace(site):
    """Arrange: web and worker. Act: remove both. Assert: gone, and nothing on their machines."""
    for app in ("worker", "web"):
        site.juju.remove_application(app)
        site.wait_while(lambda app=app: app in site.juju.status().apps)
        if app in site.machines:
            assert site.traces(app) == {}
