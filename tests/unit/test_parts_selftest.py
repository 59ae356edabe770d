# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""When the charm has the self-test run by itself, and what it then knows."""

import dataclasses
import json

import pytest

from gpu_agent import paths as wrapper
from gpu_agent.availability import quarantine, retests
from gpu_agent.model.host import Packaged
from gpu_agent.model.verdict import Verdict
from gpu_selftest import service, verdict
from gpu_selftest.check import Check, Level, Outcome, Said
from options.part import Part
from options.table import Minimums
from plan.agent_view import AgentView
from plan.state import Failure
from tests.unit.selftest_charm import AGENT, CHECK, RUNS, present, worker
from tests.unit.situations import gpu_unit, situation

DISK = Check("disk", Level.QUICK, "there is room", remedy="make room", condemns=False)
HEAT = Check("throttle", Level.QUICK, "it is cool", remedy="fan", each_gpu=True, condemns=False)


@pytest.fixture
def charm(tmp_path, monkeypatch):
    return worker(tmp_path, monkeypatch)


def test_the_charm_is_woken_for_what_it_has_not_seen_whatever_the_gpus_state(charm):
    broken = situation(state=charm.found.inventory.state.MISMATCH).inventory
    for inventory in (charm.found.inventory, broken):
        charm.ensure(inventory=inventory, nodes=("nvidia0", "nvidiactl"))
        assert charm.watch.seen.pop() == (charm.found.unit, ("nvidia0", "nvidiactl"))
    assert charm.wake.units == {charm.found.unit}


def test_the_first_time_it_runs(charm):
    assert charm.ensure()[1] == RUNS


@pytest.mark.parametrize("tried", ["", "1.19.0-1"])
def test_without_a_release_of_concourse_nothing_is_tested_and_no_gpu_is_blamed(charm, tried):
    retests.ask("GPU-0", "quick", "Xid 79")
    packaged = Packaged("1.20.0-1", ours=True, previous=tried)
    after, calls = charm.ensure(agent=AgentView(runc="/bin/is-not-there"), packaged=packaged)
    assert calls == ["boot True"]
    assert after.verdict is None
    assert after.quarantined == ()
    asked = ["Self-test of one GPU, level quick: Xid 79", "start quick of GPU-0", RUNS[-1]]
    assert charm.ensure()[1] == [*RUNS, *asked]


def test_after_that_it_runs_no_more(charm):
    charm.report()
    after, calls = charm.ensure()
    assert calls == ["boot True"]
    assert after.verdict == Verdict("passed")


def test_gpus_that_were_all_away_are_tested_when_they_are_back(charm):
    charm.report()
    away = situation(state=charm.found.inventory.state.NOT_PASSED).inventory
    assert charm.ensure(inventory=away)[1] == ["boot True"]
    assert charm.ensure()[1] == RUNS
    charm.report()
    charm.records.note_verdict()
    assert charm.ensure()[1] == ["boot True"]


def test_a_quick_pass_at_boot_is_not_isolation_and_does_not_undo_it(charm):
    charm.report(level=Level.QUICK)
    assert charm.ensure()[1] == RUNS
    charm.report()
    charm.report(level=Level.QUICK)
    assert charm.ensure()[1] == ["boot True"]


@pytest.mark.parametrize("outcome", ["passed", "failed", "incomplete"])
def test_a_change_of_what_it_proves_has_it_run_again(charm, outcome):
    charm.report(outcome)
    changed = dataclasses.replace(charm.found.inventory, driver="595.71.05")
    assert charm.ensure(inventory=changed)[1] == RUNS


def test_a_failure_is_the_operators_until_the_charm_has_repaired_something(charm):
    charm.report("failed", age=3600)
    after, calls = charm.ensure()
    assert calls == ["boot True"]
    assert after.verdict == Verdict("failed", failure="Xid 79", remedy="reboot")
    assert charm.ensure(repaired=True)[1] == RUNS


def test_what_a_job_kept_it_from_is_tried_again_after_a_while(charm):
    charm.report("incomplete", age=10)
    assert charm.ensure()[1] == ["boot True"]
    charm.report("incomplete", age=600)
    assert charm.ensure()[1] == RUNS


def test_what_was_proven_of_other_gpus_meanwhile_is_no_answer(charm):
    charm.report()
    charm.report("incomplete", subject="of one GPU alone")
    assert charm.ensure()[1] == RUNS


def test_status_is_told_what_was_in_the_way_but_not_what_changes_by_the_minute(charm):
    (result,) = charm.report("incomplete").results
    why = "GPU 0 is in use by container 0b7c1f8e (task, 3 min)"
    charm.report(
        "incomplete", made=(dataclasses.replace(result, text=why, cause="GPU 0 is in use"),)
    )
    assert verdict.verdict(charm.records.home) == Verdict("incomplete", failure="GPU 0 is in use")


def test_one_that_a_killed_hook_has_started_is_followed_to_its_end(charm):
    charm.service.now = service.Running("old", Level.ISOLATION, present())
    assert charm.ensure()[1] == ["boot True", "Self-test: following old"]


