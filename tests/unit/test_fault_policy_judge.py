# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The table of faults, row by row: what each does, what it does not, and when it is over."""

import dataclasses

import pytest

from gpu_agent.fault_policy import fault_table as faults
from gpu_agent.fault_policy.fault import LEVELS, Action
from gpu_agent.model.decisions import BringBack, TakeOut, Tell
from gpu_agent.model.decisions import Test as Retest
from gpu_agent.model.observations import Look, Message, Source
from tests.unit.health_world import WELL, World, kinds, only

XID79 = "Xid 79: the GPU has fallen off the bus"


# What is seen, the fault, what stands in status, the level, and the words for the job.
OUT = [
    (lambda w: w.event(79), "xid", "Xid 79", "isolation", "Xid 79, it has fallen off the bus"),
    (lambda w: w.event(119), "xid", "Xid 119", "isolation", "Xid 119, its GSP does not answer"),
    (lambda w: w.event(48), "xid", "Xid 48", "compute", "Xid 48, double bit ECC error"),
    (lambda w: w.event(64), "xid", "Xid 64", "", "Xid 64, memory could not be remapped"),
    (lambda w: w.look(recovery_action=1), "recovery", "recovery needed", "isolation",
     "its driver asks for a reset of the GPU"),
    (lambda w: w.look(recovery_action=2), "recovery", "recovery needed", "isolation",
     "its driver asks for a reboot of the machine"),
    (lambda w: w.event(fault="recovery", text="recovery action 1"), "recovery", "recovery needed",
     "isolation", "its driver asks for a reset of the GPU"),
    (lambda w: (w.gone.add("GPU-0"), w.look())[1], "off-bus", "off the bus", "isolation",
     "it has fallen off the bus"),
    (lambda w: (w.missing.add("GPU-0"), w.look())[1], "off-bus", "off the bus", "isolation",
     "it has fallen off the bus"),
    (lambda w: w.look(failure="GPU is lost"), "lost", "does not answer", "isolation",
     "it does not answer its driver"),
    (lambda w: w.look(ecc_uncorrected=1), "ecc", "uncorrected ECC error", "compute",
     "memory error that ECC could not correct"),
    (lambda w: w.event(fault="ecc"), "ecc", "uncorrected ECC error", "compute",
     "memory error that ECC could not correct"),
    (lambda w: w.event(fault="poison"), "poison", "poisoned data", "compute",
     "poisoned data in its memory"),
    (lambda w: w.look(remap_failed=True), "remap-failed", "remapping failed", "",
     "bad memory that could not be remapped"),
    (lambda w: w.event(fault="remap-failed"), "remap-failed", "remapping failed", "",
     "bad memory that could not be remapped"),
    (lambda w: w.event(fault="ras", source=Source.COUNTER), "ras", "uncorrected RAS error",
     "isolation", "memory error that could not be corrected"),
    (lambda w: w.event(fault="wedged", source=Source.COUNTER), "wedged", "wedged", "isolation",
     "its driver has declared it wedged"),
]  # fmt: skip


@pytest.mark.parametrize(("see", "fault", "short", "level", "words"), OUT)
def test_a_fault_takes_the_gpu_out_once_and_tells_its_job(see, fault, short, level, words):
    world = World()
    world.look()
    decisions = see(world)
    out = only(decisions, TakeOut)
    assert (out.uuid, out.fault, out.level) == ("GPU-0", fault, level)
    assert out.reason.partition(":")[0] == short
    assert out.remedy
    tell = only(decisions, Tell)
    assert (tell.text, tell.hardware) == (words, True)
    assert len(decisions) == 2
    # It stays as it is, and stays one decision.
    see(world)
    world.looks(5)
    world.restart()
    world.looks(5)
    assert len(world.of(TakeOut)) == 1
    assert len(world.of(Tell)) == 1


def test_each_row_that_takes_out_is_tried_above():
    tried = {fault for _, fault, *_ in OUT}
    rows = {row.name for row in faults.TABLE if row.action is Action.OUT}
    assert rows - tried == {"slowdown-lasting"}, "which has tests of its own"


@pytest.mark.parametrize("row", faults.TABLE, ids=lambda row: row.name)
def test_a_row_says_what_it_must(row):
    assert row.level in LEVELS
    assert row.title
    assert row.sources
    assert row.back
    if row.action in (Action.OUT, Action.HOLD) and row is not faults.DIRTY:
        assert row.short
        assert ":" not in row.short
        assert row.remedy
    assert faults.BY_NAME[row.name] is row


