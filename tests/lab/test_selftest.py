# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The self-test on the packed charm: each fault turns its own check red, and nothing else."""

import collections
import itertools
import json
import os

import pytest

from tests.lab import selftest_runs
from tests.lab.selftest_faults import (
    BOTH,
    FAKEGPU,
    FAULTS,
    HARMLESS,
    INVISIBLE,
    MINIMUMS,
    RUNTIME_BACK,
)
from tests.lab.selftest_runs import RED
from tests.lab.site import OPENS, PROBE, READY

SOAK = "GPUCI_SOAK" in os.environ
# Without these NVML cannot be asked of a GPU, or no volume be made. All other faults leave the
# quick checks as they are.
PREVENT_QUICK = ("driver", "inventory", "nvml", "disk")
# Faults of the toolkit, of the wrapper, of a GPU and of all, for which `make test` has containers.
SEEN_BY_CONTAINERS = ("toolkit-missing", "back-end-changed", "lost", "mismatch")
# With room for a busy machine: on a quiet one it takes a few seconds of them.
QUICK_SECONDS = 30
ISOLATION_SECONDS = 120


@pytest.fixture(scope="module")
def gpus(site):
    """The index of each GPU by its id; minimums are set as long as this file's tests run."""
    # Other tests had other cards in this machine.
    site.sh("rm -f /var/lib/gpu-ci/inventory.json")
    # The watch would see the faults too; tests/lab/test_watch.py has that.
    options = {"minimums": MINIMUMS, "gpu_health": "disabled"}
    site.configure(**options)
    assert site.status() == READY
    yield selftest_runs.indexes(site)
    site.configure(reset=tuple(name.replace("_", "-") for name in options))
    assert site.status() == READY


@pytest.fixture(scope="module")
def well(site, gpus):
    """The self-test's run on a worker that is well, by level."""
    return {level: selftest_runs.take(site, gpus, level) for level in ("quick", "isolation")}


@pytest.fixture(scope="module")
def healthy(well):
    """What a worker that is well reports, by level."""
    return {level: seen.outcomes() for level, seen in well.items()}


def runs(faults):
    """The faults of each run of the self-test: each check's at most once, in `make soak` one.

    Checks that have many faults take turns with the others, so that the next run but one that
    prevents checks shows the repairs. A fault that prevents checks is alone.
    """
    if SOAK:
        return [(fault,) for fault in faults]
    count = collections.Counter(fault.check for fault in faults)
    most = max(count.values())
    shared = [[] for _ in range(2 * most)]
    turns, few = collections.Counter(), 0
    for fault in faults:
        if fault.check in PREVENT_QUICK:
            continue
        if count[fault.check] > 2:
            shared[2 * turns[fault.check]].append(fault)
            turns[fault.check] += 1
        else:
            shared[2 * (few % most) + 1].append(fault)
            few += 1
    alone = [[fault] for fault in faults if fault.check in PREVENT_QUICK]
    pairs = itertools.zip_longest(shared, alone, fillvalue=[])
    return [tuple(run) for pair in pairs for run in pair if run]


def named(run):
    return "+".join(fault.name for fault in run)


class Mending:
    """The faults whose repair is still to be proved: by the next run if that shows it.

    A run with other faults shows all other checks as they are on a worker that is well, unless
    one of them prevents them.
    """

    def __init__(self, site, gpus, healthy):
        self.site, self.gpus, self.healthy = site, gpus, healthy
        self._broken = ()
        self._unproved = set()

    def before(self, run):
        """Shell that repairs the last run's faults, where their repair is not to be proved first.

        Args:
            run: the faults of the run that comes.
        """
        checks = {fault.check for fault in run}
        # Where no volume can be made, no GPU comes back.
        if checks & {*self._unproved, "disk"}:
            self.prove()
        mend = "\n".join(fault.mend for fault in self._broken)
        self._broken = run
        if checks.isdisjoint(PREVENT_QUICK):
            self._unproved.clear()
        self._unproved |= checks
        return mend or ":"

    def prove(self):
        """Repair the last run's faults, and prove all repairs."""
        broken, self._broken = self._broken, ()
        unproved, self._unproved = self._unproved, set()
        if unproved:
            mend = "\n".join(fault.mend for fault in broken)
            mended = selftest_runs.take(self.site, self.gpus, before=mend or ":")
            assert mended.outcomes() == self.healthy["quick"], (unproved, mended.why())
            assert mended.quarantine == {}


