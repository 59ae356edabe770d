# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The self-test's isolation level with the real runc, the real wrapper and simulated GPUs.

It must pass on a healthy worker, and each sabotage must turn exactly the checks red that it is
about. The NVIDIA runtime is the real one where GPUCI_NVIDIA_RUNTIME names it.
"""

import json
import os
import signal
import time

import pytest

from tests.fakes import FAKEGPU
from tests.functional.containerd_worker import (
    GIVEN_RUNTIME,
    NEEDS,
    UUIDS,
    worker_in_a_namespace,
)
from tests.functional.isolation_machine import Machine
from tests.functional.isolation_sabotages import (
    ALL,
    ALLOCATION,
    AS_OTHERS,
    NVIDIA_DOORS,
    OPEN_RUNC,
    SABOTAGES,
    WITH_THE_REAL_RUNTIME,
    at_once,
    changing_runc,
)
from tests.functional.lease_site import Site, alive

pytestmark = NEEDS
REAL_RUNTIME_ONLY = pytest.mark.skipif(
    not GIVEN_RUNTIME, reason="the stand-in runtime is not like that; give GPUCI_NVIDIA_RUNTIME"
)

# `make soak` ends a self-test at more moments.
SOAK = "GPUCI_SOAK" in os.environ


@pytest.fixture(scope="module")
def started():
    with worker_in_a_namespace() as worker:
        worker.charm(0, 1)
        worker.start()
        machine = Machine(worker)
        machine.make()
        machine.keep()
        yield machine


@pytest.fixture
def machine(started):
    started.restore()
    return started


@pytest.fixture
def cards(machine):
    """The same for a test that changes its GPUs."""
    yield machine
    machine.make()


@pytest.fixture
def site(machine):
    """CI tasks on that machine, by containerd."""
    site = Site(machine.worker)
    yield site
    site.close()


def checks(results, *outcomes):
    """The ids of the checks that ended so on any GPU."""
    return {one["check"] for one in results.values() if one["outcome"] in outcomes}


def test_a_healthy_worker_passes_and_nothing_is_left(machine):
    results = machine.test()
    assert checks(results, "passed") == ALL, results
    assert checks(results, "failed", "warning", "skipped", "not-run") == set()
    assert machine.leftovers() == []
    assert "/dev/nvidia1 " in results["lease", 1]["text"]


def test_a_machine_without_a_ci_system_passes_by_its_own_runc(machine):
    machine.path("/opt/concourse/current/bin/runc").unlink()
    machine.apply(ci="none")
    told = json.loads(machine.path("/etc/gpu-ci/policy.json").read_text())
    assert told["tasks"] == {"parent": "/run/gpu-ci-task/", "others": []}
    assert "runc='/usr/bin/runc'" in machine.path("/opt/gpu-ci/bin/runc").read_text()
    results = machine.test("bare")
    assert checks(results, "passed") == ALL, results
    assert results["no-lease"]["text"] == "no GPU was seen in: other, task"
    assert machine.leftovers() == []
    # The front still looks for the old folder, and takes containers of another for no tasks.
    concourses = {**told, "tasks": {"parent": "/tmp/build/", "others": []}}
    machine.put("/etc/gpu-ci/policy.json", json.dumps(concourses))
    assert "lease" in checks(machine.test("bare"), "failed")


@pytest.mark.parametrize(
    ("sabotages", "red", "not_run"),
    [
        *at_once([*SABOTAGES, *(AS_OTHERS if SOAK else ())], alone=SOAK),
        *(
            pytest.param([one], red, not_run, id=one.__name__, marks=REAL_RUNTIME_ONLY)
            for one, red, not_run in WITH_THE_REAL_RUNTIME
        ),
    ],
)
def test_a_sabotage_turns_its_own_checks_red(machine, sabotages, red, not_run):
    for sabotage in sabotages:
        sabotage(machine)
    results = machine.test()
    shown = {key: (one["outcome"], one["text"]) for key, one in results.items()}
    assert checks(results, "failed") == red, shown
    assert checks(results, "not-run") == not_run, shown
    assert checks(results, "passed") == ALL - red - not_run, shown
    for one in results.values():
        assert bool(one["remedy"]) == (one["outcome"] == "failed")
        assert "APP" not in one["remedy"]
        if one["outcome"] == "not-run":
            assert one["text"].startswith("lease failed on GPU ")
    assert machine.leftovers() == []


# A runc whose containers are in no user namespace, and may make every device's node.
MAKES_NODES = changing_runc("""
linux = config["linux"]
linux["namespaces"] = [one for one in linux["namespaces"] if one["type"] != "user"]
del linux["uidMappings"], linux["gidMappings"]
linux["resources"]["devices"].append({"allow": True, "access": "m"})
""")


def test_in_a_container_the_user_namespace_keeps_tasks_from_other_gpus(machine):
    """There are no device rules there, which is why those of this machine do not count here."""
    machine.put("/opt/concourse/current/bin/runc", OPEN_RUNC)
    results = machine.test("nested")
    assert checks(results, "passed") == ALL, results
    assert "could be made (mknod)" in results["device-cgroup"]["text"]
    machine.put("/opt/concourse/current/bin/runc", MAKES_NODES)
    results = machine.test("nested")
    assert checks(results, "failed") == {"device-cgroup"}, results
    assert "/dev/nvidia1 (mknod: made) in gpu-selftest-" in results["device-cgroup"]["text"]
    assert "security.syscalls.intercept.mknod" in results["device-cgroup"]["remedy"]


def test_a_step_that_counts_as_over_while_it_sleeps_is_a_failure(machine):
    """As where it is not seen to be in its container: its GPU would go to the next task."""
    results = machine.test("unseen")
    assert checks(results, "failed") == {"reclaim"}, results
    assert results["reclaim"]["text"].startswith("a running task counts as ended")
    assert results["reclaim"]["remedy"]
    assert machine.leftovers() == []


def slow(machine, which, seconds):
    """Have one container's making last so much longer."""
    machine.put(
        "/opt/concourse/current/bin/runc",
        f"""#!/bin/sh
case "$*" in *create*gpu-selftest-{which}*) sleep {seconds} ;; esac
exec /usr/sbin/runc "$@"
""",
    )


