# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A drain's times, which no change of the machine's clock touches."""

import dataclasses

import pytest

from lifecycle.clock import Clock
from lifecycle.drain_record import DrainRecord
from plan.draining import Drain, Purpose

FOUND = Drain(Purpose.RELEASE, "Concourse 8.4.0", "worker/1", "boot", 7200, 900.0, 1000.0)


class Settable(Clock):
    """A clock that a test sets."""

    name, uptime = "boot", 1000.0

    def boot(self):
        return self.name

    def since_boot(self):
        return self.uptime


@pytest.fixture
def clock():
    return Settable()


@pytest.fixture
def record(clock, tmp_path):
    record = DrainRecord(tmp_path, clock)
    record.write(FOUND)
    return record


def test_clock_that_is_set_changes_nothing(tmp_path):
    """The real clock, of which a drain takes the seconds since the boot alone."""
    clock = Clock()
    clock.now = None  # to be called by nothing
    record = DrainRecord(tmp_path, clock)
    here, now = clock.boot(), clock.since_boot()
    begun = dataclasses.replace(FOUND, boot=here, asked=now, since=now)
    record.write(begun)
    assert record.drain() == begun
    assert 0 <= clock.since_boot() - begun.since < 60


def test_it_begins_anew_at_a_boot(clock, record):
    clock.name, clock.uptime = "second boot", 5000.0
    again = dataclasses.replace(FOUND, boot="second boot", asked=5000.0, since=5000.0)
    assert record.drain() == again
    clock.uptime = 5500.0
    assert record.drain() == again, "it has begun anew once"


def test_times_since_the_epoch_of_an_older_charm_begin_anew(clock, record):
    record.write(dataclasses.replace(FOUND, asked=1.8e9, since=1.8e9))
    found = record.drain()
    assert found
    assert (found.asked, found.since, found.turn_since) == (1000.0, 1000.0, 0.0)


def test_one_that_waits_for_its_turn_has_still_not_begun(clock, record):
    record.write(dataclasses.replace(FOUND, since=0.0, turn_since=1000.0))
    clock.name, clock.uptime = "second boot", 30.0
    found = record.drain()
    assert found
    assert (found.asked, found.since, found.turn_since) == (30.0, 0.0, 30.0)


def test_else_its_times_stay(clock, record):
    clock.uptime = 5000.0
    assert record.drain() == FOUND