@pytest.fixture(scope="module")
def mending(site, gpus, healthy):
    mending = Mending(site, gpus, healthy)
    yield mending
    mending.prove()


def act(site, name, **params):
    """Results of an action on the worker, and why it failed if it did."""
    action = site.lab.model.run_action("worker/0", name, params)
    site.lab.settle()
    row = site.lab.store.row("SELECT * FROM action WHERE id = ?", action)
    return json.loads(row["results"]), row["message"]


@pytest.mark.parametrize(
    ("level", "seconds"), [("quick", QUICK_SECONDS), ("isolation", ISOLATION_SECONDS)]
)
def test_a_worker_that_is_well_passes_in_time(well, level, seconds):
    seen = well[level]
    # A machine with little disk space, or with fixed limits, gets a warning.
    warned = {key for key, outcome in seen.outcomes().items() if outcome == "warning"}
    assert seen.report["outcome"] == "passed", seen.why()
    assert warned <= {("disk", None), ("limits", None)}
    assert seen.report["seconds"] < seconds
    assert seen.quarantine == {}
    for result in seen.report["results"]:
        assert result["outcome"] != "skipped" or result["text"], result
        assert result["proves"], result


def level_of(run):
    """How much is tested; where containers show a fault too, `make soak` has each look."""
    if SOAK:
        return run[0].level
    seen = any(fault.name in SEEN_BY_CONTAINERS for fault in run)
    return "isolation" if seen else "quick"


@pytest.mark.parametrize("run", runs(FAULTS), ids=named)
def test_a_fault_turns_its_own_check_red_and_is_mended(mending, run):
    level, before = level_of(run), mending.before(run)
    try:
        inject = "\n".join([before, *(fault.inject for fault in run)])
        around = " ".join(fault.around for fault in run if fault.around)
        seen = selftest_runs.take(mending.site, mending.gpus, level, inject, around)
        assert_own_checks_alone_are_red(seen, mending.healthy[level], run)
        condemning = [fault for fault in run if fault.condemns and not fault.warns]
        concerned = {gpu for fault in condemning for gpu in fault.gpus or BOTH}
        assert set(seen.quarantine) == concerned
        for gpu, entry in seen.quarantine.items():
            assert entry["by"] == "self-test"
            (fault,) = (one for one in condemning if one.check == entry["check"])
            assert gpu in (fault.gpus or BOTH)
            assert entry["level"] == "quick"
            assert entry["reason"].startswith(fault.reason)
            assert fault.remedy in entry["remedy"]
    except BaseException:
        mending.prove()
        raise


def test_the_last_fault_is_mended_too(mending):
    mending.prove()


def assert_own_checks_alone_are_red(seen, usual, run):
    """Exactly the faults' own results are red; what else changed could not run, and says why."""
    own = {(fault.check, gpu): fault for fault in run for gpu in (fault.gpus or [None])}
    checks = {fault.check for fault in run}
    outcomes = seen.outcomes()
    red = {key: outcome for key, outcome in outcomes.items() if outcome in RED}
    red = {key: outcome for key, outcome in red.items() if usual.get(key) != outcome}
    expected = {key: "warning" if fault.warns else "failed" for key, fault in own.items()}
    assert red == expected, seen.why()
    for key, result in seen.results().items():
        if key in own:
            assert result["text"].startswith(own[key].reason)
            assert own[key].remedy in result["remedy"]
        elif result["outcome"] == "not-run":
            assert result["text"].startswith(tuple(f"{check} failed" for check in checks)), result
            assert result["level"] != "quick" or checks & {*PREVENT_QUICK}, result
        elif key == ("disjoint", None) and any(fault.gpus for fault in run):
            # It takes two GPUs that tasks may have.
            assert result["outcome"] == "skipped", result
        else:
            assert result["outcome"] == usual.get(key), result
    # No check is left out silently; one that ran for no GPU says so once.
    for check, gpu in set(usual) - set(outcomes):
        assert check in checks or outcomes.get((check, None)) == "not-run", (check, gpu)


@pytest.mark.parametrize("names", [[name] for name in HARMLESS] if SOAK else [[*HARMLESS]])
def test_harmless_noise_quarantines_nothing(site, gpus, healthy, names):
    """In `make soak` each alone, else all that jobs do to themselves at once."""
    inject, mend = ("\n".join(shell) for shell in zip(*map(HARMLESS.get, names), strict=True))
    seen = selftest_runs.take(site, gpus, before=inject)
    try:
        assert seen.outcomes() == healthy["quick"], seen.why()
        assert seen.quarantine == {}
    finally:
        site.machine().run(["/bin/sh", "-c", mend])


