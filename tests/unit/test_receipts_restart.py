# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Accounts over restarts of the watch and of the machine, damaged state, and full disks."""

import itertools
import json
import os

import pytest

from gpu_agent.model.decisions import Tell
from gpu_agent.reporting.receipts import log
from gpu_agent.reporting.receipts.receipt import Names
from tests.unit.receipt_rig import BUSY, IDLE, A, B, Rig, holding
from tests.unit.test_machine_log_rotation import files_end_at


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


def test_a_restart_loses_nothing_but_the_current_sample(tmp_path):
    rig = Rig(tmp_path, names={"c1": Names("main", "train", "unit", "42")}.get)
    rig.decided("c1", waited_ms=5000)
    rig.turn(held=[holding(devices=(A, B))], at=100)
    rig.look(115, energy_j=1000.0, ecc_corrected=1, reasons=0x4)
    rig.xid(118, 31)
    rig.look(130, energy_j=4000.0, ecc_corrected=4, reasons=0)
    rig.look(146, energy_j=5000.0, ecc_corrected=4, reasons=0)  # saved here
    rig.turn(at=150)
    rig.oci.unlink()
    rig.names = lambda _: None
    rig.start()
    rig.turn(at=200)
    rig.look(215, energy_j=9000.0, ecc_corrected=4, reasons=0)
    rig.look(230, energy_j=9500.0, ecc_corrected=5, reasons=0x4)
    rig.turn(held=[], at=235)
    receipt = rig.only()
    assert (receipt.held_s, receipt.outcome, receipt.waited_s) == (135, "ended", 5)
    assert (receipt.team, receipt.build) == ("main", "42")
    first, second = receipt.gpus
    # 46 s until the last saved look, 15 + 15 + 5 after the restart: nothing for 146 to 200.
    assert (first.watched_s, first.used_s, first.busy_percent) == (46 + 35, 81, 80)
    assert first.energy_j == 3000 + 1000 + 500
    assert (first.ecc_corrected, first.xids) == (4, (31,))
    assert first.throttled_s == {"power cap": 15 + 15 + 5}
    assert (second.uuid, second.used_s, second.busy_percent) == (B, 0, 0)


def test_a_lease_that_came_just_before_the_kill_keeps_its_begin(rig):
    rig.turn(held=[holding(since=99)], at=100)
    rig.start()
    rig.turn(at=160)
    rig.turn(held=[], at=170)
    assert rig.only().held_s == 71


def test_a_lease_that_ended_while_the_watch_was_away_is_lost_with_what_is_known(rig):
    rig.turn(held=[holding()], at=100)
    rig.look(120)
    rig.start()
    rig.turn(held="unknown", at=290)  # no reason to give it up
    assert rig.receipts() == []
    rig.turn(held=[], at=300)
    receipt = rig.only()
    assert (receipt.outcome, receipt.held_s) == ("lost", 20)
    assert receipt.ended == "2025-11-23T12:15:20.000Z"
    assert receipt.gpus[0].used_s == 20


def test_a_lease_that_is_unused_when_the_watch_is_back_was_lost_and_is_counted_once(rig):
    rig.turn(held=[holding()], at=100)
    rig.look(120)
    rig.start()
    rig.turn(held=[holding(in_use=False)], at=300)
    rig.turn(held=[holding()], at=400)  # a session
    rig.turn(held=[], at=410)
    assert [(one.outcome, one.held_s) for one in rig.receipts()] == [("lost", 20), ("ended", 10)]


def test_a_failed_gpu_is_told_even_of_a_lease_that_was_lost(rig):
    rig.turn(held=[holding()], at=100)
    rig.turn(decisions=[Tell(A, "xid", "Xid 79", hardware=True, xid=79)], at=110)
    rig.start()
    rig.turn(held=[], at=300)
    assert (rig.only().outcome, rig.only().reason) == ("gpu failed", "xid: Xid 79")


def test_a_lease_that_was_killed_while_the_watch_was_away_says_so(rig):
    rig.turn(held=[holding()], at=100)
    rig.look(120)
    rig.decided("c1", "gpu-reclaim", reason="GPU-aaaa: stuck")
    rig.start()
    rig.turn(held=[], at=300)
    assert (rig.only().outcome, rig.only().reason) == ("killed", "gpu-reclaim: GPU-aaaa: stuck")
    assert rig.only().held_s == 20


def test_a_reboot_ends_all_leases_whatever_the_new_boot_has(rig):
    rig.turn(held=[holding()], at=100)
    rig.look(120)
    rig.start(boot="boot-2")
    rig.now = 100
    rig.turn(held=[holding(since=100.0)], at=101)
    rig.turn(held=[], at=131)
    assert [(one.outcome, one.held_s) for one in rig.receipts()] == [("lost", 20), ("ended", 31)]


def test_a_shared_gpu_stays_shared_over_a_restart(rig):
    rig.turn(held=[holding("c1"), holding("c2", since=100.5)], at=101)
    rig.look(110)
    rig.turn(held=[holding("c1")], at=120)
    rig.start()
    rig.look(130)
    rig.look(145)
    rig.turn(held=[], at=150)
    assert rig.receipts()[-1].gpus[0].watched_s is None


def test_a_kill_between_receipt_and_saving_writes_nothing_twice(rig, monkeypatch):
    rig.turn(held=[holding()], at=100)
    rig.turn(held=[holding(), holding("c2", (B,), since=110)], at=120)
    before = rig.state.read_bytes()
    rig.turn(held=[holding()], at=140)
    assert rig.only().container == "c2"
    rig.state.write_bytes(before)
    rig.start()
    rig.turn(at=150)
    rig.turn(held=[], at=160)
    assert [one.container for one in rig.receipts()] == ["c2", "c1"]


