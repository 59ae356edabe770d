# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What follows from a failed check, and what a verdict changes: quarantine, and the way back."""

import dataclasses

import pytest

from gpu_agent import paths
from gpu_agent import paths as wrapper
from gpu_agent.availability import lease_report as leases
from gpu_agent.availability import quarantine
from gpu_agent.gpu.vendors import device_nodes as nodes
from gpu_agent.model.host import Machine, Toolkit
from gpu_agent.model.inventory import Inventory, State
from gpu_agent.model.leases import Lease
from gpu_selftest import last_pass, results, run
from gpu_selftest.check import Check, Level, Outcome
from gpu_selftest.isolation import level as isolation_level
from gpu_selftest.quick import host_checks
from gpu_selftest.settings import Settings
from tests.unit.situations import GPUS

FIRST, SECOND = (gpu.uuid for gpu in GPUS)
NOT_RUN = Outcome.NOT_RUN
SETTINGS = Settings("worker/0", gpus=GPUS, files={str(wrapper.POLICY): "sha256:1", "/x": "2"})
HEALTH = Check("xid", Level.QUICK, "no Xid", remedy="reboot", each_gpu=True)
FILES = Check("gpu-runtime", Level.QUICK, "it is as it was", remedy="wait")
LEASE = Check("lease", Level.ISOLATION, "a task sees its GPU", remedy="look", each_gpu=True)
DOOR = Check("annotation", Level.ISOLATION, "an annotation brings no GPU", remedy="look")
DISK = Check("disk", Level.QUICK, "there is room", remedy="make room", condemns=False)
HEAT = Check("throttle", Level.QUICK, "it is cool", remedy="fan", each_gpu=True, condemns=False)
RATE = Check("rate", Level.COMPUTE, "it is fast", remedy="clean the fan", each_gpu=True)

passed, failed, not_run, skipped = (
    lambda check, gpu="", outcome=outcome: check.result(outcome, f"{check.id} says: so", gpu=gpu)
    for outcome in (Outcome.PASSED, Outcome.FAILED, Outcome.NOT_RUN, Outcome.SKIPPED)
)


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """The reports that were kept; quarantine is in a folder of the test's own."""
    kept = []
    monkeypatch.setattr(paths, "QUARANTINE", tmp_path / "quarantine")
    monkeypatch.setattr(last_pass, "PATH", tmp_path / "proven")
    monkeypatch.setattr(last_pass, "TESTED", tmp_path / "run" / "selftest.done")
    monkeypatch.setattr(results, "save", kept.append)
    return kept


def conclude(*found, level=Level.ISOLATION, gpu="", device="cuda"):
    report = results.Report(
        run=results.new_run(),
        subject="abc",
        level=level,
        device=device,
        gpu=gpu,
        outcome=results.outcome(found),
        started="2026-11-21T17:00:00+00:00",
        seconds=1.0,
        results=tuple(found),
    )
    run.conclude(SETTINGS, report)
    return report


def out():
    return {entry.uuid: entry.check for entry in quarantine.read()}


def test_a_gpu_that_failed_is_out_with_reason_and_remedy(kept):
    report = conclude(failed(HEALTH, FIRST), passed(HEALTH, SECOND))
    (entry,) = quarantine.read()
    assert (entry.uuid, entry.reason, entry.check) == (FIRST, "xid says: so", "xid")
    assert (entry.level, entry.remedy, entry.by) == ("quick", "reboot", quarantine.SELF_TEST)
    assert kept == [report]
    assert last_pass.kept() == ""


def test_a_failure_of_the_worker_takes_all_out():
    conclude(failed(FILES), passed(HEALTH, FIRST), passed(HEALTH, SECOND))
    assert out() == {FIRST: "gpu-runtime", SECOND: "gpu-runtime"}


def test_a_lost_gpu_is_out_too_though_tasks_cannot_get_it_now():
    conclude(failed(HEALTH, "GPU-gone"))
    assert out() == {"GPU-gone": "xid"}


def test_the_first_failure_is_the_reason():
    conclude(failed(HEALTH, FIRST), failed(LEASE, FIRST))
    assert out() == {FIRST: "xid"}


@pytest.mark.parametrize("outcome", [Outcome.WARNING, Outcome.SKIPPED, Outcome.NOT_RUN])
def test_nothing_but_a_failure_takes_a_gpu_out(outcome):
    conclude(HEALTH.result(outcome, "so", gpu=FIRST))
    assert out() == {}


def test_it_returns_when_the_level_that_failed_it_passes():
    conclude(failed(LEASE, FIRST))
    conclude(passed(HEALTH, FIRST), level=Level.QUICK)
    assert out() == {FIRST: "lease"}
    conclude(passed(HEALTH, FIRST), passed(LEASE, FIRST), level=Level.ISOLATION)
    assert out() == {}


