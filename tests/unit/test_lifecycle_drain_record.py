# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A drain's times, which no change of the machine's clock touches."""

import dataclasses
import time

import pytest

from gpu_agent import paths
from lifecycle import drain_record
from plan.draining import Drain, Purpose

FOUND = Drain(Purpose.RELEASE, "Concourse 8.4.0", "worker/1", "boot", 7200, 900.0, 1000.0)


@pytest.fixture
def rooms(monkeypatch, tmp_path):
    now = {"boot": "boot", "now": 1000.0}
    monkeypatch.setattr(paths, "STATE", tmp_path)
    monkeypatch.setattr(drain_record, "boot", lambda: now["boot"])
    monkeypatch.setattr(drain_record, "now", lambda: now["now"])
    drain_record.write(FOUND)
    return now


@pytest.mark.parametrize("step", [-86400.0, 86400.0])
def test_clock_that_is_set_changes_nothing(monkeypatch, tmp_path, step):
    monkeypatch.setattr(paths, "STATE", tmp_path)
    begun = dataclasses.replace(
        FOUND, boot=drain_record.boot(), asked=drain_record.now(), since=drain_record.now()
    )
    drain_record.write(begun)
    wall = time.time()
    monkeypatch.setattr(drain_record.time, "time", lambda: wall + step)
    assert drain_record.drain() == begun
    assert 0 <= drain_record.now() - begun.since < 60


def test_it_begins_anew_at_a_boot(rooms):
    rooms.update(boot="second boot", now=5000.0)
    again = dataclasses.replace(FOUND, boot="second boot", asked=5000.0, since=5000.0)
    assert drain_record.drain() == again
    rooms["now"] = 5500.0
    assert drain_record.drain() == again, "it has begun anew once"


def test_times_since_the_epoch_of_an_older_charm_begin_anew(rooms):
    drain_record.write(dataclasses.replace(FOUND, asked=1.8e9, since=1.8e9))
    found = drain_record.drain()
    assert found
    assert (found.asked, found.since, found.turn_since) == (1000.0, 1000.0, 0.0)


def test_one_that_waits_for_its_turn_has_still_not_begun(rooms):
    drain_record.write(dataclasses.replace(FOUND, since=0.0, turn_since=1000.0))
    rooms.update(boot="second boot", now=30.0)
    found = drain_record.drain()
    assert found
    assert (found.asked, found.since, found.turn_since) == (30.0, 0.0, 30.0)


def test_else_its_times_stay(rooms):
    rooms["now"] = 5000.0
    assert drain_record.drain() == FOUND