def test_the_state_is_for_root_alone_and_seldom_written(rig):
    saved, written = [], 0

    def turn(second, **changes):
        nonlocal written
        rig.turn(at=second, **changes)
        if rig.state.stat().st_mtime_ns != written:
            written = rig.state.stat().st_mtime_ns
            saved.append(second)

    turn(100, held=[holding()])
    for second in range(102, 160, 2):
        turn(second)
    assert oct(rig.state.stat().st_mode)[-3:] == "600"
    assert oct(rig.state.parent.stat().st_mode)[-3:] == "700"
    assert saved[0] == 100
    assert all(later - earlier >= 15 for earlier, later in itertools.pairwise(saved))
    assert len(saved) == 4


OPEN = {"since": 100.0, "began": 100.0, "receipt": "{}"}
DAMAGED = [
    "", "{", "null", "[]", "{}", "7", "\x00" * 50, '{"boot":',
    json.dumps({"boot": "boot-1", "open": [OPEN], "over": [], "pending": []}),
    json.dumps({"boot": "boot-1", "open": [7], "over": [], "pending": []}),
    json.dumps({"boot": "boot-1", "open": [], "over": [["c1"]], "pending": []}),
    json.dumps({"boot": "boot-1", "open": [], "over": [["c1", "x"]], "pending": []}),
    json.dumps({"boot": "boot-1", "open": [], "over": [], "pending": ["x"]}),
    json.dumps({"boot": "boot-1", "open": {}, "over": [], "pending": []}),
]  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_state_is_left_behind_and_the_watch_goes_on(rig, text):
    rig.state.parent.mkdir()
    rig.state.write_text(text)
    rig.start()
    rig.turn(held=[holding()], at=100)
    rig.turn(held=[], at=120)
    assert rig.only().held_s == 20


@pytest.mark.parametrize("damage", [{"receipt": "{}"}, {"since": "x"}, {"began": None}, 7])
def test_one_damaged_entry_costs_no_other_lease_anything(rig, caplog, damage):
    rig.turn(held=[holding(), holding("c2", (B,))], at=102)
    rig.look(120)
    rig.turn(at=140)
    state = json.loads(rig.state.read_text())
    first, second = state["open"]
    state["open"] = [{**second, **damage} if isinstance(damage, dict) else damage, first]
    state["over"] = [["c1"], *state["over"]]
    state["pending"] = ["x", *state["pending"]]
    rig.state.write_text(json.dumps(state))
    rig.start()
    rig.turn(at=140)
    rig.look(150)
    rig.turn(held=[], at=160)
    one, other = sorted(rig.receipts(), key=lambda receipt: receipt.container)
    assert (one.container, one.held_s, one.gpus[0].used_s) == ("c1", 60, 20 + 20)
    # It is open still, and begins as the store says; what it did before counts for 30 s.
    assert (other.container, other.held_s, other.gpus[0].watched_s) == ("c2", 60, 30 + 10)
    assert caplog.text.count("is damaged") == 3


def test_receipts_wait_for_a_disk_that_is_full_and_come_once(rig, caplog):
    rig.turn(held=[holding(), holding("c2", (B,))], at=100)
    with files_end_at(0):
        rig.turn(held=[holding()], at=120)
        rig.turn(held=[], at=130)
        for second in range(132, 160, 2):
            rig.turn(at=second)
    assert rig.receipts() == []
    assert rig.ledger.pending == 2
    assert caplog.text.count("receipts cannot be written") == 1
    rig.turn(at=170)
    assert [one.container for one in rig.receipts()] == ["c2", "c1"]
    assert rig.ledger.pending == 0
    assert caplog.text.count("over: receipts cannot be written") == 1


def test_receipts_that_wait_outlive_a_restart(rig, monkeypatch):
    rig.turn(held=[holding()], at=100)
    rig.path.mkdir(parents=True)  # nothing can be appended to a folder
    rig.turn(held=[], at=120)
    rig.turn(at=122)
    rig.start()
    rig.turn(at=130)
    rig.path.rmdir()
    rig.turn(at=132)
    assert rig.only().held_s == 20
    assert rig.only().outcome == "ended"


def test_receipts_that_wait_are_bounded(rig, caplog):
    rig.path.mkdir(parents=True)
    for number in range(1002):
        rig.turn(held=[holding(f"c{number}", since=100 + number)], at=110 + number)
    rig.turn(held=[], at=1120)
    assert rig.ledger.pending == 1000
    assert "the receipt of c0 is lost" in caplog.text
    rig.path.rmdir()
    rig.turn(at=1130)
    assert [one.container for one in rig.receipts()] == [f"c{number}" for number in range(2, 1002)]


def test_a_hundred_leases_over_a_full_disk_and_many_restarts_are_each_there_once(rig):
    expected = []
    for number in range(100):
        at = 1000 + 40 * number
        rig.turn(held=[holding(f"c{number}", since=at)], at=at)
        if number % 3 == 0:
            rig.start()
        rig.look(at + 15, {A: BUSY, B: IDLE})
        if number % 7 == 0:
            with files_end_at(0):
                rig.turn(held=[], at=at + 30)
                rig.turn(at=at + 32)
        rig.turn(held=[], at=at + 35)
        expected.append(f"c{number}")
    assert [one.container for one in rig.receipts()] == expected
    assert len(list(log.read(rig.path))) == 100


def test_a_log_that_cannot_be_read_stops_nothing(rig, caplog):
    os.mkfifo(rig.oci)
    rig.turn(held=[holding()], at=100)
    rig.turn(held=[], at=120)
    assert rig.only().waited_s is None