def test_a_higher_level_brings_it_back_too_and_its_own_failure_keeps_it_out():
    conclude(failed(HEALTH, FIRST))
    conclude(passed(HEALTH, FIRST), passed(LEASE, FIRST), failed(RATE, FIRST), level=Level.COMPUTE)
    assert out() == {FIRST: "rate"}
    conclude(passed(HEALTH, FIRST), level=Level.ISOLATION)
    assert out() == {FIRST: "rate"}


def test_a_lower_level_that_fails_does_not_make_the_way_back_shorter():
    conclude(failed(RATE, FIRST), level=Level.COMPUTE)
    conclude(failed(HEALTH, FIRST), level=Level.QUICK)
    assert out() == {FIRST: "xid"}
    conclude(passed(HEALTH, FIRST), level=Level.QUICK)
    assert out() == {FIRST: "xid"}
    conclude(passed(HEALTH, FIRST), passed(RATE, FIRST), level=Level.COMPUTE)
    assert out() == {}


def test_it_proves_nothing_of_what_the_watch_saw_after_it_had_begun(monkeypatch):
    for since, there in (("2026-11-21T17:00:03Z", {FIRST}), ("2026-11-21T16:59:59Z", set())):
        monkeypatch.setattr(quarantine, "_since", lambda _, then=since: then)
        quarantine.put(FIRST, "Xid 79", "xid", "isolation", "", quarantine.HEALTH)
        conclude(passed(HEALTH, FIRST), passed(LEASE, FIRST), level=Level.ISOLATION)
        assert set(out()) == there
        quarantine.lift(FIRST)


@pytest.mark.parametrize("late", [not_run(HEALTH, FIRST), not_run(FILES)])
def test_what_could_not_be_tested_brings_nothing_back(late):
    conclude(failed(HEALTH, FIRST))
    conclude(late)
    assert out() == {FIRST: "xid"}


def test_what_could_not_be_tested_above_the_level_that_failed_does_not_matter():
    conclude(failed(HEALTH, FIRST))
    conclude(passed(HEALTH, FIRST), not_run(LEASE, FIRST))
    assert out() == {}


def test_one_gpu_alone_says_nothing_of_the_others():
    conclude(failed(HEALTH, FIRST), failed(HEALTH, SECOND))
    conclude(passed(HEALTH, FIRST), gpu=FIRST)
    assert out() == {SECOND: "xid"}
    assert last_pass.kept() == ""


def test_what_the_operator_took_out_stays_whatever_a_test_says():
    quarantine.cordon(FIRST, "fan")
    conclude(failed(HEALTH, FIRST))
    assert quarantine.find(FIRST).reason == "fan"
    conclude(passed(HEALTH, FIRST))
    assert quarantine.find(FIRST).by == quarantine.OPERATOR


def test_the_cpu_proves_no_gpu(kept):
    conclude(failed(HEALTH, FIRST))
    conclude(failed(RATE, SECOND), passed(HEALTH, FIRST), device="cpu", level=Level.COMPUTE)
    assert out() == {FIRST: "xid"}
    assert last_pass.kept() == ""
    assert len(kept) == 2


@pytest.mark.parametrize(
    ("found", "level", "subject"),
    [
        ((passed(LEASE, FIRST),), Level.ISOLATION, "abc"),
        ((passed(LEASE, FIRST), skipped(RATE)), Level.COMPUTE, "abc"),
        ((passed(HEALTH, FIRST),), Level.QUICK, ""),
        ((passed(LEASE, FIRST), not_run(DOOR)), Level.ISOLATION, ""),
    ],
)
def test_isolation_is_proven_by_nothing_less(found, level, subject):
    conclude(*found, level=level)
    assert last_pass.kept() == subject


@pytest.mark.parametrize(
    ("gpu", "device", "tested"), [("", "cuda", True), (FIRST, "cuda", False), ("", "cpu", False)]
)
def test_all_gpus_are_tested_since_the_start_by_nothing_less(gpu, device, tested):
    conclude(failed(HEALTH, FIRST), gpu=gpu, device=device)
    assert last_pass.is_tested() is tested


# ---- what a job can bring about by itself ----


@pytest.mark.parametrize("failure", [failed(DISK), failed(HEAT, FIRST)])
def test_what_a_job_can_bring_about_is_told_and_takes_no_gpu_out(kept, failure):
    report = conclude(failure, passed(HEALTH, FIRST), passed(HEALTH, SECOND))
    assert report.outcome == kept[0].outcome == "failed"
    assert out() == {}


