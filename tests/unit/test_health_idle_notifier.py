# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm is woken once a GPU is free that waits for its test or its reset, and for no other."""

import dataclasses

import pytest

from gpu_agent.availability import residual_memory, retests
from gpu_agent.health.idle_notifier import Freed
from gpu_runtime.unavailable import QUARANTINED, Unavailable
from tests.unit.health_moments import Days, job

OUT = {"GPU-0": Unavailable(QUARANTINED, "xid-79", "Xid 79: it has fallen off the bus")}


class Watch:
    """A worker whose GPU 0 has a job, and these GPUs a request for a test."""

    def __init__(self, recovery="none", asked=()):
        self.days, self.wakes = Days(), []
        self.asked = [retests.Ask(uuid, "quick", "Xid 31 twice", "") for uuid in asked]
        self.fault = None
        self.part = Freed(recovery, lambda: self.wakes.append(self.days.now), self.requests)
        self.days.holdings = (job(),)
        self.turn(0)

    def requests(self):
        if self.fault:
            raise self.fault
        return tuple(self.asked)

    def turn(self, seconds, **changes):
        self.days.now += seconds
        self.part.turn(dataclasses.replace(self.days.moment(), **changes), ())
        return len(self.wakes)

    def end(self):
        self.days.holdings = ()
        return self.turn(2) or self.turn(2)


def test_a_test_that_waits_for_a_job_is_made_at_its_end():
    watch = Watch(asked=["GPU-0"])
    assert [watch.turn(2) for _ in range(5)] == [0] * 5
    assert watch.end() == 1
    assert [watch.turn(2) for _ in range(5)] == [1] * 5


def test_a_reset_that_waits_for_a_job_is_made_at_its_end():
    assert Watch("none").end() == 0
    for recovery, wakes in (("none", 0), ("reset", 1), ("reboot", 1)):
        watch = Watch(recovery)
        watch.days.unavailable = OUT
        assert watch.end() == wakes


def test_for_another_gpu_or_none_that_waits_nobody_is_woken():
    assert Watch("reset", ["GPU-1"]).end() == 0


def test_memory_that_is_still_taken_is_waited_for():
    watch = Watch(asked=["GPU-0"])
    watch.days.holdings = ()
    taken = {"unavailable": {"GPU-0": residual_memory.cause(2048)}}
    assert [watch.turn(2, **taken) for _ in range(5)] == [0] * 5
    assert watch.turn(1) == 0
    assert watch.turn(1) == 1


def test_a_gpu_that_the_next_job_has_at_once_is_not_free():
    watch = Watch(asked=["GPU-0"])
    watch.days.holdings = ()
    assert watch.turn(1) == 0
    watch.days.holdings = (job("t2"),)
    assert watch.turn(1) == 0
    assert watch.end() == 1


def test_a_gpu_that_is_handed_over_is_not_free():
    watch = Watch(asked=["GPU-0"])
    watch.days.holdings = (dataclasses.replace(job(), in_use=False, handing_over=True),)
    assert [watch.turn(2) for _ in range(5)] == [0] * 5
    assert watch.end() == 1


def test_short_jobs_one_after_another_wake_it_no_more_often_than_juju_does():
    watch = Watch(asked=["GPU-0"])
    for _ in range(100):
        watch.days.holdings = (job(),)
        watch.turn(2)
        watch.end()
    first, *_, last = watch.wakes
    assert len(watch.wakes) == 2
    assert last - first >= 300


def test_who_can_not_be_told_to_hold_it_is_nobody_that_has_ended():
    watch = Watch(asked=["GPU-0"])
    assert [watch.turn(2, holdings=None) for _ in range(5)] == [0] * 5
    assert watch.end() == 1


def test_the_self_tests_own_containers_are_no_job():
    watch = Watch(asked=["GPU-0"])
    watch.end()
    watch.days.now += 1000
    watch.days.holdings = (job(ours=True),)
    watch.turn(2)
    assert watch.end() == 1, "the charm is there already"


def test_what_can_not_be_read_is_read_at_a_later_turn():
    watch = Watch(asked=["GPU-0"])
    watch.fault = OSError(5, "Input/output error")
    with pytest.raises(OSError, match="Input"):
        watch.end()
    watch.fault = None
    assert watch.turn(2) == 1