def test_it_is_tested_once_it_may_pass_and_not_before():
    world = World()
    world.look(recovery_action=1)
    assert world.looks(10) == [], "the driver still asks for the reset"
    test = only(world.look(recovery_action=0), Retest)
    assert (test.uuid, test.level) == ("GPU-0", "isolation")
    assert "recovery needed" in test.why
    assert world.looks(100) == [], "not again and again"
    world.passes()
    assert world.looks(2000) == []


@pytest.mark.parametrize("place", ["gone", "missing"])
def test_what_was_off_the_bus_is_tested_when_it_is_seen_again(place):
    world = World()
    getattr(world, place).add("GPU-0")
    world.looks(3)
    getattr(world, place).clear()
    assert only(world.look(), Retest).level == "isolation"


def test_what_fails_its_test_is_tested_again_some_hours_later_and_after_a_reboot():
    world = World()
    world.event(79)
    assert kinds(world.look()) == [Retest]
    assert kinds(world.looks(24 * 240 - 10)) == [Retest] * 3
    world.reboot()
    assert kinds(world.look()) == [Retest]


def test_only_the_operator_brings_back_what_can_not_be_mended():
    world = World()
    world.look(remap_failed=True)
    assert world.looks(3000, remap_failed=False) == []
    assert "gpu-uncordon" in world.of(TakeOut)[0].remedy


def test_what_the_operator_brought_back_stays_in_use_though_it_stands():
    world = World()
    world.look(ecc_uncorrected=2)
    world.look()
    world.passes()
    assert world.looks(20) == []
    world.restart()
    assert world.looks(20) == []
    assert kinds(world.look(ecc_uncorrected=3)) == [TakeOut, Tell], "that is a new one"


def test_a_count_that_began_anew_counts_from_nothing():
    world = World()
    world.look(ecc_uncorrected=5)
    world.look()
    world.passes()
    world.look()
    world.reboot()
    assert kinds(world.look(ecc_uncorrected=1)) == [TakeOut, Tell]


def test_errors_that_ras_counts_ask_for_no_test_that_needs_cuda():
    world = World(1)
    world.cards = (dataclasses.replace(world.cards[0], uuid="GPU-0123456789abcdef"),)
    world.figures = {"GPU-0123456789abcdef": WELL}
    world.look()
    world.figures = {"GPU-0123456789abcdef": dataclasses.replace(WELL, ecc_uncorrected=3)}
    out = only(world.look(), TakeOut)
    assert (out.fault, out.level) == ("ras", "isolation")
    world.now += 1
    told = Message(world.now, "GPU-0123456789abcdef", Source.COUNTER, "ras")
    assert world.turn(told) == world.look() == []


def test_a_stronger_fault_takes_the_place_of_a_weaker_and_no_weaker_of_a_stronger():
    world = World()
    world.hang(2)
    assert [one.fault for one in world.of(TakeOut)] == ["hang", "hang"]
    assert only(world.event(79), TakeOut).reason == XID79
    assert world.hang(3) == []
    assert only(world.event(fault="ecc"), TakeOut).level == "compute"
    assert world.event(119) == []
    out = only(world.event(fault="remap-failed"), TakeOut)
    assert (out.fault, out.level) == ("remap-failed", "")
    assert world.event(fault="poison") == []


def test_of_two_reasons_the_one_that_needs_more_is_told_with_the_higher_level():
    world = World()
    world.looks(45, reasons=0x40)
    assert world.out["GPU-0"].level == "burn-in"
    out = only(world.event(79), TakeOut)
    assert (out.reason, out.level) == (XID79, "burn-in")
    assert out.remedy.startswith("Reboot")


@pytest.mark.parametrize("sign", ["figures", "event"])
def test_the_same_fault_by_two_ways_is_one(sign):
    world = World()
    world.kernel(79)
    if sign == "event":
        world.event(79)
    else:
        world.look(failure="GPU is lost")
    world.kernel(79)
    world.look(failure="GPU is lost")
    world.event(79)
    world.looks(5)
    (out,) = world.of(TakeOut)
    assert (out.fault, out.reason) == ("xid", XID79)
    assert world.of(Retest) == []


