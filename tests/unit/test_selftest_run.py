# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What follows from a failed check, and what a verdict changes: quarantine, and the way back."""

import dataclasses
import json

import pytest

from gpu_agent import paths
from gpu_agent import paths as wrapper
from gpu_agent.availability import quarantine
from gpu_agent.model.host import Machine, Toolkit
from gpu_agent.model.inventory import Inventory, State
from gpu_agent.model.leases import Lease
from gpu_selftest import last_pass, results, run
from gpu_selftest.check import Check, Level, Outcome, Request
from gpu_selftest.last_pass import Records
from gpu_selftest.quick.host_checks import Look
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
def records(tmp_path, monkeypatch):
    """Records, and a quarantine, in folders of the test's own."""
    monkeypatch.setattr(paths, "QUARANTINE", tmp_path / "quarantine")
    return Records(tmp_path / "selftest", tmp_path / "run" / "selftest.done")


def conclude(records, *found, level=Level.ISOLATION, gpu="", device="cuda"):
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
    run.conclude(SETTINGS, report, records)
    return report


def out():
    return {entry.uuid: entry.check for entry in quarantine.read()}


def test_a_gpu_that_failed_is_out_with_reason_and_remedy(records):
    report = conclude(records, failed(HEALTH, FIRST), passed(HEALTH, SECOND))
    (entry,) = quarantine.read()
    assert (entry.uuid, entry.reason, entry.check) == (FIRST, "xid says: so", "xid")
    assert (entry.level, entry.remedy, entry.by) == ("quick", "reboot", quarantine.SELF_TEST)
    assert records.report() == report
    assert records.kept() == ""


def test_a_failure_of_the_worker_takes_all_out(records):
    conclude(records, failed(FILES), passed(HEALTH, FIRST), passed(HEALTH, SECOND))
    assert out() == {FIRST: "gpu-runtime", SECOND: "gpu-runtime"}


def test_a_lost_gpu_is_out_too_though_tasks_cannot_get_it_now(records):
    conclude(records, failed(HEALTH, "GPU-gone"))
    assert out() == {"GPU-gone": "xid"}


def test_the_first_failure_is_the_reason(records):
    conclude(records, failed(HEALTH, FIRST), failed(LEASE, FIRST))
    assert out() == {FIRST: "xid"}


@pytest.mark.parametrize("outcome", [Outcome.WARNING, Outcome.SKIPPED, Outcome.NOT_RUN])
def test_nothing_but_a_failure_takes_a_gpu_out(records, outcome):
    conclude(records, HEALTH.result(outcome, "so", gpu=FIRST))
    assert out() == {}


def test_it_returns_when_the_level_that_failed_it_passes(records):
    conclude(records, failed(LEASE, FIRST))
    conclude(records, passed(HEALTH, FIRST), level=Level.QUICK)
    assert out() == {FIRST: "lease"}
    conclude(records, passed(HEALTH, FIRST), passed(LEASE, FIRST), level=Level.ISOLATION)
    assert out() == {}


def test_a_higher_level_brings_it_back_too_and_its_own_failure_keeps_it_out(records):
    conclude(records, failed(HEALTH, FIRST))
    conclude(
        records,
        passed(HEALTH, FIRST),
        passed(LEASE, FIRST),
        failed(RATE, FIRST),
        level=Level.COMPUTE,
    )
    assert out() == {FIRST: "rate"}
    conclude(records, passed(HEALTH, FIRST), level=Level.ISOLATION)
    assert out() == {FIRST: "rate"}


def test_a_lower_level_that_fails_does_not_make_the_way_back_shorter(records):
    conclude(records, failed(RATE, FIRST), level=Level.COMPUTE)
    conclude(records, failed(HEALTH, FIRST), level=Level.QUICK)
    assert out() == {FIRST: "xid"}
    conclude(records, passed(HEALTH, FIRST), level=Level.QUICK)
    assert out() == {FIRST: "xid"}
    conclude(records, passed(HEALTH, FIRST), passed(RATE, FIRST), level=Level.COMPUTE)
    assert out() == {}


