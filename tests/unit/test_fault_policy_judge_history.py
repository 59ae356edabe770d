# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the watch decides by what came before: faults of jobs, the fifth time, other modes."""

import dataclasses

import pytest

from gpu_agent.fault_policy.judge import Judge
from gpu_agent.fault_policy.state import Memory
from gpu_agent.model.decisions import BringBack, TakeOut, Tell
from gpu_agent.model.decisions import Test as Retest
from gpu_agent.model.observations import Source
from tests.unit.health_world import World, kinds, only

XID79 = "Xid 79: the GPU has fallen off the bus"


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_a_jobs_own_fault_is_told_to_it_alone_and_once(code):
    world = World()
    world.hold("a", 0)
    tell = only(world.event(code), Tell)
    assert (tell.xid, tell.hardware, tell.fault) == (code, False, "job")
    for _ in range(700):
        assert world.event(code, after=15.0) == [], "Xid 45 came 672 times in 3 h"
    world.holdings = ()
    world.hold("b", 0)
    assert Tell in kinds(world.event(code))
    assert world.of(TakeOut) == []


@pytest.mark.parametrize(("first", "second", "tested"), [
    (13, 31, True), (31, 31, True), (13, 13, True), (43, 45, False), (31, 43, False),
])  # fmt: skip
def test_two_jobs_with_such_a_fault_on_one_gpu_have_it_tested(first, second, tested):
    world = World()
    world.hold("a", 0)
    world.event(first)
    world.event(second)
    assert world.of(Retest) == [], "one job's own mistake, twice"
    world.holdings = ()
    world.now += 20 * 3600
    world.restart()
    world.hold("b", 0)
    world.event(second)
    assert [(one.uuid, one.level) for one in world.of(Retest)] == [("GPU-0", "compute")] * tested
    world.holdings = ()
    world.hold("c", 0)
    world.event(second)
    assert len(world.of(Retest)) == tested, "once a day"


def test_two_jobs_more_than_a_day_apart_are_no_two():
    world = World()
    world.hold("a", 0)
    world.event(31)
    world.holdings = ()
    world.hold("b", 0)
    world.event(31, after=24.5 * 3600)
    assert world.of(Retest) == []


@pytest.mark.parametrize("holdings", [None, ()])
def test_faults_of_jobs_that_nobody_can_name_are_no_two(holdings):
    world = World()
    world.holdings = holdings
    world.event(31)
    world.event(13)
    assert world.of(Retest) == world.of(TakeOut) == []


def test_the_self_tests_own_containers_are_no_jobs():
    world = World()
    world.hold("gpu-selftest-1", 0, ours=True)
    assert world.event(31) == []


@pytest.mark.parametrize("code", [63, 92, 94, 109, 8, 32, 154, 4711])
def test_an_xid_that_a_gpu_works_on_after_changes_nothing(code):
    world = World()
    assert world.event(code) == world.kernel(code) == world.looks(10) == []


@pytest.mark.parametrize("recovery", ["none", "reboot"])
def test_rows_that_wait_for_a_reset_are_no_failure(recovery):
    world = World(recovery=recovery)
    assert kinds(world.looks(200, remap_pending=True)) == [Retest]
    assert world.of(Retest)[0].level == "quick"


def test_where_a_reset_is_allowed_the_gpu_waits_for_it_when_it_is_idle():
    world = World(recovery="reset")
    world.hold("a", 0)
    assert world.looks(20, remap_pending=True) == []
    world.holdings = None
    assert world.looks(20) == [], "it can't be told that nobody has it"
    world.holdings = ()
    assert only(world.look(), TakeOut).fault == "remap-pending"
    assert world.looks(20) == []
    assert world.look(remap_pending=False) == [BringBack("GPU-0", "remap-pending")]


def test_where_the_reset_did_not_help_the_gpu_is_not_taken_out_all_day():
    world = World(recovery="reset")
    world.looks(2, remap_pending=True)
    world.passes()
    assert world.looks(1000) == []


def test_a_drivers_reset_is_tested_and_told_but_may_be_a_programs():
    world = World()
    decisions = world.event(fault="driver-reset", source=Source.COUNTER)
    assert kinds(decisions) == [Tell, Retest]
    assert not decisions[0].hardware
    assert Retest not in kinds(world.event(fault="driver-reset", source=Source.COUNTER))


def test_after_the_fifth_time_in_seven_days_only_the_operator_brings_it_back():
    world = World()
    for _ in range(4):
        world.now += 24 * 3600
        world.event(79)
        world.look()
        world.passes()
        world.look()
        world.reboot()
    assert {one.level for one in world.of(TakeOut)} == {"isolation"}
    world.now += 24 * 3600
    out = only(world.event(79), TakeOut)
    assert (out.level, "fifth" in out.reason, "gpu-uncordon" in out.remedy) == ("", True, True)
    assert Retest not in kinds(world.looks(3000))