@pytest.mark.parametrize("code", [79, 48, 119, 64])
def test_what_the_kernels_log_alone_tells_takes_nothing_out(code):
    world = World()
    world.hold("a", 0)
    world.kernel(code)
    assert world.look(after=0.1) == [], "a driver may need some seconds"
    decisions = world.looks(3)
    assert kinds(decisions) == [Retest]
    assert (decisions[0].level, f"Xid {code}" in decisions[0].why) == ("quick", True)
    # A pipeline can have it told each second.
    for _ in range(3 * 3600 // 5):
        world.kernel(code, after=5.0)
        world.look(after=0.0)
    assert world.of(TakeOut) == world.of(Tell) == []
    assert 2 <= len(world.of(Retest)) <= 4


def test_what_the_log_told_waits_for_a_look_that_comes():
    world = World()
    world.kernel(79)
    world.now += 3000
    assert world.turn() == []
    assert kinds(world.hang(1)) == []
    assert kinds(world.look(failure="GPU is lost")) == [TakeOut, Tell]


def test_text_of_the_log_is_no_name_for_another_fault():
    world = World()
    world.kernel(79)
    assert only(world.look(ecc_uncorrected=1), TakeOut).fault == "ecc"


@pytest.mark.parametrize("fault", ["recovery", "ecc", "poison", "ras", "wedged", "hang", "dirty",
                                   "breaker", "job", "no such row"])  # fmt: skip
def test_a_log_that_names_a_row_which_it_is_no_source_of_is_nothing(fault):
    world = World()
    world.kernel(fault=fault)
    assert world.looks(10) == []


def test_hung_calls_take_all_out_at_the_second_and_ask_for_tests_when_one_returns():
    world = World(4)
    assert world.hang(1) == []
    assert kinds(world.hang(2)) == [TakeOut] * 4
    assert {one.level for one in world.of(TakeOut)} == {"quick"}
    assert world.hang(3) == world.hang(4) == []
    world.restart()
    assert world.hang(5) == []
    assert [(one.uuid, one.level) for one in world.look()] == [
        (f"GPU-{index}", "quick") for index in range(4)
    ]
    assert world.counts() == {TakeOut: 4, Retest: 4}


def test_a_hang_that_ended_with_the_machine_is_over():
    world = World()
    world.hang(2)
    world.reboot()
    assert kinds(world.look()) == [Retest, Retest]


@pytest.mark.parametrize("reasons", [0x40, 0x80, 0xC8])
def test_the_hardware_slows_it_down_at_three_looks(reasons):
    world = World()
    assert world.looks(2, reasons=reasons) == []
    world.look(reasons=0)
    assert world.looks(2, reasons=reasons) == []
    out = only(world.look(), TakeOut)
    assert (out.fault, out.level, out.reason.partition(":")[0]) == ("slowdown", "quick",
                                                                   "slowed down")  # fmt: skip
    assert world.looks(37) == []
    out = only(world.looks(3), TakeOut)
    assert (out.fault, out.level) == ("slowdown-lasting", "burn-in")
    assert world.looks(500) == []
    assert world.looks(40, reasons=0) == [], "10 min without it, not less"
    assert only(world.look(), Retest).level == "burn-in"


def test_what_was_slowed_down_for_a_moment_returns_without_a_test():
    world = World()
    world.looks(4, reasons=0x80)
    assert world.looks(40, reasons=4) == []
    assert only(world.look(), BringBack) == BringBack("GPU-0", "slowdown")
    assert world.looks(100) == []
    assert len(world.of(TakeOut)) == 1


@pytest.mark.parametrize("reasons", [0x0, 0x1, 0x2, 0x4, 0x8, 0x20, 0x2F, None])
def test_what_software_or_the_job_slows_down_is_a_metric(reasons):
    world = World()
    assert world.looks(500, reasons=reasons) == []


def test_looks_in_quick_succession_are_not_three():
    world = World()
    world.change(0, reasons=0x40)
    assert [world.look(after=0.1) for _ in range(50)] == [[]] * 50


def test_looks_that_are_far_apart_are_not_in_a_row():
    world = World()
    world.change(0, reasons=0x40)
    assert [world.look(after=70) for _ in range(50)] == [[]] * 50
    world.looks(2)
    world.now += 100
    world.hang(1)
    assert world.looks(1) == []


def test_a_look_that_does_not_tell_is_no_evidence():
    world = World()
    world.look(recovery_action=1)
    assert world.looks(5, recovery_action=None) == []
    # Nor does a poll that has nothing of a GPU say that it is gone.
    world = World()
    world.now += 1
    assert world.turn(Look(world.now, {})) == []