def test_it_proves_nothing_of_what_the_watch_saw_after_it_had_begun(records):
    for since, there in (("2026-11-21T17:00:03Z", {FIRST}), ("2026-11-21T16:59:59Z", set())):
        quarantine.put(FIRST, "Xid 79", "xid", "isolation", "", quarantine.HEALTH)
        record = paths.QUARANTINE / f"{FIRST}.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"since": since}))
        conclude(records, passed(HEALTH, FIRST), passed(LEASE, FIRST), level=Level.ISOLATION)
        assert set(out()) == there
        quarantine.lift(FIRST)


@pytest.mark.parametrize("late", [not_run(HEALTH, FIRST), not_run(FILES)])
def test_what_could_not_be_tested_brings_nothing_back(records, late):
    conclude(records, failed(HEALTH, FIRST))
    conclude(records, late)
    assert out() == {FIRST: "xid"}


def test_what_could_not_be_tested_above_the_level_that_failed_does_not_matter(records):
    conclude(records, failed(HEALTH, FIRST))
    conclude(records, passed(HEALTH, FIRST), not_run(LEASE, FIRST))
    assert out() == {}


def test_one_gpu_alone_says_nothing_of_the_others(records):
    conclude(records, failed(HEALTH, FIRST), failed(HEALTH, SECOND))
    conclude(records, passed(HEALTH, FIRST), gpu=FIRST)
    assert out() == {SECOND: "xid"}
    assert records.kept() == ""


def test_what_the_operator_took_out_stays_whatever_a_test_says(records):
    quarantine.cordon(FIRST, "fan")
    conclude(records, failed(HEALTH, FIRST))
    assert quarantine.find(FIRST).reason == "fan"
    conclude(records, passed(HEALTH, FIRST))
    assert quarantine.find(FIRST).by == quarantine.OPERATOR


def test_the_cpu_proves_no_gpu(records):
    conclude(records, failed(HEALTH, FIRST))
    conclude(
        records, failed(RATE, SECOND), passed(HEALTH, FIRST), device="cpu", level=Level.COMPUTE
    )
    assert out() == {FIRST: "xid"}
    assert records.kept() == ""
    assert len([*(records.home / "history").iterdir()]) == 2


@pytest.mark.parametrize(
    ("found", "level", "subject"),
    [
        ((passed(LEASE, FIRST),), Level.ISOLATION, "abc"),
        ((passed(LEASE, FIRST), skipped(RATE)), Level.COMPUTE, "abc"),
        ((passed(HEALTH, FIRST),), Level.QUICK, ""),
        ((passed(LEASE, FIRST), not_run(DOOR)), Level.ISOLATION, ""),
    ],
)
def test_isolation_is_proven_by_nothing_less(records, found, level, subject):
    conclude(records, *found, level=level)
    assert records.kept() == subject


@pytest.mark.parametrize(
    ("gpu", "device", "tested"), [("", "cuda", True), (FIRST, "cuda", False), ("", "cpu", False)]
)
def test_all_gpus_are_tested_since_the_start_by_nothing_less(records, gpu, device, tested):
    conclude(records, failed(HEALTH, FIRST), gpu=gpu, device=device)
    assert records.is_tested() is tested


# ---- what a job can bring about by itself ----


@pytest.mark.parametrize("failure", [failed(DISK), failed(HEAT, FIRST)])
def test_what_a_job_can_bring_about_is_told_and_takes_no_gpu_out(records, failure):
    report = conclude(records, failure, passed(HEALTH, FIRST), passed(HEALTH, SECOND))
    assert report.outcome == records.report().outcome == "failed"
    assert out() == {}


