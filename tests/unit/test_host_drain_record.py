# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A drain's times where the machine's clock was set back; what else befalls it is at the door."""

import dataclasses

import pytest

from host import drain_record
from plan.draining import Drain, Purpose

FOUND = Drain(Purpose.RELEASE, "Concourse 8.4.0", "worker/1", "boot", 7200, 900.0, 1000.0)


@pytest.fixture
def clock(monkeypatch, tmp_path):
    now = [1000.0]
    monkeypatch.setattr(drain_record.memory, "STATE", tmp_path)
    monkeypatch.setattr(drain_record.time, "time", lambda: now[0])
    drain_record.write(FOUND)
    return now


def test_no_drain_is_longer_for_it(clock):
    clock[0] = 30.0
    again = dataclasses.replace(FOUND, asked=30.0, since=30.0)
    assert drain_record.drain() == again
    clock[0] = 500.0
    assert drain_record.drain() == again, "it has begun anew once"


def test_one_that_waits_for_its_turn_has_still_not_begun(clock):
    drain_record.write(dataclasses.replace(FOUND, since=0.0, turn_since=1000.0))
    clock[0] = 30.0
    found = drain_record.drain()
    assert found
    assert (found.asked, found.since, found.turn_since) == (30.0, 0.0, 30.0)


def test_else_its_times_stay(clock):
    clock[0] = 5000.0
    assert drain_record.drain() == FOUND
