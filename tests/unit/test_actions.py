# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The operator's actions at the charm's door, and what it makes of their parameters."""

import contextlib
import dataclasses
import errno
import json
import types

import pytest
from ops import testing

from actions import dispatch as actions
from ci.concourse.worker.keys import WorkerKeys
from gpu_agent import paths
from gpu_agent import paths as wrapper
from gpu_agent.availability import lease_report as leases
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
from gpu_selftest import results, service, settings
from gpu_selftest.check import Check, Level, Outcome
from tests.lab.commands_model import as_juju
from tests.unit.situations import GPUS, RUNTIME, database, state, tsa

# Wrong in every part of the unit but the GPUs'.
WRONG = {"external_url": "ci.example.com", "gpus_per_task": 999, "concourse_version": "latest"}


@pytest.fixture
def pool(rooms, tmp_path, monkeypatch):
    """What is on the machine for tasks: both GPUs, the second out of use."""
    for name in ("POLICY", "STORE", "EXTERNAL", "LOG"):
        monkeypatch.setattr(wrapper, name, tmp_path / name.lower())
    monkeypatch.setattr(paths, "QUARANTINE", tmp_path / "quarantine")
    wrapper.POLICY.write_text(install.policy_text(GpuPlan(GPUS, RUNTIME)))
    wrapper.EXTERNAL.mkdir()
    dirty = {"reason": "dirty: 12.3 GiB taken without a process"}
    (wrapper.EXTERNAL / f"{GPUS[1].uuid}.json").write_text(json.dumps(dirty))
    return rooms


def run(context, action, before, **params):
    after = context.run(context.on.action(action, params=params), before)
    return dict(context.action_results), after


def test_admin_password_is_shown_by_its_action(context, rooms):
    before = context.run(context.on.update_status(), state("web", [database()]))
    shown, _ = run(context, "get-admin-password", before)
    assert shown["username"] == "admin"
    assert shown["password"] == "secret-password"
    assert shown["url"].endswith(":8080")


@pytest.mark.parametrize(
    "wrong",
    [{"config": {"deployment-mode": "web", "external-url": "ci"}}, {"relations": "no database"}],
    ids=str,
)
def test_admin_password_is_that_of_the_web_that_runs_while_it_is_kept_as_it_is(
    context, rooms, wrong
):
    relation = database()
    before = context.run(
        context.on.update_status(), state("web", [relation], external_url="http://ci.example.com")
    )
    if "config" in wrong:
        now = dataclasses.replace(before, **wrong)
    else:
        empty = dataclasses.replace(relation, remote_app_data={})
        peers = [one for one in before.relations if one.endpoint == "peers"]
        now = dataclasses.replace(before, relations=[*peers, empty])
    shown, _ = run(context, "get-admin-password", now)
    assert (shown["password"], shown["url"]) == ("secret-password", "http://ci.example.com")


def test_admin_password_on_a_worker_fails_in_words(context, rooms):
    with pytest.raises(testing.ActionFailed, match="web application"):
        run(context, "get-admin-password", state(relations=[tsa()]))


@pytest.mark.parametrize("action", ["gpu-inventory", "gpu-uncordon"])
def test_an_action_fails_in_words_where_the_option_that_it_needs_is_wrong(context, pool, action):
    params = {"gpu": "gpu-1", "reason": "why"} if action == "gpu-uncordon" else {}
    with pytest.raises(testing.ActionFailed, match="gpu-vendor 'nvida' is not allowed"):
        run(context, action, state(gpu_vendor="nvida"), **params)


@pytest.mark.parametrize("action", ["gpu-inventory", "gpu-uncordon"])
def test_an_action_fails_in_words_where_the_gpus_can_not_be_looked_at(context, pool, action):
    def fail(_):
        raise OSError(errno.EMFILE, "Too many open files")

    pool.hand_in(gpus=fail)
    params = {"gpu": "gpu-1", "reason": "why"} if action == "gpu-uncordon" else {}
    words = "the GPUs of this machine cannot be read: .*Too many open files"
    with pytest.raises(testing.ActionFailed, match=words):
        run(context, action, state(), **params)