@pytest.mark.parametrize("failure", [failed(DISK), failed(HEAT, FIRST)])
def test_it_keeps_no_gpu_out_either(failure):
    conclude(failed(HEALTH, FIRST), failure)
    assert out() == {FIRST: "xid"}
    conclude(passed(HEALTH, FIRST), failure, level=Level.QUICK)
    assert out() == {}


def test_a_quarantine_of_before_that_was_for_a_full_disk_ends_though_it_is_full_still():
    quarantine.put(FIRST, "disk full: 0.1 GB free", "disk", "quick", "make room")
    conclude(failed(DISK), passed(HEALTH, FIRST), level=Level.QUICK)
    assert out() == {}


def test_without_room_nothing_more_is_made_and_isolation_is_not_proven():
    asked, told = later(failed(DISK))
    assert asked == []
    assert told == [("lease", "", "disk failed"), ("annotation", "", "disk failed")]
    conclude(failed(DISK), not_run(LEASE), not_run(DOOR))
    assert last_pass.kept() == ""


def test_heat_spares_a_gpu_no_test_that_may_tell_more():
    assert later(failed(HEAT, FIRST), passed(HEALTH, SECOND)) == ([[FIRST, SECOND]], [])
    conclude(failed(HEAT, FIRST), passed(LEASE, FIRST), passed(LEASE, SECOND))
    assert last_pass.kept() == "abc"


@pytest.mark.parametrize(
    ("held", "busy"),
    [
        ({}, set()),
        ({"c": Lease((FIRST,))}, {FIRST}),
        ({"c": Lease((FIRST,), occupied=False)}, set()),
        ({"c": Lease((FIRST, SECOND))}, {FIRST, SECOND}),
        (None, {FIRST, SECOND}),
    ],
)
def test_whose_heat_is_a_jobs_is_told_by_the_leases(monkeypatch, held, busy):
    monkeypatch.setattr(leases, "holders", lambda: held)
    assert run._busy(GPUS) == busy


def later(*earlier, checks=(LEASE, DOOR), gpus=GPUS):
    asked = []

    def make(good):
        asked.append([gpu.uuid for gpu in good])
        return [passed(LEASE, gpu.uuid) for gpu in good]

    found = run._unless_failed(checks, gpus, list(earlier), make)
    return asked, [(one.check, one.gpu, one.text) for one in found if one.outcome is NOT_RUN]


def test_a_gpu_that_failed_is_tested_no_further_and_the_others_are():
    asked, told = later(failed(HEALTH, FIRST), passed(HEALTH, SECOND))
    assert asked == [[SECOND]]
    assert told == [("lease", FIRST, "xid failed")]


def test_where_all_failed_each_check_says_so():
    asked, told = later(failed(HEALTH, FIRST), failed(HEALTH, SECOND))
    assert asked == []
    assert {(check, gpu) for check, gpu, _ in told} == {
        (check, gpu) for check in ("lease", "annotation") for gpu in (FIRST, SECOND)
    }


def test_after_a_failure_of_the_worker_nothing_more_runs_and_the_first_is_named():
    asked, told = later(failed(FILES), failed(DOOR), failed(HEALTH, FIRST))
    assert asked == []
    assert told == [("lease", "", "gpu-runtime failed"), ("annotation", "", "gpu-runtime failed")]


def test_what_only_warns_prevents_nothing():
    warned = HEALTH.result(Outcome.WARNING, "so", gpu=FIRST)
    assert later(warned, not_run(FILES)) == ([[FIRST, SECOND]], [])


INVENTORY = Inventory(State.READY, GPUS, driver="580.95.05", vendor="nvidia")
MACHINE = Machine("amd64", Toolkit("/usr/bin/nvidia-container-runtime", "1.20.0"))


@pytest.mark.parametrize(
    ("settings", "inventory", "machine"),
    [
        ({"gpus": GPUS[:1]}, {}, {}),
        ({"min_driver_version": "535"}, {}, {}),
        ({"files": {**SETTINGS.files, "/x": "3"}}, {}, {}),
        ({"allocation": "shared"}, {}, {}),
        ({}, {"driver": "595.71.05"}, {}),
        ({}, {}, {"toolkit": Toolkit("/usr/bin/nvidia-container-runtime", "1.20.1")}),
    ],
)
def test_what_isolation_proves_is_another_after_each_change(settings, inventory, machine):
    changed = last_pass.subject(
        dataclasses.replace(SETTINGS, **settings),
        dataclasses.replace(INVENTORY, **inventory),
        dataclasses.replace(MACHINE, **machine),
    )
    assert changed != last_pass.subject(SETTINGS, INVENTORY, MACHINE)


