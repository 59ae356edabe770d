# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A worker that is drained or paused, at the charm's door, and what may come between."""

import dataclasses
import json

import pytest
from ops import testing

from ci.concourse import release
from ci.concourse.api import build_info as handles
from ci.concourse.plan.model import Rivals
from ci.concourse.upgrade import upgrade as release_change
from ci.concourse.worker.drainable import Worker
from gpu_agent.reporting.joblog import build_names
from gpu_agent.reporting.receipts.receipt import Names
from lifecycle import drain
from machine import process
from plan import draining
from plan.draining import HAS, WAITS, Purpose
from tests.unit.situations import Failing, Release, Releases, state, tsa


class Switched(Releases):
    """8.3.0, and then another release when it is time."""

    def ensure(self, wanted, say, is_time):
        rooms = self._rooms
        if rooms.has != rooms.wants and is_time(rooms.wants):
            if rooms.release_error:
                raise rooms.release_error
            rooms.switches.append((rooms.wants, rooms.now))
            rooms.has = rooms.wants
        return Release(rooms.has)


@pytest.fixture
def worker(rooms):
    """A worker that runs Concourse 8.3.0 as process 4711, and is to have another release."""
    rooms.pid, rooms.worker_name = 4711, "ci-unit-0"
    rooms.has = rooms.wants = "8.3.0"
    rooms.switches = []
    rooms.hand_in(releases=Switched(rooms))
    rooms.drainer = drain.Drainer(rooms.concourse.worker, rooms.records)
    return rooms


def situation(*peers, **options):
    units = {number: {"drain": word} for number, word in enumerate(peers, 1)}
    peer = testing.PeerRelation("peers", peers_data=units)
    return dataclasses.replace(state(**options), relations=[peer, tsa()])


def hook(context, before, event=None):
    """A hook; what status says after it."""
    after = context.run(event or context.on.update_status(), before)
    return after.unit_status


def act(context, name, before, **params):
    context.run(context.on.action(name, params=params), before)
    return dict(context.action_results)


def told_peers(context, before):
    after = context.run(context.on.update_status(), before)
    return after.get_relations("peers")[0].local_unit_data.get("drain", "")


def begun(context, rooms, **options):
    """A drain for Concourse 8.4.0 that has begun, with a step left."""
    rooms.wants, rooms.steps = "8.4.0", ("4f0c",)
    before = situation(**options)
    hook(context, before)
    assert "worker.land" in rooms.calls
    rooms.calls.clear()
    return before


def test_the_first_hook_begins_and_ends(context, worker):
    worker.wants, worker.steps = "8.4.0", ("4f0c",)
    said = hook(context, situation())
    assert said == testing.MaintenanceStatus(
        "Draining (1 step left, 0m of 2h), then Concourse 8.4.0: step 4f0c"
    )
    assert worker.switches == []
    assert "worker.land" in worker.calls
    assert "worker.apply" not in worker.calls, "it would be started again"
    assert worker.woken == [(4711, 7200.0)]


def test_the_next_hooks_wait_and_say_how_far_it_is(context, worker):
    before = begun(context, worker)
    worker.now += 41 * 60
    said = hook(context, before)
    assert said.message.startswith("Draining (1 step left, 41m of 2h)")
    # After a web that was away it would take steps again: it is told once more.
    assert "worker.land" in worker.calls
    assert worker.woken[-1] == (4711, 7200.0 - 41 * 60)


def test_it_goes_on_when_the_worker_has_landed(context, worker):
    before = begun(context, worker)
    worker.pid, worker.steps = 0, ()
    said = hook(context, before)
    assert worker.switches == [("8.4.0", worker.now)]
    assert "worker.apply" in worker.calls
    assert said == testing.ActiveStatus("Worker ready")
    assert told_peers(context, before) == ""
    assert worker.drainer.look() is None


def test_a_step_that_its_process_has_left_is_waited_for_too(context, worker):
    """As where web went away, which has the process of a worker that lands end at once."""
    before = begun(context, worker)
    worker.pid = 0
    assert hook(context, before).message.startswith("Draining (1 step left")
    assert worker.switches == []
    assert worker.woken[-1] == (0, 30)