# tests/functional/test_selftest_isolation.py has these faults and more, without a charm.
@pytest.mark.parametrize("check", INVISIBLE if SOAK else ["device-cgroup"])
def test_what_only_containers_show_is_seen_from_inside_them(site, gpus, healthy, check):
    try:
        assert (
            selftest_runs.take(site, gpus, before=INVISIBLE[check]).outcomes() == healthy["quick"]
        )
        # Again, since a GPU that is out of use must not pass for want of a test.
        for _ in range(2):
            seen = selftest_runs.take(site, gpus, "isolation")
            outcomes = seen.outcomes()
            failed = {name for (name, _), outcome in outcomes.items() if outcome == "failed"}
            assert failed == {check}, seen.why()
            assert set(seen.quarantine) == set(BOTH)
            for entry in seen.quarantine.values():
                assert (entry["check"], entry["level"]) == (check, "isolation")
    finally:
        mended = selftest_runs.take(site, gpus, before=RUNTIME_BACK)
    # Its level is that of the failed check.
    assert set(mended.quarantine) == set(BOTH)
    assert selftest_runs.take(site, gpus, "isolation").quarantine == {}


@pytest.fixture
def as_deployed(site):
    """Two GPUs that are well and in use; the same again afterwards."""
    yield site
    site.machine().run([FAKEGPU, "xid", "clear"])
    out = site.sh("ls /var/lib/gpu-ci/quarantine; rm -f /var/lib/gpu-ci/quarantine/*")
    if out or site.status() != READY:
        act(site, "gpu-selftest", level="quick")
    assert site.status() == READY
    site.wait_for_tag("gpu-count=2")


def failures(said):
    """What an action says of a GPU, but for warnings that this machine may deserve."""
    return said.partition(", warned")[0]


def test_a_sick_gpu_leaves_the_pool_until_a_reboot_which_finds_the_other_sick(as_deployed):
    site = as_deployed
    say_xid_79(site, 1)
    results, message = act(site, "gpu-selftest", level="quick")
    assert message.startswith("Self-test failed: quick, 2 GPUs, ")
    assert (results["verdict"], failures(results["gpu-0"])) == ("failed", "passed")
    assert failures(results["gpu-1"]) == "failed: xid"
    assert "Xid 79: the GPU has fallen off the bus" in results["report"]
    assert_gpu_1_is_out(site)
    done = site.task("true", params={"GPU_COUNT": "2"})
    assert done.returncode != 0
    assert "is quarantined: Xid 79: the GPU has fallen off the bus" in done.stdout
    done = site.task(PROBE, params={})
    assert done.returncode == 0, done.stdout
    assert f"nvidia0 {OPENS}" in done.stdout
    assert "nvidia1 absent" in done.stdout
    # The log is empty then, so that the boot's own test finds this GPU well again.
    site.machine().run([FAKEGPU, "set", "0", "remapped-rows-failed=1"])
    try:
        site.machine().reboot()
        boot, worker = (
            int(site.sh(f"systemctl show -p ExecMainStartTimestampMonotonic --value {name}"))
            for name in ("gpu-ci-selftest", "concourse-worker")
        )
        assert 0 < boot < worker
        site.worker("lab-worker-0", 60)
        # No event has come yet: this is the wrapper's word.
        done = site.task("true", params={"GPU_COUNT": "2"})
        assert "GPU 0 is quarantined: row remapping failed" in done.stdout
        site.lab.controller.fire("worker/0", "start")
        assert site.status()[1].startswith(
            "Worker ready (GPU: 1x NVIDIA, 1 quarantined: GPU 0 (row remapping failed"
        )
        assert "gpu-count>=2" not in site.wait_for_tag("gpu-count=1")
    finally:
        site.machine().run([FAKEGPU, "set", "0", "remapped-rows-failed="])


def say_xid_79(site, number):
    """Write it into the kernel log, without an event."""
    site.machine().run([FAKEGPU, "xid", str(number), "79"])


def assert_gpu_1_is_out(site):
    """Status and tags tell that one GPU is left, and why."""
    kind, message = site.status()
    assert kind == "active"
    assert message.startswith("Worker ready (GPU: 1x NVIDIA, 1 quarantined: GPU 1 (Xid 79")
    tags = site.wait_for_tag("gpu-count=1")
    assert "gpu-count>=2" not in tags


