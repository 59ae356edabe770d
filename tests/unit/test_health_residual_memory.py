# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""After a lease a GPU whose memory stays taken goes to no task until it is free."""

import dataclasses
import json

import pytest

from gpu_agent import paths as wrapper
from gpu_agent.availability import external_use
from gpu_agent.availability import residual_memory as dirty
from gpu_agent.health import residual_memory_watch as watched
from gpu_agent.health.residual_memory_watch import Dirty
from gpu_runtime.unavailable import UNUSABLE, Unavailable
from tests.unit.grants import in_use
from tests.unit.health_moments import BUSY, IDLE, Days, card, job

TAKEN = dataclasses.replace(IDLE, memory_used_mib=12595)
SAID = "12.3 GiB taken without a process"


class Containers:
    """Of the machine's processes it is asked what a container has left."""

    def __init__(self):
        self.left = set()

    def has_leftovers(self, container, holder):
        assert holder.bundle == f"/b/{container}"
        if "unreadable" in self.left:
            raise ValueError("holds 'x' and no process id")
        return container in self.left


class Watch:
    """A worker whose GPU 0 had a job that has ended just now."""

    def __init__(self, folder):
        self.folder, self.containers, self.days = folder, Containers(), Days()
        self.part = Dirty(folder, self.containers)
        self.days.holdings = (job(),)
        self.days.figures["GPU-0"] = BUSY
        self.turn(look=True)
        self.days.holdings = ()
        self.days.figures["GPU-0"] = TAKEN

    def turn(self, seconds=0.0, *, look=True):
        self.days.now += seconds
        self.part.turn(self.days.moment(look=look), ())
        return {
            path.stem: json.loads(path.read_text())["reason"]
            for path in self.folder.glob("*.json")
        }


@pytest.fixture
def watch(tmp_path, monkeypatch):
    monkeypatch.setattr(wrapper, "EXTERNAL", tmp_path / "cordons")
    return Watch(tmp_path / "cordons")


def test_memory_that_stays_taken_after_a_lease_keeps_the_gpu_until_it_is_free(watch):
    assert watch.turn(1.9) == {}, "a process may take so long to give it back"
    assert watch.turn(0.2) == {"GPU-0": SAID}
    assert watch.turn(600) == {"GPU-0": SAID}
    watch.days.figures["GPU-0"] = IDLE
    assert watch.turn(15) == {}
    watch.days.figures["GPU-0"] = TAKEN
    assert watch.turn(15) == {}, "no lease of it came in between"


def test_a_look_that_is_older_than_the_end_tells_nothing(watch):
    watch.turn(look=True)
    assert watch.turn(5, look=False) == {}
    assert watch.part.wants_look(watch.days.moment())
    assert watch.turn(1) == {"GPU-0": SAID}
    assert not watch.part.wants_look(watch.days.moment())


def test_the_next_holders_memory_is_its_own(watch):
    watch.days.holdings = (job("t2", since=watch.days.now),)
    assert watch.turn(60) == {}
    watch.days.holdings = (job("t2", in_use=False),)
    assert watch.turn(1) == {}
    assert watch.turn(2) == {"GPU-0": SAID}


@pytest.mark.parametrize(
    "figures",
    [
        dataclasses.replace(TAKEN, pids=(4711,)),
        dataclasses.replace(TAKEN, pids=None),
        dataclasses.replace(TAKEN, drawing=1),
        dataclasses.replace(TAKEN, drawing=None),
        dataclasses.replace(TAKEN, memory_used_mib=None),
        dataclasses.replace(TAKEN, memory_total_mib=None),
        dataclasses.replace(TAKEN, failure="GPU is lost"),
        dataclasses.replace(TAKEN, memory_used_mib=1600),  # 2 % of a large card
        dataclasses.replace(TAKEN, memory_used_mib=1000, memory_total_mib=8192),
    ],
)
def test_what_has_an_owner_or_is_not_known_is_not_dirty(watch, figures):
    watch.days.figures["GPU-0"] = figures
    assert watch.turn(60) == {}