def test_without_a_web_an_idle_worker_waits_for_nobody(context, worker):
    worker.wants, worker.connected = "8.4.0", False
    hook(context, situation())
    assert worker.switches != []


def test_after_the_time_out_it_goes_on_and_says_without_whom(context, worker, caplog):
    before = begun(context, worker, drain_timeout="90m")
    worker.now += 90 * 60 - 1
    hook(context, before)
    assert worker.switches == []
    worker.now += 1
    hook(context, before)
    assert worker.switches == [("8.4.0", worker.now)]
    said = "Concourse 8.4.0 goes on after 1h30m and interrupts these builds: step 4f0c"
    assert said in [status.message for status in context.unit_status_history]
    assert said in " ".join(log.message for log in context.juju_log)
    # Its process, which lands, comes up anew.
    assert worker.calls.index("worker.halt") < worker.calls.index("worker.apply")


def test_a_timeout_that_is_changed_meanwhile_counts_at_once(context, worker):
    before = begun(context, worker)
    worker.now += 600
    assert "10m of 20m" in hook(context, situation(drain_timeout="20m")).message
    hook(context, situation(drain_timeout="10m"))
    assert worker.switches != []
    assert before


def test_a_worker_that_web_gives_nothing_waits_for_no_build(context, worker):
    """Its web has another release already, and could not even be told to let it land."""
    worker.wants, worker.has, worker.steps = "8.3.0", "8.2.5", ("4f0c",)
    worker.installed = Release("8.2.5")
    hook(context, situation())
    assert worker.switches != []
    assert "worker.land" not in worker.calls


def test_an_upgrade_that_fails_leaves_the_worker_at_work(context, worker):
    before = begun(context, worker)
    worker.pid, worker.steps = 0, ()
    worker.release_error = release.ReleaseError("No space left on device")
    said = hook(context, before)
    assert said == testing.BlockedStatus("No space left on device")
    assert worker.drainer.look() is None
    assert not worker.drainer.keeps_down()


def test_a_timeout_of_0_waits_for_nobody(context, worker):
    worker.wants, worker.steps = "8.4.0", ("4f0c",)
    hook(context, situation(drain_timeout="0"))
    assert worker.switches != []
    assert "worker.land" not in worker.calls


def test_the_option_set_back_has_the_worker_run_on(context, worker):
    before = begun(context, worker)
    worker.wants = "8.3.0"
    said = hook(context, before)
    assert worker.calls.count("worker.take_up") == 1
    assert worker.switches == []
    assert said == testing.ActiveStatus("Worker ready")


def test_a_reboot_meanwhile_leaves_no_build_to_wait_for(context, worker):
    before = begun(context, worker)
    worker.boot, worker.pid, worker.steps = "second boot", 0, ()
    hook(context, before, context.on.start())
    assert worker.switches != []
    assert "worker.apply" in worker.calls


def test_a_machine_that_was_rebooted_for_starts_its_worker_again(context, worker):
    worker.drainer.ready(Purpose.REBOOT, "reboot", draining.Rules("unit/0", 600), print)
    assert worker.drainer.keeps_down()
    worker.boot = "second boot"
    assert not worker.drainer.keeps_down()
    assert worker.drainer.look() is None


def test_a_unit_that_is_removed_meanwhile_retires_its_worker(context, worker):
    before = begun(context, worker)
    hook(context, before, context.on.stop())
    assert "worker.retire" in worker.calls
    assert worker.drainer.look() is None
    assert not worker.drainer.keeps_down()


@pytest.mark.parametrize(
    ("said", "patience"), [("2h", 300), ("1m", 60), ("0", 0), ("for ever", 300)]
)
def test_a_removal_waits_for_five_minutes_at_most(context, worker, said, patience):
    waited = []
    worker.hand_in(retire_worker=lambda seconds, _: waited.append(seconds))
    context.run(context.on.stop(), situation(drain_timeout=said))
    assert waited == [patience]