def test_what_the_policy_says_besides_is_nothing_that_isolation_proves():
    changed = {**SETTINGS.files, str(wrapper.POLICY): "sha256:2"}
    again = last_pass.subject(dataclasses.replace(SETTINGS, files=changed), INVENTORY, MACHINE)
    assert again == last_pass.subject(SETTINGS, INVENTORY, MACHINE)
    assert str(wrapper.POLICY) in SETTINGS.files


def test_what_engines_run_by_is_nothing_that_isolation_proves():
    more = {f"{wrapper.ENGINES}/gpu-ci": "file", f"{wrapper.ENGINES_CONFIG}": "folder"}
    changed = dataclasses.replace(SETTINGS, files={**SETTINGS.files, **more})
    again = last_pass.subject(changed, INVENTORY, MACHINE)
    assert again == last_pass.subject(SETTINGS, INVENTORY, MACHINE)


@pytest.mark.parametrize("unknown", ["", "no time for nvidia-container-runtime --version"])
def test_what_could_not_be_told_proves_nothing_and_is_tested_at_the_next_event(
    monkeypatch, unknown
):
    look = host_checks.Look(INVENTORY, MACHINE, unknown=unknown)
    monkeypatch.setattr(host_checks, "look", lambda _: look)
    monkeypatch.setattr(host_checks, "run", lambda *_: [])
    monkeypatch.setattr(run, "_health", lambda *_: [])
    report = run.run(SETTINGS, run.Request("r"), lambda _: None, lambda _: None)
    assert bool(report.subject) == (not unknown)


def test_what_fails_is_out_of_use_before_the_next_level_begins(monkeypatch):
    seen, reached = [], []
    look = host_checks.Look(INVENTORY, MACHINE)
    monkeypatch.setattr(host_checks, "look", lambda _: look)
    monkeypatch.setattr(host_checks, "run", lambda *_: [failed(HEALTH, FIRST)])
    monkeypatch.setattr(run, "_health", lambda *_: [])

    def isolate(_settings, gpus, _progress):
        seen.append(([gpu.uuid for gpu in gpus], out()))
        return [passed(LEASE, gpu.uuid) for gpu in gpus]

    monkeypatch.setattr(isolation_level, "run", isolate)
    for device, quarantined in (("cpu", {}), ("cuda", {FIRST: "xid"})):
        request = run.Request("r", Level.ISOLATION, device=device)
        report = run.run(SETTINGS, request, lambda _: None, reached.append)
        assert reached.pop() is Level.ISOLATION
        assert report.outcome == "failed"
        assert seen.pop() == ([SECOND], quarantined)


@pytest.mark.parametrize(
    ("after", "said", "outcome"),
    [
        ({"nvidia0"}, "nvidia1 removed", Outcome.NOT_RUN),
        ({"nvidia0", "nvidia1", "nvidia2"}, "nvidia2 added", Outcome.NOT_RUN),
        ({"nvidia0", "nvidia1"}, "xid says: so", Outcome.FAILED),
    ],
)
def test_a_card_that_is_taken_away_or_passed_in_meanwhile_condemns_none(
    monkeypatch, after, said, outcome
):
    """As LXD does it to an instance; what fails then may be for that alone."""
    now = {"nvidia0", "nvidia1"}
    monkeypatch.setattr(nodes, "present", lambda: tuple(sorted(now)))
    look = host_checks.Look(INVENTORY, MACHINE)
    monkeypatch.setattr(host_checks, "look", lambda _: look)
    monkeypatch.setattr(host_checks, "run", lambda *_: [failed(DISK), failed(HEAT, FIRST)])

    def check(*_):
        now.clear()
        now.update(after)
        return [failed(HEALTH, FIRST), passed(HEALTH, SECOND)]

    monkeypatch.setattr(run, "_health", check)
    report = run.run(SETTINGS, run.Request("r"), lambda _: None, lambda _: None)
    run.conclude(SETTINGS, report)
    told = {result.check: result for result in report.results if result.gpu == FIRST}
    assert told["xid"].outcome is outcome
    assert said in told["xid"].text
    assert bool(out()) == (outcome is Outcome.FAILED)
    # What takes no GPU out says what it said.
    assert told["throttle"].outcome is Outcome.FAILED


def test_nodes_that_nvml_makes_when_it_is_first_asked_spare_no_gpu(monkeypatch):
    there = []
    monkeypatch.setattr(nodes, "present", lambda: tuple(there))

    def look(_settings):
        there.append("nvidia0")
        return host_checks.Look(INVENTORY, MACHINE)

    monkeypatch.setattr(host_checks, "look", look)
    monkeypatch.setattr(host_checks, "run", lambda *_: [failed(HEALTH, FIRST)])
    monkeypatch.setattr(run, "_health", lambda *_: [])
    report = run.run(SETTINGS, run.Request("r"), lambda _: None, lambda _: None)
    assert report.outcome == "failed"