def test_five_times_in_more_than_seven_days_are_not_too_often():
    world = World()
    for _ in range(8):
        world.event(79, after=2 * 24 * 3600)
        world.look()
        world.passes()
        world.look()
    assert {one.level for one in world.of(TakeOut)} == {"isolation"}


def test_hangs_and_heat_are_none_of_the_five():
    world = World(1)
    for _ in range(10):
        world.hang(2)
        world.look()
        world.passes()
        world.look()
    world.looks(3, reasons=0x40)
    assert {one.level for one in world.of(TakeOut)} == {"quick"}


def test_what_was_not_carried_out_is_decided_again_until_it_is():
    world = World(full_disk=True)
    world.event(79)
    world.looks(4)
    assert [one.reason for one in world.of(TakeOut)] == [XID79] * 5
    world.restart()
    world.look()
    world.full_disk = False
    world.look()
    assert set(world.out) == {"GPU-0"}
    assert len(world.of(Tell)) == 1
    count = len(world.of(TakeOut))
    world.looks(10)
    assert len(world.of(TakeOut)) == count


def test_who_observes_decides_as_ever_and_goes_on():
    world = World(mode="observe")
    world.event(79)
    assert kinds(world.looks(10)) == [Retest]
    world.event(79)
    assert len(world.of(TakeOut)) == 2


def test_what_was_only_observed_is_taken_out_once_it_is_to_be():
    world = World(mode="observe")
    world.looks(5, recovery_action=1, ecc_uncorrected=2)
    world.policy = World(mode="enabled").policy
    world.restart()
    assert TakeOut in kinds(world.look())


def test_off_is_off():
    world = World(mode="disabled")
    assert world.event(79) == world.look(failure="GPU is lost") == world.hang(5) == []


@pytest.mark.parametrize("how", ["missing", "gone", "failure"])
def test_a_driver_that_is_on_its_way_after_boot_has_lost_nothing(how):
    world = World()
    world.look()
    world.reboot()
    if how == "failure":
        world.change(0, failure="driver not loaded")
    else:
        getattr(world, how).add("GPU-0")
    assert world.looks(9) == []
    assert kinds(world.looks(2)) == [TakeOut, Tell], "three minutes are enough"


def test_what_was_there_since_boot_is_lost_at_once():
    world = World()
    world.look()
    world.reboot()
    world.look()
    world.gone.add("GPU-0")
    assert kinds(world.look()) == [TakeOut, Tell]


def test_what_somebody_else_took_out_before_is_none_of_the_five_nor_of_the_many():
    """As where the charm exchanges the driver."""
    world = World(4)
    world.out = {card.uuid: "driver upgrade" for card in world.cards}
    for card in world.cards:
        world.change(card.index, failure="driver not loaded")
    assert TakeOut in kinds(world.look())
    assert world.judge.suspect == ""
    assert {gpu.history for gpu in world.judge.memory.gpus.values()} == {()}


@pytest.mark.parametrize("fault", ["xid", "a row of a later version"])
def test_who_was_killed_before_it_saved_anything_knows_its_own_records(fault):
    world = World()
    world.event(79)
    out = world.out["GPU-0"]
    world.judge = Judge(world.policy, Memory())
    world.judge.adopt(out.uuid, fault, out.reason, out.level, out.remedy)
    world.missing.add("GPU-0")
    assert world.looks(3) == [], "it is out for that"
    world.missing.clear()
    assert only(world.look(), Retest).level == "isolation"
    world.restart()
    assert world.looks(3) == []
    world.passes()
    world.look()
    assert kinds(world.event(79)) == [TakeOut, Tell]


def test_what_it_remembers_counts_more_than_the_record():
    world = World()
    world.event(79)
    world.restart()
    before = world.judge.memory.gpus["GPU-0"].out
    world.judge.adopt("GPU-0", "ecc", "ECC", "compute", "")
    assert world.judge.memory.gpus["GPU-0"].out == before


def test_who_only_observes_adopts_nothing():
    world = World(mode="observe")
    world.judge.adopt("GPU-0", "xid", "Xid 79", "isolation", "")
    assert world.looks(3) == []
    assert kinds(world.event(79)) == [TakeOut, Tell]


def test_as_long_as_nothing_is_wrong_there_is_nothing_new_to_remember():
    world = World()
    world.look()
    known = world.judge.memory.gpus["GPU-0"]
    before = dataclasses.replace(known)
    world.looks(100, busy=50, reasons=4)
    assert world.judge.memory.gpus["GPU-0"] == before
