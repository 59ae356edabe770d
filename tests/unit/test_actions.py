# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The operator's actions at the charm's door, and what it makes of their parameters."""

import json

import pytest
from ops import testing

from oci import leases
from selftest import results, settings, unit
from selftest.check import Check, Level, Outcome
from tests.unit.situations import GPUS, database, state, tsa


def test_admin_password_is_shown_by_its_action(context, rooms):
    before = context.run(context.on.update_status(), state("web", [database()]))
    context.run(context.on.action("get-admin-password"), before)
    assert context.action_results["username"] == "admin"
    assert context.action_results["password"] == "secret-password"
    assert context.action_results["url"].endswith(":8080")


def test_admin_password_on_a_worker_fails_in_words(context, rooms):
    with pytest.raises(testing.ActionFailed, match="web application"):
        context.run(context.on.action("get-admin-password"), state(relations=[tsa()]))


@pytest.mark.parametrize("action", ["gpu-inventory", "get-admin-password"])
def test_an_action_fails_in_words_while_an_option_is_wrong(context, rooms, action):
    with pytest.raises(testing.ActionFailed, match="gpu-vendor 'nvida' is unknown"):
        context.run(context.on.action(action), state(gpu_vendor="nvida"))


def test_gpu_inventory_shows_what_tasks_may_use(context, rooms):
    before = state(relations=[tsa()], enable_gpu=True, gpu_device_ids="1")
    after = context.run(context.on.action("gpu-inventory"), before)
    results = context.action_results
    assert results["count"] == "2"
    assert results["gpu-0"].endswith("not for tasks")
    assert results["gpu-1"].startswith("NVIDIA A100-SXM4-80GB, 81920 MiB, GPU-00000001-")
    assert json.loads(results["json"])["allowed"] == [GPUS[1].uuid]
    assert after.unit_status == before.unit_status


def test_gpu_inventory_shows_a_cordoned_gpu_as_not_for_tasks(context, rooms):
    rooms.cordoned = ((GPUS[1].uuid, "dirty: 12.3 GiB taken without a process"),)
    before = state(relations=[tsa()], enable_gpu=True)
    context.run(context.on.action("gpu-inventory"), before)
    assert json.loads(context.action_results["json"])["allowed"] == [GPUS[0].uuid]


@pytest.mark.parametrize("enable", [True, False])
def test_gpu_leases_on_a_unit_without_a_policy_says_so(context, rooms, enable):
    context.run(context.on.action("gpu-leases"), state(relations=[tsa()], enable_gpu=enable))
    assert context.action_results == {
        "state": "off: tasks get no GPU on this unit",
        "json": "{}",
    }


def test_gpu_release_hands_its_parameters_on(context, rooms, monkeypatch):
    asked = []

    def release(gpu, reason, *, force):
        asked.append((gpu, reason, force))
        return {"released": "nobody held it"}

    monkeypatch.setattr(leases, "release", release)
    for extra, force in (({}, False), ({"force": True}, True)):
        params = {"gpu": "1", "reason": "hangs", **extra}
        context.run(context.on.action("gpu-release", params=params), state(relations=[tsa()]))
        assert context.action_results == {"released": "nobody held it"}
        assert asked.pop() == ("1", "hangs", force)


def test_gpu_release_fails_in_words(context, rooms):
    action = context.on.action("gpu-release", params={"gpu": "1", "reason": "hangs"})
    with pytest.raises(testing.ActionFailed, match="Tasks get no GPU on this unit"):
        context.run(action, state(relations=[tsa()]))


KEPT = settings.Settings("unit/0", gpus=GPUS)
CHECK = Check("xid", Level.QUICK, "no Xid", remedy="reboot", each_gpu=True)


class Runs:
    """A self-test that ends as told, and what was asked of it."""

    def __init__(self, monkeypatch):
        self.asked = []
        self.outcome = Outcome.PASSED
        self.ends = True
        monkeypatch.setattr(settings, "read", lambda: KEPT)
        monkeypatch.setattr(unit, "start", self.start)
        monkeypatch.setattr(unit, "follow", self.follow)

    def start(self, level, *, gpu, minutes):
        self.asked.append((level.value, gpu, minutes))
        return results.new_run()

    def follow(self, run, seconds, log):
        assert seconds == 600
        log("Checking the machine")
        found = (CHECK.result(self.outcome, "Xid 79: it is gone", gpu=GPUS[1].uuid),)
        outcome, started = results.outcome(found), "2026-11-21T17:00:00+00:00"
        level = Level(self.asked[-1][0])
        report = results.Report(run, "abc", level, "cuda", "", outcome, started, 4.2, found)
        return report if self.ends else None


@pytest.fixture
def tests(monkeypatch):
    return Runs(monkeypatch)


def selftest(context, **params):
    action = context.on.action("gpu-selftest", params={"level": "isolation", **params})
    return context.run(action, state(relations=[tsa()], enable_gpu=True))


def test_gpu_selftest_shows_a_table_and_json_and_says_how_it_goes_on(context, rooms, tests):
    after = selftest(context)
    shown = context.action_results
    assert (shown["verdict"], shown["level"], shown["gpu-1"]) == ("passed", "isolation", "passed")
    assert shown["report"].startswith("passed: quick and isolation, 1 GPU, 1 check, 4.2 s\n\n")
    assert json.loads(shown["json"])["results"][0]["check"] == "xid"
    assert context.action_logs == ["Checking the machine"]
    assert tests.asked == [("isolation", "", 0)]
    assert after.unit_status.name == "active"
    assert rooms.worker is not None, "tags and status follow at once"


def test_a_self_test_that_fails_fails_the_action_and_shows_what_it_saw(context, rooms, tests):
    tests.outcome = Outcome.FAILED
    with pytest.raises(testing.ActionFailed, match="Self-test failed: quick and isolation"):
        selftest(context)
    assert context.action_results["gpu-1"] == "failed: xid"
    assert "Remedy: reboot" in context.action_results["report"]
    assert rooms.worker is not None


def test_one_that_takes_longer_runs_on_and_says_where_to_look(context, rooms, tests):
    tests.ends = False
    selftest(context, level="burn-in", gpu="gpu-1", duration=60)
    assert tests.asked == [("burn-in", "gpu-1", 60)]
    shown = context.action_results
    assert (shown["verdict"], shown["log"]) == ("running", "/var/log/gpu-ci/selftest.log")
    assert shown["result"].startswith("/var/lib/gpu-ci/selftest/history/")


def test_a_duration_without_burn_in_is_refused(context, rooms, tests):
    with pytest.raises(testing.ActionFailed, match="duration '5' is for level=burn-in only"):
        selftest(context, duration=5)
    assert tests.asked == []


def test_a_unit_without_gpus_for_tasks_names_the_option(context, rooms, tests, monkeypatch):
    monkeypatch.setattr(settings, "read", lambda: None)
    with pytest.raises(testing.ActionFailed, match="juju config unit enable-gpu=true"):
        selftest(context)