@pytest.mark.parametrize(
    ("which", "seconds", "not_run", "words"),
    [
        ("reclaim-1", 3, {"reclaim"}, "was handed out again, "),
        ("disjoint-1", 60, {"disjoint", "reclaim"}, "no end within 10 s"),
    ]
    + ([("reclaim-1", 60, {"reclaim"}, "no end within 10 s")] if SOAK else []),
)
def test_a_container_that_comes_late_is_no_wrong_one(machine, which, seconds, not_run, words):
    slow(machine, which, seconds)
    results = machine.test()
    assert checks(results, "failed") == set(), results
    assert checks(results, "not-run") == not_run
    assert checks(results, "passed") == ALL - not_run
    assert words in results[which.partition("-")[0]]["text"]
    assert machine.leftovers() == []


OUT_OF = {
    "processes": 'echo \'{"level":"error","msg":"fork/exec: resource temporarily unavailable"}\'',
    "memory": "kill -KILL $$",
}


@pytest.mark.parametrize("what", OUT_OF)
def test_a_machine_that_is_out_of_something_ends_the_test_and_blames_no_gpu(machine, what):
    """As after a fork bomb, or where the kernel kills for want of memory."""
    machine.put(
        "/opt/concourse/current/bin/runc",
        f"""#!/bin/sh
case "$*" in
*create*) while [ "$1" != --log ]; do shift; done; {OUT_OF[what]} >>"$2"; exit 1 ;;
esac
exec /usr/sbin/runc "$@"
""",
    )
    results = machine.test()
    assert checks(results, "not-run") == ALL, results
    text = "this machine has no time or room for the check: "
    assert results["lease", 0]["text"].startswith(text)
    assert machine.leftovers() == []


@pytest.mark.parametrize(
    "moment", ["disjoint-0", "disjoint-1", "reclaim-0", "reclaim-1"] if SOAK else ["disjoint-1"]
)
def test_leases_that_can_not_be_read_meanwhile_blame_no_gpu(machine, moment):
    """Nobody can tell then what a task was given; that is not a task which was given nothing."""
    table = "/run/gpu-ci/leases/leases.json"
    machine.put(
        "/opt/concourse/current/bin/runc",
        f"""#!/bin/sh
/usr/sbin/runc "$@"
status=$?
case "$*" in *create*gpu-selftest-*{moment}*) echo damaged >{table} ;; esac
exit $status
""",
    )
    results = machine.test()
    not_run = ALLOCATION if moment.startswith("disjoint") else {"reclaim"}
    assert machine.path(table).read_text() == "damaged\n"
    assert checks(results, "not-run") == not_run, results
    assert checks(results, "passed") == ALL - not_run
    words = "the leases can't be read now"
    assert words in results[moment.partition("-")[0]]["text"]


def test_a_disk_that_fills_up_meanwhile_blames_no_gpu(machine):
    roots = "/var/lib/gpu-ci/selftest"
    machine.command("mkdir", "-p", roots)
    machine.command("mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", roots)
    try:
        results = machine.test()
    finally:
        machine.command("umount", roots)
    assert checks(results, "not-run") == ALL, results
    assert "No space left on device" in results["lease", 0]["text"]