def test_a_drain_that_nobody_goes_on_with_ends_by_itself(context, worker, monkeypatch):
    before = begun(context, worker)
    monkeypatch.setattr(release_change, "ensure", lambda seen, *_, **__: seen)
    worker.now += 7200 + draining.WORK
    hook(context, before)
    assert "worker.apply" not in worker.calls
    worker.now += 1
    hook(context, before)
    assert worker.calls[-3:].count("worker.apply") == 1
    assert "worker.take_up" in worker.calls


def test_another_purpose_waits_for_the_first(context, worker):
    begun(context, worker)
    worker.pid, worker.steps = 0, ()
    rules = draining.Rules("unit/0", 7200)
    assert worker.drainer.ready(Purpose.REBOOT, "reboot", rules, print) is False
    assert worker.drainer.cancel(Purpose.REBOOT) is False
    assert worker.drainer.keeps_down()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"purpose": "war"}', "null"])
def test_a_damaged_record_is_none(context, worker, text):
    before = begun(context, worker)
    (worker.records.drain.folder / "drain.json").write_text(text)
    assert hook(context, before).message.startswith("Draining (1 step left, 0m of 2h)")


def test_what_can_not_be_noted_is_not_begun(context, worker):
    worker.wants, worker.steps = "8.4.0", ("4f0c",)
    full = OSError(28, "No space left on device")
    worker.hand_in(drain=Failing(worker.records.drain, "write", full))
    hook(context, situation())
    assert "worker.land" not in worker.calls
    assert worker.switches == []


def test_units_ask_first_and_hear_of_each_other(context, worker):
    worker.wants, worker.steps = "8.4.0", ("4f0c",)
    before = situation("", "")
    said = hook(context, before)
    assert said.name == "waiting"
    assert said.message.startswith("Queued for Concourse 8.4.0: ")
    assert "worker.land" not in worker.calls
    assert "worker.apply" in worker.calls, "it works as before"
    assert worker.woken == [(0, 30)]
    assert told_peers(context, before) == WAITS
    worker.now += 30
    assert told_peers(context, before) == HAS
    assert "worker.land" in worker.calls


def test_a_unit_waits_for_the_one_that_drains(context, worker):
    worker.wants = "8.4.0"
    before = situation("", HAS)
    hook(context, before)
    worker.now += 600
    assert hook(context, before).message == "Queued for Concourse 8.4.0: unit/2 drains first"
    assert hook(context, situation("", "")).message.startswith("Draining")


def test_builds_have_their_names_where_web_is_here(context, worker, monkeypatch, tmp_path):
    rows = {"4f0c": Names("main", "train", "fit", "12"), "77": Names("main", "train", "fit", "12")}
    monkeypatch.setattr(handles, "SETTINGS", tmp_path)
    answer = process.Completed(0, build_names.as_json(rows), "")
    monkeypatch.setattr(process, "run", lambda *_, **__: answer)
    worker.steps = ("4f0c", "77")
    worker.builds = Worker().builds(worker.steps)
    act(context, "pause", situation(), reason="dust")
    assert draining.text(worker.drainer.look()) == "Paused: dust (1 build left)"
    assert worker.drainer.look().builds == ("main/train/fit #12",)


def test_pause_lands_the_worker_and_says_so(context, worker):
    before, worker.steps = situation(), ("4f0c",)
    assert act(context, "pause", before, reason="new fans") == {
        "state": "Paused: new fans (1 step left)",
        "next": "juju run unit/0 resume",
    }
    assert "worker.land" in worker.calls
    assert worker.woken == [(4711, 0)]
    assert "worker.apply" not in worker.calls
    said = testing.MaintenanceStatus("Paused: new fans (1 step left)")
    assert hook(context, before) == said
    worker.boot, worker.pid, worker.steps = "second boot", 0, ()
    for event in (context.on.start(), context.on.upgrade_charm(), context.on.config_changed()):
        assert hook(context, before, event).message == "Paused: new fans (no build left)"
    assert "worker.apply" not in worker.calls


def test_a_second_pause_says_so_and_keeps_the_new_reason(context, worker):
    before = situation()
    act(context, "pause", before, reason="new fans")
    shown = act(context, "pause", before, reason="dust")
    assert shown["was"] == "paused already: new fans"
    assert "Paused: dust" in hook(context, before).message