@pytest.mark.parametrize("action", ["gpu-inventory", "gpu-leases"])
def test_an_action_answers_whatever_other_options_say(context, pool, action):
    good, _ = run(context, action, state(relations=[tsa()], enable_gpu=True))
    assert run(context, action, state(**WRONG))[0] == good


@pytest.mark.parametrize("action", ["gpu-inventory", "gpu-leases", "get-admin-password"])
@pytest.mark.parametrize("mode", ["web", "worker", "all"])
def test_looking_makes_nothing(context, pool, mode, action):
    """No key, no secret, no word to others: as on a unit whose first hook is still to come."""

    def forbidden(*_):
        raise AssertionError("a look makes nothing")

    keys = WorkerKeys(pool.concourse.keys.folder, forbidden)
    pool.hand_in(keys=keys, new_secrets=forbidden)
    before = state(mode, [database(), tsa()])
    try:
        _, after = run(context, action, before)
    except testing.ActionFailed as failed:
        after = failed.state
    assert (list(after.secrets), after.relations) == ([], before.relations)
    assert pool.calls == []


def test_gpu_inventory_shows_what_tasks_may_use(context, pool):
    before = state(relations=[tsa()], enable_gpu=True)
    results, after = run(context, "gpu-inventory", before)
    assert results["count"] == "2"
    assert results["gpu-0"].endswith("\n  for tasks")
    assert results["gpu-1"].startswith("NVIDIA A100-SXM4-80GB, 81920 MiB\n  GPU-00000001-")
    out = "in use outside CI: 12.3 GiB taken without a process"
    assert results["gpu-1"].endswith(f"\n  not for tasks ({out})")
    assert after.unit_status == before.unit_status


def test_gpu_inventory_where_tasks_get_none(context, pool):
    wrapper.POLICY.write_text(json.dumps({"gpus": []}))
    results, _ = run(context, "gpu-inventory", state(relations=[tsa()]))
    assert [results[f"gpu-{n}"].endswith("\n  not for tasks") for n in (0, 1)] == [True, True]


def test_gpu_inventory_does_not_take_an_unreadable_policy_for_none(context, pool):
    wrapper.POLICY.write_text("{")
    with pytest.raises(testing.ActionFailed, match=str(wrapper.POLICY)):
        run(context, "gpu-inventory", state(relations=[tsa()]))


@pytest.mark.parametrize("action", ["gpu-inventory", "gpu-leases"])
def test_people_get_flat_results_and_programs_json_alone(context, pool, action):
    before = state(relations=[tsa()], enable_gpu=True)
    results, _ = run(context, action, before, format="text")
    assert "json" not in results
    results, _ = run(context, action, before, format="json")
    assert results.keys() == {"json"}
    found = json.loads(results["json"])
    if action == "gpu-inventory":
        assert found["allowed"] == [GPUS[0].uuid]
        assert found["out"][GPUS[1].uuid].startswith("in use outside CI: ")
    else:
        assert [device["id"] for device in found["devices"]] == [gpu.uuid for gpu in GPUS]


@pytest.mark.parametrize("enable", [True, False])
def test_gpu_leases_on_a_unit_without_a_policy_says_so(context, rooms, enable):
    before = state(relations=[tsa()], enable_gpu=enable)
    results, _ = run(context, "gpu-leases", before)
    assert results == {"state": "off: tasks get no GPU on this unit"}
    results, _ = run(context, "gpu-leases", before, format="json")
    assert results == {"json": "{}"}


def test_gpu_reclaim_hands_its_parameters_on(context, rooms, monkeypatch):
    asked = []

    def reclaim(gpu, reason, *, force):
        asked.append((gpu, reason, force))
        return {"was": "not held"}

    monkeypatch.setattr(leases, "reclaim", reclaim)
    for extra, force in (({}, False), ({"force": True}, True)):
        params = {"gpu": "1", "reason": "hangs", **extra}
        context.run(context.on.action("gpu-reclaim", params=params), state(relations=[tsa()]))
        assert context.action_results == {"was": "not held"}
        assert asked.pop() == ("1", "hangs", force)