def test_without_a_gpu_left_the_unit_says_what_to_do_and_tasks_are_refused(as_deployed):
    site = as_deployed
    for number in BOTH:
        say_xid_79(site, number)
    act(site, "gpu-selftest", level="quick")
    kind, message = site.status()
    assert kind == "blocked"
    assert message.startswith("All GPUs are unavailable (2 quarantined: GPU 0, 1 (Xid 79"), message
    assert "juju run worker/0 gpu-selftest level=quick" in message
    tags = site.wait_for_tag("gpu-unavailable")
    assert [tag for tag in tags if tag.startswith("gpu") and tag != "gpu-unavailable"] == []
    done = site.task("echo never-seen", "gpu-unavailable", params={})
    assert done.returncode != 0
    assert "is quarantined: Xid 79: the GPU has fallen off the bus" in done.stdout
    assert "gpu-ci-worker: too-few-gpus: " in done.stdout


def test_a_driver_that_fits_no_more_takes_all_gpus_out_until_it_is_mended(as_deployed):
    site = as_deployed
    site.machine().run([FAKEGPU, "nvml-fault", "18"])
    try:
        results, message = act(site, "gpu-selftest")
        assert message.startswith("Self-test failed: quick and isolation, ")
        assert (results["gpu-0"], results["gpu-1"]) == ("failed: driver", "failed: driver")
        kind, message = site.status()
        assert (kind, "libnvidia-ml.so.1 differ" in message) == ("blocked", True), message
        done = site.task("true", "gpu-unusable", params={})
        assert "is quarantined: driver and library differ" in done.stdout
    finally:
        site.machine().run([FAKEGPU, "nvml-fault", "none"])
    assert act(site, "gpu-selftest", level="quick")[0]["verdict"] == "passed"
    assert site.status() == READY


def test_a_gpu_is_taken_out_and_brought_back_by_hand(as_deployed):
    site = as_deployed
    results, message = act(site, "gpu-cordon", gpu="gpu-1", reason="its fan rattles")
    assert (results["state"], results["running"]) == (
        "cordoned by the operator: its fan rattles",
        "none",
    ), message
    assert "its fan rattles" in site.status()[1]
    site.wait_for_tag("gpu-count=1")
    # No self-test brings back what the operator took out.
    assert act(site, "gpu-selftest", level="quick")[0]["verdict"] == "passed"
    assert "its fan rattles" in site.status()[1]
    results, message = act(site, "gpu-uncordon", gpu="gpu-1", reason="a new fan")
    assert results["state"] == "available", message
    assert site.status() == READY


def test_what_a_job_has_is_not_tested_and_the_job_is_left_alone(as_deployed, gpus):
    site = as_deployed
    running = site.start_task(f"sleep 12\n{PROBE}", params={"GPU_COUNT": "1"})
    seen = selftest_runs.take(site, gpus, "isolation")
    assert seen.report["outcome"] == "incomplete", seen.why()
    (held,) = (
        result for result in seen.report["results"] if result["outcome"] == "not-run"
        and result["check"] == "lease"
    )  # fmt: skip
    assert "is in use by container " in held["text"]
    assert seen.quarantine == {}
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 0, output
    number = gpus[held["gpu"]]
    assert f"nvidia{number} {OPENS}" in output
    assert f"nvidia{1 - number} absent" in output


def test_the_action_shows_people_a_table_and_programs_json(as_deployed):
    results, message = act(as_deployed, "gpu-selftest", level="isolation", gpu="gpu-1")
    assert message == "", message
    assert (results["verdict"], results["level"]) == ("passed", "isolation")
    assert failures(results["gpu-1"]) == "passed"
    assert "gpu-0" not in results
    head, table = results["report"].split("\n\n")[:2]
    assert head.startswith("passed: quick and isolation, ")
    assert table.startswith("check ")
    assert max(map(len, results["report"].splitlines())) <= 100
    results, message = act(as_deployed, "gpu-selftest", level="quick", gpu="gpu-1", format="json")
    assert (message, [*results]) == ("", ["json"])
    report = json.loads(results["json"])
    assert {result["outcome"] for result in report["results"]} <= {"passed", "warning", "skipped"}
    assert as_deployed.status()[1] == (
        "Worker ready (GPU: 2x NVIDIA, self-test of one GPU passed)"
    )