def test_what_a_step_left_behind_has_the_gpu_until_somebody_wants_it(watch):
    """Cordoned, nobody would be given it, and nobody would end what has it."""
    watch.days.holdings = (job(in_use=False),)
    watch.containers.left = {"t1"}
    assert watch.turn(60) == {}
    watch.containers.left = set()
    assert watch.turn(60) == {"GPU-0": SAID}


def test_what_cannot_be_told_is_not_taken_for_the_end(watch):
    watch.days.holdings = None
    assert watch.turn(60) == {}
    watch.days.holdings = (job(in_use=False),)
    watch.containers.left = {"unreadable"}
    with pytest.raises(OSError, match="t1"):
        watch.turn(60)
    watch.containers.left = set()
    assert watch.turn(60) == {"GPU-0": SAID}


def test_a_look_without_that_gpu_changes_nothing(watch):
    assert watch.turn(3) == {"GPU-0": SAID}
    del watch.days.figures["GPU-0"]
    assert watch.turn(60) == {"GPU-0": SAID}


def test_a_part_of_a_gpu_is_a_lease_of_it(watch):
    watch.days.cards = (card(0, "MIG-a", "MIG-b"),)
    watch.days.holdings = (job("t1", "MIG-a", in_use=False), job("t2", "MIG-b"))
    assert watch.turn(60) == {}
    watch.days.holdings = ()
    watch.turn(1)
    assert watch.turn(2) == {"GPU-0": SAID}


def test_a_watch_that_was_killed_lifts_what_it_left(watch):
    assert watch.turn(3) == {"GPU-0": SAID}
    watch.part = Dirty(watch.folder, watch.containers)
    assert watch.turn(3) == {"GPU-0": SAID}
    watch.days.figures["GPU-0"] = IDLE
    assert watch.turn(15) == {}


def test_a_lease_that_ended_while_the_watch_was_dead_is_looked_at(watch):
    watch.part = Dirty(watch.folder, watch.containers)
    assert watch.turn(1) == {}
    assert watch.turn(watched.SETTLE) == {"GPU-0": SAID}


def test_a_hook_and_the_watch_leave_each_other_in_peace(watch):
    foreign = ("GPU-1", in_use("pid 4711 (python3)"))
    assert watch.turn(3) == {"GPU-0": SAID}
    assert external_use.read() == {"GPU-0": dirty.cause(12595)}, "the hook knows of it"
    external_use.ensure([foreign, *external_use.read().items()])
    assert watch.turn(15) == {"GPU-0": SAID, "GPU-1": "pid 4711 (python3)"}
    # The hook looked before the watch did.
    external_use.ensure([foreign])
    assert watch.turn(15) == {"GPU-0": SAID, "GPU-1": "pid 4711 (python3)"}
    watch.days.figures["GPU-0"] = IDLE
    assert watch.turn(15) == {"GPU-1": "pid 4711 (python3)"}


def test_what_a_hook_found_dirty_is_lifted_as_soon_as_it_is_free(watch):
    external_use.ensure([("GPU-1", dirty.cause(3072))])
    assert "GPU-1" not in watch.turn(15)


def test_what_others_say_of_a_gpu_stays(watch):
    missing = Unavailable(UNUSABLE, "missing", "not on this machine")
    external_use.ensure([("GPU-0", in_use("pid 1 (x)")), ("GPU-1", missing)])
    before = watch.turn(3)
    assert before["GPU-0"] == "pid 1 (x)"
    watch.days.figures["GPU-0"] = IDLE
    assert watch.turn(15) == before
    (watch.folder / "GPU-0.json").write_text("{")
    assert dirty.recorded(watch.folder) == frozenset()


def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        dirty.recorded(tmp_path / "file")