def test_a_burn_in_is_not_waited_for_and_nothing_passes_for_proven_meanwhile(charm):
    charm.report(subject="the driver before")
    charm.service.now = service.Running("old", Level.BURN_IN, present())
    after, calls = charm.ensure()
    assert calls == ["boot True"]
    why = "a self-test of level burn-in still runs"
    assert after.verdict == Verdict("incomplete", failure=why)


def test_one_by_hand_or_at_boot_is_no_reason_to_fail_and_none_to_say_passed(charm):
    charm.report(subject="the driver before")
    charm.service.others = "pid 4711, level burn-in, since 17:00:03 UTC"
    after, calls = charm.ensure()
    assert calls == ["boot True"]
    why = f"another self-test still runs: {charm.service.others}"
    assert after.verdict == Verdict("incomplete", failure=why)


def test_one_that_does_not_end_in_time_has_not_passed(charm):
    charm.report(subject="the driver before")
    charm.service.ends = lambda: None
    after, _ = charm.ensure()
    assert after.verdict == Verdict("incomplete", failure="it still runs")


def test_one_that_was_killed_after_its_action_had_returned_is_told(charm):
    charm.report()
    charm.service.killed = service.Running("old", Level.COMPUTE, present())
    after, calls = charm.ensure()
    assert calls == ["boot True"]
    assert after.verdict == Verdict(
        "incomplete",
        failure="level compute ended without a verdict, see /var/log/gpu-ci/selftest.log",
    )


def test_boot_without_a_verdict_has_it_run(charm):
    charm.report()
    charm.records.tested.unlink()  # as the machine's start leaves /run
    assert charm.ensure()[1] == RUNS


@pytest.mark.parametrize(
    "of", [{"level": Level.QUICK}, {"gpu": "GPU-0"}, {"level": Level.QUICK, "gpu": "GPU-0"}]
)
def test_one_gpus_failure_does_not_leave_the_others_untested(charm, of):
    """A new driver, and the test at boot or an operator's has failed one GPU since."""
    charm.report("failed", **of)
    assert charm.ensure()[1] == RUNS
    charm.report()
    charm.report("failed", **of)
    assert charm.ensure()[1] == ["boot True"]


def test_a_gpu_that_a_job_had_while_another_failed_is_tested_after_a_while(charm):
    failed = CHECK.result(Outcome.FAILED, "Xid 79", gpu="GPU-0")
    because = CHECK.result(Outcome.NOT_RUN, "xid failed", gpu="GPU-0")
    busy = CHECK.result(Outcome.NOT_RUN, "a job has it", gpu="GPU-1")
    for made, age, expected in (
        ((failed, because), 600, ["boot True"]),
        ((failed, because, busy), 10, ["boot True"]),
        ((failed, because, busy), 600, RUNS),
    ):
        charm.report("failed", age=age, made=made)
        assert charm.ensure()[1] == expected


QUICK = ["boot True", "start quick", "Self-test: following new"]
FULL = "disk full: 0.3 GB free for /var/lib/concourse"


def test_a_full_disk_is_said_and_looked_at_again_until_there_is_room(charm):
    full = DISK.told(Said(Outcome.FAILED, FULL, cause="disk full"))
    because = CHECK.result(Outcome.NOT_RUN, "disk failed")
    charm.report("failed", age=10, made=(full, because))
    after, calls = charm.ensure()
    assert calls == ["boot True"]
    # How full it is changes by the minute.
    assert after.verdict == Verdict("failed", failure="disk full", remedy="make room")
    charm.report("failed", age=600, made=(full, because))
    assert charm.ensure()[1] == RUNS


@pytest.mark.parametrize("level", [Level.QUICK, Level.ISOLATION])
def test_what_a_job_can_bring_about_is_looked_at_again_by_the_quick_test(charm, level):
    """At boot, or beside isolation that passed: no more is needed to see whether it is over."""
    hot = HEAT.told(Said(Outcome.FAILED, "throttled: hardware", cause="throttled"), "GPU-0")
    good = CHECK.result(Outcome.PASSED, "no Xid", gpu="GPU-1")
    charm.report()
    for age, expected in ((10, ["boot True"]), (600, QUICK)):
        charm.report("failed", age=age, level=level, made=(hot, good))
        after, calls = charm.ensure()
        assert calls == expected
        assert after.verdict == Verdict("failed", failure="throttled", remedy="fan")


def test_a_slow_copy_to_the_host_is_nothing_that_the_quick_test_would_show(charm):
    copy = Check("host-bandwidth", Level.COMPUTE, "it is fast", each_gpu=True, condemns=False)
    charm.report()
    slow = copy.result(Outcome.FAILED, "slow: 5 GB/s", gpu="GPU-0")
    charm.report("failed", age=600, level=Level.COMPUTE, made=(slow,))
    after, calls = charm.ensure()
    assert (calls, after.verdict.outcome) == (["boot True"], "failed")