def test_what_is_missing_is_named(machine):
    machine.path("/opt/concourse/current/bin/runc").unlink()
    results = machine.test()
    assert checks(results, "not-run") == ALL
    text = "/opt/concourse/current/bin/runc is missing"
    assert {one["text"] for one in results.values()} == {text}


def test_a_jobs_gpu_is_left_alone_and_the_job_named(machine, site):
    site.create("job")
    step = site.step("job")
    results = machine.test()
    assert results["lease", 0]["outcome"] == "not-run"
    assert "GPU 0 is in use by container job" in results["lease", 0]["text"]
    assert results["lease", 1]["outcome"] == "passed"
    assert "GPU 0 is in use by container job" in results["disjoint"]["text"]
    assert checks(results, "not-run") == {"lease", "disjoint"}
    assert checks(results, "passed") == ALL - {"disjoint"}
    assert alive(step)
    assert machine.leftovers() == []


def test_with_no_gpu_free_only_what_needs_none_is_tested(machine, site):
    site.create("job", "GPU_COUNT=2")
    site.step("job")
    results = machine.test()
    assert checks(results, "passed") == {"no-lease", "device-cgroup"}
    for one in results.values():
        if one["outcome"] == "not-run":
            assert "container job" in one["text"]


def test_quarantined_gpus_are_tested_and_foreign_use_is_respected(machine):
    for folder, uuid, entry in (
        ("/var/lib/gpu-ci/quarantine", UUIDS[0], {"reason": "Xid 79: gone", "by": "self-test"}),
        ("/run/gpu-ci/cordons", UUIDS[1], {"reason": "in use outside CI: pid 4711 (python3)"}),
    ):
        machine.command("mkdir", "-p", folder)
        machine.put(f"{folder}/{uuid}.json", json.dumps(entry))
    results = machine.test()
    assert results["lease", 0]["outcome"] == "passed"
    assert results["lease", 1]["outcome"] == "not-run"
    assert "pid 4711" in results["lease", 1]["text"]
    assert checks(results, "skipped") == {"disjoint"}
    assert checks(results, "passed") == ALL - {"disjoint"}


def test_shared_gpus_are_taken_alone_too(machine, site):
    machine.apply(allocation="shared")
    site.create("without", "GPU_COUNT=0")
    results = machine.test()
    assert checks(results, "skipped") == ALLOCATION
    assert checks(results, "passed") == ALL - ALLOCATION, results
    assert machine.leftovers() == []


def test_each_mig_device_is_a_lease_of_its_own(cards):
    cards.command(FAKEGPU, "mig", "0", "2")
    cards.apply()
    results = cards.test()
    assert checks(results, "passed") == ALL, results


@pytest.mark.parametrize("vendor", ["amd", "intel"] if SOAK else ["amd"])
def test_other_makers_gpus_are_tested_without_nvidias_doors(cards, vendor):
    cards.make("--vendor", vendor, "--count", "2")
    results = cards.test()
    assert checks(results, "skipped") == NVIDIA_DOORS
    assert checks(results, "passed") == ALL - NVIDIA_DOORS, results


def test_a_gpu_without_its_node_fails_its_lease_alone(cards):
    cards.path("/dev/nvidia1").unlink()
    results = cards.test()
    assert results["lease", 0]["outcome"] == "passed"
    assert results["lease", 1]["outcome"] == "failed"
    assert "/dev/nvidia1" in results["lease", 1]["text"]
    assert checks(results, "not-run") == ALLOCATION


@REAL_RUNTIME_ONLY
def test_nvml_in_the_container_has_to_list_the_lease_alone(machine):
    """With the simulated driver's state in it, NVML lists all GPUs, whatever nodes there are."""
    mount = '{"destination": "/var/lib/fake-gpu", "source": "/var/lib/fake-gpu", '
    mount += '"type": "bind", "options": ["bind"]}'
    script = changing_runc(f'config["mounts"].append(json.loads({mount!r}))')
    machine.put("/opt/concourse/current/bin/runc", script)
    results = machine.test()
    assert checks(results, "failed") == {"lease"}
    assert f"NVML lists {UUIDS[0]}, {UUIDS[1]} in it" in results["lease", 0]["text"]


@pytest.mark.parametrize("moment", range(6) if SOAK else (4,))
def test_after_a_killed_self_test_the_next_one_cleans_up_and_passes(machine, moment):
    with machine.begin() as running:
        running.stderr.readline()
        time.sleep(0.2 * moment)
        running.kill()
    results = machine.test()
    assert checks(results, "passed") == ALL, results
    assert machine.leftovers() == []


@pytest.mark.parametrize("moment", range(4) if SOAK else (2,))
def test_a_self_test_that_is_stopped_leaves_nothing(machine, moment):
    with machine.begin() as running:
        running.stderr.readline()
        time.sleep(0.25 * moment)
        running.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in running.stderr.read()
    assert machine.leftovers() == []