@pytest.mark.parametrize("failure", [failed(DISK), failed(HEAT, FIRST)])
def test_it_keeps_no_gpu_out_either(records, failure):
    conclude(records, failed(HEALTH, FIRST), failure)
    assert out() == {FIRST: "xid"}
    conclude(records, passed(HEALTH, FIRST), failure, level=Level.QUICK)
    assert out() == {}


def test_a_quarantine_of_before_that_was_for_a_full_disk_ends_though_it_is_full_still(records):
    quarantine.put(FIRST, "disk full: 0.1 GB free", "disk", "quick", "make room")
    conclude(records, failed(DISK), passed(HEALTH, FIRST), level=Level.QUICK)
    assert out() == {}


def test_without_room_nothing_more_is_made_and_isolation_is_not_proven(records):
    asked, told = later(failed(DISK))
    assert asked == []
    assert told == [("lease", "", "disk failed"), ("annotation", "", "disk failed")]
    conclude(records, failed(DISK), not_run(LEASE), not_run(DOOR))
    assert records.kept() == ""


def test_heat_spares_a_gpu_no_test_that_may_tell_more(records):
    assert later(failed(HEAT, FIRST), passed(HEALTH, SECOND)) == ([[FIRST, SECOND]], [])
    conclude(records, failed(HEAT, FIRST), passed(LEASE, FIRST), passed(LEASE, SECOND))
    assert records.kept() == "abc"


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
def test_whose_heat_is_a_jobs_is_told_by_the_leases(held, busy):
    assert run._busy(GPUS, held) == busy


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


def levels(*found, **others):
    """Levels of which quick gives these results, on a machine with two cards."""
    values = {
        "nodes": lambda: ("nvidia0", "nvidia1"),
        "look": lambda _: Look(INVENTORY, MACHINE),
        "quick": lambda *_: [*found],
    }
    return run.Levels(**values | others)


def made(levels):
    return run.run(SETTINGS, Request("r"), lambda _: None, lambda _: None, levels)


@pytest.mark.parametrize("unknown", ["", "no time for nvidia-container-runtime --version"])
def test_what_could_not_be_told_proves_nothing_and_is_tested_at_the_next_event(unknown):
    report = made(levels(look=lambda _: Look(INVENTORY, MACHINE, unknown=unknown)))
    assert bool(report.subject) == (not unknown)


def test_what_fails_is_out_of_use_before_the_next_level_begins():
    seen, reached = [], []

    def isolate(_settings, gpus, _progress):
        seen.append(([gpu.uuid for gpu in gpus], out()))
        return [passed(LEASE, gpu.uuid) for gpu in gpus]

    checks = levels(failed(HEALTH, FIRST), isolation=isolate)
    for device, quarantined in (("cpu", {}), ("cuda", {FIRST: "xid"})):
        request = Request("r", Level.ISOLATION, device=device)
        report = run.run(SETTINGS, request, lambda _: None, reached.append, checks)
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
    records, after, said, outcome
):
    """As LXD does it to an instance; what fails then may be for that alone."""
    now = {"nvidia0", "nvidia1"}

    def quick(*_):
        now.clear()
        now.update(after)
        host = [failed(DISK), failed(HEAT, FIRST)]
        return [*host, failed(HEALTH, FIRST), passed(HEALTH, SECOND)]

    report = made(levels(nodes=lambda: tuple(sorted(now)), quick=quick))
    run.conclude(SETTINGS, report, records)
    told = {result.check: result for result in report.results if result.gpu == FIRST}
    assert told["xid"].outcome is outcome
    assert said in told["xid"].text
    assert bool(out()) == (outcome is Outcome.FAILED)
    # What takes no GPU out says what it said.
    assert told["throttle"].outcome is Outcome.FAILED


def test_nodes_that_nvml_makes_when_it_is_first_asked_spare_no_gpu():
    there = []

    def look(_settings):
        there.append("nvidia0")
        return Look(INVENTORY, MACHINE)

    report = made(levels(failed(HEALTH, FIRST), look=look, nodes=lambda: tuple(there)))
    assert report.outcome == "failed"