def test_resume_has_it_take_steps_again(context, worker):
    before = situation()
    act(context, "pause", before, reason="new fans")
    worker.calls.clear()
    assert act(context, "resume", before) == {"state": "jobs are taken again"}
    assert [name for name in worker.calls if name.startswith("worker.")] == [
        *("worker.take_up", "worker.apply"),
    ]
    assert hook(context, before) == testing.ActiveStatus("Worker ready")
    with pytest.raises(testing.ActionFailed, match="This worker is not paused"):
        act(context, "resume", before)


def test_a_resume_that_is_killed_or_fails_can_be_asked_for_again(context, worker):
    """The worker lands until its last step ends, and no later hook would start it anew."""
    before = situation()
    act(context, "pause", before, reason="new fans")
    known, error = (
        worker.concourse.worker,
        process.CommandError(["/usr/bin/systemctl"], 1, "Job failed"),
    )
    worker.hand_in(worker=Failing(known, "resume", error))
    with pytest.raises(testing.ActionFailed, match="Job failed"):
        act(context, "resume", before)
    worker.hand_in(worker=known)
    assert worker.records.drain.pause() is not None
    assert act(context, "resume", before) == {"state": "jobs are taken again"}
    assert worker.records.drain.pause() is None


def test_resume_is_no_end_of_a_drain(context, worker):
    before = begun(context, worker)
    with pytest.raises(
        testing.ActionFailed, match=r"not paused: Draining \(1 step .*, which ends by itself"
    ):
        act(context, "resume", before)
    act(context, "pause", before, reason="dust")
    assert act(context, "resume", before)["state"].startswith("Draining (1 step left")
    assert "worker.take_up" not in worker.calls


def test_a_paused_worker_is_upgraded_and_stays_paused(context, worker):
    before = situation()
    act(context, "pause", before, reason="dust")
    worker.pid, worker.wants = 0, "8.4.0"
    hook(context, before)
    assert worker.switches != []
    assert "worker.apply" not in worker.calls
    worker.wants = "8.3.0"
    hook(context, before)
    assert "worker.take_up" not in worker.calls


@pytest.mark.usefixtures("rooms")
@pytest.mark.parametrize("name", ["pause", "resume"])
def test_a_web_has_no_worker_to_pause(context, name):
    before = state("web")
    params = {"reason": "dust"} if name == "pause" else {}
    with pytest.raises(testing.ActionFailed, match=r"unit/0 runs no worker: ask a unit of the"):
        act(context, name, before, **params)


@pytest.mark.parametrize("reason", [" ", "two\nlines", "\x1b[2J"])
def test_a_reason_is_one_line(context, worker, reason):
    with pytest.raises(testing.ActionFailed, match="reason must be one line of printable text"):
        act(context, "pause", situation(), reason=reason)
    assert not worker.drainer.keeps_down()


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_a_damaged_pause_is_still_one(context, worker, text):
    act(context, "pause", situation(), reason="dust")
    (worker.records.drain.folder / "pause.json").write_text(text)
    said = hook(context, situation()).message
    assert said.startswith("Paused: the reason cannot be read")


def test_a_pause_is_not_hidden_by_what_is_worse(context, worker):
    act(context, "pause", situation(), reason="dust")
    worker.rivals = Rivals("docker.service")
    said = hook(context, situation())
    assert isinstance(said, testing.BlockedStatus)
    assert said.message.endswith(
        "; Paused: dust (no step here, but unfinished builds have data here)"
    )


def test_a_unit_without_a_worker_forgets_its_pause(context, worker):
    act(context, "pause", situation(), reason="dust")
    hook(context, state("web"))
    assert worker.drainer.look() is None
    assert not worker.records.drain.pause()


def test_records_hold_nothing_secret_and_no_more_than_is_told(context, worker):
    begun(context, worker)
    kept = json.loads((worker.records.drain.folder / "drain.json").read_text())
    assert kept.keys() == {field.name for field in dataclasses.fields(drain.Drain)}