def test_gpu_reclaim_fails_in_words(context, rooms):
    action = context.on.action("gpu-reclaim", params={"gpu": "1", "reason": "hangs"})
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
        monkeypatch.setattr(service, "start", self.start)
        monkeypatch.setattr(service, "follow", self.follow)

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


def test_gpu_selftest_shows_a_table_and_says_how_it_goes_on(context, rooms, tests):
    after = selftest(context)
    shown = context.action_results
    assert (shown["verdict"], shown["level"], shown["gpu-1"]) == ("passed", "isolation", "passed")
    assert shown["report"].startswith("passed: quick and isolation, 1 GPU, 1 check, 4.2 s\n\n")
    assert "json" not in shown
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


def test_a_program_gets_the_report_alone_of_one_that_fails_too(context, rooms, tests):
    tests.outcome = Outcome.FAILED
    with pytest.raises(testing.ActionFailed, match="Self-test failed: quick and isolation"):
        selftest(context, format="json")
    assert context.action_results.keys() == {"json"}
    (found,) = json.loads(context.action_results["json"])["results"]
    assert (found["check"], found["remedy"]) == ("xid", "reboot")


def test_a_program_reads_where_to_look_of_one_that_takes_longer(context, rooms, tests):
    tests.ends = False
    selftest(context, format="json")
    assert context.action_results.keys() == {"json"}
    assert json.loads(context.action_results["json"])["verdict"] == "running"


def test_one_that_takes_longer_runs_on_and_says_where_to_look(context, rooms, tests):
    tests.ends = False
    selftest(context, level="burn-in", gpu="gpu-1", duration="1h")
    assert tests.asked == [("burn-in", "gpu-1", 60)]
    shown = context.action_results
    assert (shown["verdict"], shown["log"]) == ("running", "/var/log/gpu-ci/selftest.log")
    assert "/var/lib/gpu-ci/selftest/history/" in shown["next"]


def test_a_duration_without_burn_in_is_refused(context, rooms, tests):
    with pytest.raises(testing.ActionFailed, match="duration '5m' is for level=burn-in only"):
        selftest(context, duration="5m")
    assert tests.asked == []


@pytest.mark.parametrize("duration", ["5", "30s", "25h", "soon", "-1m"])
def test_a_duration_that_is_not_one_is_refused(context, rooms, tests, duration):
    match = f"duration '{duration}' is not a duration from 1m to 24h"
    with pytest.raises(testing.ActionFailed, match=match):
        selftest(context, level="burn-in", duration=duration)
    assert tests.asked == []


def test_a_unit_without_gpus_for_tasks_names_the_option(context, rooms, tests, monkeypatch):
    monkeypatch.setattr(settings, "read", lambda: None)
    with pytest.raises(testing.ActionFailed, match="juju config unit enable-gpu=true"):
        selftest(context)


def test_a_unit_that_runs_web_alone_is_sent_no_further_than_to_the_worker(
    context, rooms, monkeypatch
):
    monkeypatch.setattr(settings, "read", lambda: None)
    action = context.on.action("gpu-selftest")
    with pytest.raises(testing.ActionFailed, match="a unit of the worker application") as failed:
        context.run(action, state("web", [database()]))
    assert "enable-gpu" not in failed.value.message


@pytest.mark.parametrize("fails", [False, True])
def test_the_next_command_can_be_pasted_out_of_what_juju_prints(context, rooms, fails):
    path = "/var/backups/gpu-ci/web-0-20261124_104123.tar"
    command = f"juju ssh --pty=false web/0 sudo cat {path} > web-0-20261124_104123.tar"

    def backup(*_):
        if fails:
            raise actions.ActionError("no", {"next": command})
        return {"next": command}

    rooms.hand_in(backups=types.SimpleNamespace(backup=backup))
    with contextlib.suppress(testing.ActionFailed):
        context.run(context.on.action("backup"), state("web", [database()]))
    lines = as_juju(context.action_results).splitlines()
    assert command in map(str.strip, lines)