def test_beside_a_gpu_that_is_out_what_takes_none_out_is_said(charm):
    """Of the other, quarantine tells."""
    gone = CHECK.result(Outcome.FAILED, "Xid 79: gone", gpu="GPU-0")
    full = DISK.told(Said(Outcome.FAILED, FULL, cause="disk full"))
    because = CHECK.result(Outcome.NOT_RUN, "disk failed")
    charm.report("failed", age=600, made=(gone, full, because))
    after, calls = charm.ensure()
    assert after.verdict == Verdict("failed", failure="disk full", remedy="make room")
    # Isolation was never proven.
    assert calls == RUNS


def test_quarantine_is_read_after_the_test(charm):
    def fails():
        quarantine.put("GPU-1", "Xid 79: gone", "xid", "quick", "reboot")

    charm.service.ends = fails
    after, _ = charm.ensure()
    assert [entry.uuid for entry in after.quarantined] == ["GPU-1"]


def options(charm, **changes):
    return dataclasses.replace(charm.found.options, **changes)


def test_without_selftest_on_start_neither_now_nor_at_boot(charm):
    assert charm.ensure(options=options(charm, selftest_on_start=False))[1] == ["boot False"]
    assert charm.kept().unit == "worker/0"


def test_without_gpus_for_tasks_nothing_of_it_is_left(charm):
    home = charm.records.home
    (home / "venv-cuda13-0" / "bin").mkdir(parents=True)
    (home / "last.json").write_text("{}")
    after, calls = charm.ensure(inventory=None)
    # Gigabytes; what it has found out stays.
    assert [path.name for path in home.iterdir()] == ["last.json"]
    assert (calls, after.verdict) == (["watch no more", "wake no more", "remove"], None)
    assert charm.kept() is None
    charm.ensure()
    assert charm.ensure(leaving=True)[1] == ["watch no more", "wake no more", "remove"]


def test_while_the_gpus_cannot_be_used_what_was_known_of_them_stays(charm):
    before = charm.kept()
    broken = situation(state=charm.found.inventory.state.MISMATCH).inventory
    assert charm.ensure(inventory=broken)[1] == ["boot True"]
    assert (charm.kept().gpus, charm.kept().files) == (before.gpus, before.files)


def test_it_is_told_what_the_operator_knows_and_asks_for(charm):
    charm.ensure(
        options=options(
            charm,
            gpu_device_ids=("1",),
            minimums=Minimums(4, 32, 16, "7.0", "535"),
        ),
        wheels="/wheels.tar.gz",
    )
    kept = charm.kept()
    assert [(one.index, one.uuid) for one in kept.gpus] == [(1, "GPU-1")]
    assert (kept.min_gpu_memory_gib, kept.min_compute_capability) == (16, "7.0")
    assert (kept.min_driver_version, kept.wheels) == ("535", "/wheels.tar.gz")
    assert (kept.min_cpus, kept.min_memory_gib) == (4, 32)
    assert kept.files == {"/opt/gpu-ci/bin/runc": "sha256:1"}
    assert json.loads(charm.settings.read_text())["unit"] == "worker/0"


def test_it_knows_the_ci_system_by_values_alone(charm):
    charm.ensure()
    kept = charm.kept()
    assert (kept.runc, kept.runc_remedy) == (AGENT.runc, AGENT.runc_remedy)
    assert (kept.checks, kept.disks) == (AGENT.checks, AGENT.disks)
    charm.ensure(agent=AgentView())
    kept = charm.kept()
    assert (kept.runc, kept.checks, kept.disks) == ("", (), ())


def test_the_programs_that_read_the_settings_are_there_before_them(charm):
    """An earlier copy would take later settings for damaged ones, and no boot would test."""
    charm.settings.unlink()
    seen = []
    charm.service.install = lambda **given: seen.append((charm.settings.exists(), given))
    charm.ensure()
    order = {"before": AGENT.service, "needs": AGENT.runc}
    assert seen == [(False, {"on_start": True, **order})]
    assert charm.settings.exists()


def test_a_machine_without_a_ci_system_needs_no_release(charm):
    assert charm.ensure(agent=AgentView())[1] == RUNS


def test_wheels_of_which_juju_does_not_tell_stay_what_they_were(charm):
    charm.ensure(wheels="/wheels.tar.gz")
    charm.ensure(wheels=None)
    assert charm.kept().wheels == "/wheels.tar.gz"


def test_a_runtime_of_engines_that_nobody_has_put_right_is_what_it_was(charm):
    """With a bad option of the engines', the charm leaves it alone: a change of it still shows."""
    ours = f"{wrapper.ENGINES}/gpu-ci"
    found = dict.fromkeys(("/x", ours), "as installed")
    charm.files = found
    charm.ensure()
    assert charm.kept().files == found
    found.update(dict.fromkeys(found, "changed"))
    bad = gpu_unit({"container-engines": "lxd"}).options
    charm.ensure(options=bad)
    assert charm.kept().files == {"/x": "changed", ours: "as installed"}
    # One that an engine refuses was put right all the same.
    charm.ensure(failures=(Failure(Part.ENGINES, "dockerd refuses it"),))
    assert charm.kept().files == found
