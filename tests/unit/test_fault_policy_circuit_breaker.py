# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Too many GPUs out at once for one cause: the driver or the host is suspected; none more goes."""

import pytest

from gpu_agent.model.decisions import BringBack, Suspect, TakeOut, Tell
from gpu_agent.model.decisions import Test as Retest
from tests.unit.health_world import World, only

CAUSE = "GPUs are lost"


def lose(world, *indexes):
    world.missing |= {f"GPU-{index}" for index in indexes}


def out(world):
    return sorted(world.out)


@pytest.mark.parametrize(
    ("count", "percent", "gone", "suspected"),
    [(8, 50, 5, True), (8, 50, 4, False), (8, 25, 3, True), (8, 100, 8, False), (3, 50, 2, True),
     (2, 50, 2, True), (2, 50, 1, False), (4, 1, 2, True), (4, 1, 1, False)],
)  # fmt: skip
def test_more_than_the_share_for_one_cause_within_five_minutes(count, percent, gone, suspected):
    world = World(count, max_quarantined=percent)
    for index in range(gone):
        lose(world, index)
        world.look()
    assert len(out(world)) == gone
    assert [one.cause for one in world.of(Suspect)] == [CAUSE] * suspected
    assert world.judge.suspect == CAUSE * suspected


def test_the_only_gpu_goes_out_and_nobody_is_suspected():
    world = World(1)
    lose(world, 0)
    world.look()
    assert out(world) == ["GPU-0"]
    assert world.of(Suspect) == []


def test_all_at_one_look_are_more_than_half_and_no_more():
    world = World(8)
    lose(world, *range(8))
    decisions = world.look()
    assert out(world) == [f"GPU-{index}" for index in range(5)]
    assert decisions[-1] == Suspect(CAUSE)
    assert len([one for one in decisions if isinstance(one, Tell)]) == 8, "jobs know all the same"
    world.looks(40)
    assert len(out(world)) == 5
    assert world.counts()[Tell] == 8


def test_different_causes_are_none_in_common():
    world = World(4)
    world.event(79)
    world.event(119, gpu=1)
    world.event(fault="ecc", gpu=2)
    world.event(62, gpu=3)
    assert len(out(world)) == 4
    assert world.of(Suspect) == []


def test_one_cause_over_more_than_five_minutes_is_none():
    world = World(4)
    for index in range(4):
        world.event(119, gpu=index, after=301)
    assert len(out(world)) == 4
    assert world.of(Suspect) == []


def test_a_bus_that_fails_is_one_cause_by_whatever_sign():
    world = World(4)
    world.event(79)
    lose(world, 1)
    world.look()
    world.change(2, failure="GPU is lost")
    world.look()
    assert world.judge.suspect == CAUSE


def test_a_gpu_that_met_a_suspected_cause_goes_out_for_no_other_sign_of_it():
    world = World(8)
    for index in range(8):
        world.event(119, gpu=index)
    assert len(out(world)) == 5
    for index in range(8):
        world.change(index, failure="GPU is lost")
    world.looks(60)
    assert len(out(world)) == 5
    assert world.judge.suspect == "Xid 119"


def test_another_cause_takes_out_as_ever_meanwhile():
    world = World(8)
    lose(world, *range(5))
    world.look()
    assert only(world.event(fault="ecc", gpu=7), TakeOut).fault == "ecc"


def test_a_hang_is_none_of_its_business():
    world = World(8)
    world.hang(2)
    assert len(out(world)) == 8
    assert world.of(Suspect) == []


def test_it_never_hinders_a_return():
    world = World(4)
    world.change(0, reasons=0x40)
    world.looks(3)
    world.change(0, reasons=0)
    for index in (1, 2, 3):
        world.event(119, gpu=index)
    assert world.judge.suspect
    assert {one.uuid for one in world.of(TakeOut)} == {f"GPU-{index}" for index in range(4)}
    decisions = world.looks(15)
    assert {one.uuid for one in decisions if isinstance(one, Retest)} == {
        "GPU-1",
        "GPU-2",
        "GPU-3",
    }
    assert world.judge.suspect, "within five minutes"
    for index in (1, 2, 3):
        world.passes(index)
    assert BringBack("GPU-0", "slowdown") in world.looks(40)
    assert out(world) == []


def test_it_is_over_when_the_cause_is_gone():
    world = World(4)
    lose(world, 0, 1, 2, 3)
    world.look()
    assert len(out(world)) == 3
    world.looks(100)
    assert world.judge.suspect, "they are lost still"
    world.restart()
    assert Suspect(CAUSE) in world.look(), "who starts anew is told"
    world.missing.clear()
    world.looks(3)
    assert world.all[-1] == Suspect("") or Suspect("") in world.of(Suspect)
    assert world.judge.suspect == ""
    assert len(out(world)) == 3, "each returns by its own test"
    lose(world, 3)
    world.look()
    assert "GPU-3" in out(world)


def test_those_that_were_spared_go_out_when_they_are_no_longer_many():
    world = World(8)
    lose(world, *range(8))
    world.look()
    world.missing = {"GPU-6", "GPU-7"}
    world.looks(22)
    assert world.judge.suspect == ""
    assert {"GPU-6", "GPU-7"} <= set(out(world))
    assert world.counts()[Tell] == 8, "nobody is told twice"


def test_what_nobody_can_see_at_a_look_has_the_gpu_tested():
    world = World(4)
    for index in range(4):
        world.event(119, gpu=index)
    (test,) = world.of(Retest)
    assert (test.uuid, test.level) == ("GPU-3", "isolation")
    assert world.event(119, gpu=3) == [
        Tell("GPU-3", "xid", "Xid 119, its GSP does not answer", hardware=True, xid=119)
    ]


def test_a_watch_that_starts_anew_within_five_minutes_goes_on_counting():
    world = World(4)
    for index in range(3):
        world.event(119, gpu=index)
        world.restart()
        world.look()
    assert world.judge.suspect == "Xid 119"


def test_after_a_reboot_it_ends_with_the_first_look_that_shows_nothing():
    world = World(4)
    lose(world, *range(4))
    world.look()
    world.missing.clear()
    world.reboot()
    world.look()
    assert world.judge.suspect == ""
