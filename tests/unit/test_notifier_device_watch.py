# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""When a GPU's node that comes or goes wakes the charm: a day of /dev, on a clock of its own.

The kernel's own telling and systemd are proven in tests/functional.
"""

import itertools
import os
import pathlib

import pytest

from gpu_agent.gpu.vendors import device_nodes as nodes
from gpu_agent.reporting.notifier.device_watch import DeviceWatch
from machine import process

CARD = ("nvidia0", "nvidiactl")


class Day:
    """What comes and goes at which second, and at which second the charm is woken with what."""

    def __init__(self, tmp_path):
        self.now = 0.0
        self.events = []
        self.mounts = []  # (second, name): which no watch is told of
        self.woken = []
        self.fails = self.takes = 0
        self.notes = False
        self.dev = tmp_path / "dev"
        self.dev.mkdir()
        self.watched = set()
        self.path = tmp_path / "run/devices"
        self.sleep = self.pass_time
        self.left = True

    def clock(self):
        for second, name in self.mounts:
            if second <= self.now:
                Day.put(self, name, gone=False)
        return self.now

    def note(self, seen):
        nodes.note(seen, self.path)

    def present(self):
        return nodes.present(self.dev)

    def at(self, second, *names, gone=False):
        self.events.append((second, names, gone))
        self.events.sort()

    def pass_time(self, seconds):
        """All that happens until then; a program that is busy hears of it afterwards."""
        self.now += seconds
        for second, names, gone in self.events:
            for name in names if second <= self.now else ():
                self.put(name, gone)

    def put(self, name, gone):
        path = self.dev / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        if not gone:
            path.symlink_to(os.devnull)

    def add(self, folder):
        self.watched.add(folder)
        if not folder.is_dir():
            raise FileNotFoundError(folder)

    def names(self, seconds):
        if not self.events:
            if seconds is None:
                self.left = False  # the day ends
            self.now += seconds or 0
            return ["kfd"] if seconds is None else []
        second, names, gone = self.events[0]
        if seconds is not None and second > self.now + seconds:
            self.now += seconds
            return []
        self.now = max(self.now, second)
        self.events.pop(0)
        for name in names:
            self.put(name, gone)
        return [pathlib.PurePath(name).parts[0] for name in names]

    def wake(self):
        here = self.present()
        self.woken.append((self.now, here))
        self.pass_time(self.takes)
        if self.fails:
            self.fails -= 1
            raise process.CommandError(["/usr/bin/juju-exec"], 1, "no agent")
        if self.notes:
            self.note(self.present())

    def follow(self):
        self.watch(lambda: self.left)
        return self.woken

    def watch(self, is_left):
        watch = DeviceWatch(self, self.dev, self.path, self.clock, self.sleep)
        watch.follow(self.wake, is_left)


@pytest.fixture
def day(tmp_path):
    return Day(tmp_path)


def test_what_settles_is_one_wake_and_what_flutters_waits_five_seconds_at_most(day):
    day.at(100, "nvidiactl")
    day.at(100.4, "nvidia0")
    for tenth in range(200):
        day.at(200 + tenth / 2, "nvidia1", gone=bool(tenth % 2))
    woken = day.follow()
    assert woken[0] == (pytest.approx(100.9), CARD)
    assert woken[1][0] == pytest.approx(205, abs=0.6)
    assert all(b - a >= 5 for (a, _), (b, _) in itertools.pairwise(woken))


def test_no_other_name_wakes_and_none_that_is_back_by_then(day):
    day.note(CARD)
    for name in CARD:
        day.put(name, gone=False)
    for second, name in enumerate(("null", "loop7", "nvidia-caps", "nvidia-uvm-tools", "sda1")):
        day.at(10 + second, name)
    day.at(20, "nvidia0", gone=True)
    day.at(20.4, "nvidia0")
    assert day.follow() == []


def test_nodes_of_other_vendors_count_and_a_folder_that_comes_with_them_is_watched(day):
    day.at(10, "kfd")
    day.at(100, "dri/card1", "dri/renderD128")
    assert day.follow() == [(10.5, ("kfd",)), (100.5, ("card1", "kfd", "renderD128"))]
    assert day.watched == {day.dev, day.dev / "dri", day.dev / "nvidia-caps"}


def test_a_mig_device_more_or_less_on_a_card_that_stays_wakes(day):
    first, second = "nvidia-caps/nvidia-cap30", "nvidia-caps/nvidia-cap39"
    for name in (*CARD, first):
        day.put(name, gone=False)
    day.note(day.present())
    day.notes = True
    day.at(10, second)
    day.at(100, second, gone=True)
    caps = ("nvidia-cap30", "nvidia-cap39")
    assert day.follow() == [(10.5, (*caps, *CARD)), (100.5, (caps[0], *CARD))]


def test_it_starts_with_a_wake_only_where_the_charm_knows_of_others(day):
    day.put("nvidia0", gone=False)
    assert day.follow() == []  # as at boot
    day.note(("nvidia0", "nvidia1"))
    day.left = True
    assert day.follow() == [(pytest.approx(day.now, abs=10), ("nvidia0",))]


def test_what_changes_during_a_wake_is_one_more_and_what_a_hook_has_seen_is_none(day):
    day.takes = 60
    day.at(10, "nvidia0")
    day.at(20, "nvidia1")
    day.at(30, "nvidia2")
    assert [here for _, here in day.follow()] == [("nvidia0",), ("nvidia0", "nvidia1", "nvidia2")]
    day.woken.clear()
    day.left, day.notes = True, True
    day.at(day.now + 10, "nvidia3")
    day.at(day.now + 20, "nvidia4")
    assert len(day.follow()) == 1


def test_what_a_hook_has_seen_come_back_may_go_again(day):
    day.notes = True
    for name in CARD:
        day.put(name, gone=False)
    day.note(CARD)
    day.at(10, "nvidia0", gone=True)
    day.at(100, "nvidia0")
    day.at(200, "nvidia0", gone=True)
    put = day.put

    def put_before_a_hook(name, gone):
        put(name, gone)
        if not gone:
            day.note(day.present())

    day.put = put_before_a_hook
    assert [here for _, here in day.follow()] == [("nvidiactl",), ("nvidiactl",)]


def test_a_wake_that_fails_is_tried_again_ever_later_until_a_hook_has_looked(day):
    day.fails = 7
    day.at(10, "nvidia0")
    seconds = [second for second, _ in day.follow()]
    waits = [round(b - a) for a, b in itertools.pairwise(seconds)]
    assert waits == [36, 66, 126, 246, 486, 606, 606]
    day.woken.clear()
    day.left, day.fails = True, 1
    day.at(day.now + 100, "nvidia1")

    def see(pause):
        day.note(day.present())  # in a hook that came meanwhile
        day.pass_time(pause)

    day.sleep = see
    assert len(day.follow()) == 1


def test_after_a_wake_that_failed_the_next_change_is_noticed_as_soon_as_ever(day):
    day.fails = 3
    day.at(10, "nvidia0")
    day.at(130, "nvidia1")
    seconds = [second for second, here in day.follow() if "nvidia1" in here]
    assert seconds[0] == pytest.approx(130.5)


def test_a_file_that_lxd_mounts_a_node_on_is_none_before_that(day):
    def half_make(name, gone):
        (day.dev / name).unlink(missing_ok=True)
        (day.dev / name).touch()

    day.put = half_make
    day.note(())
    day.mounts = [(14.5, "nvidia0")]
    day.at(10, "nvidia0")
    assert day.follow() == [(pytest.approx(15, abs=0.6), ("nvidia0",))]
    Day.put(day, "nvidia0", gone=True)
    day.woken.clear()
    mounted = day.now + 60
    day.left, day.mounts = True, [(mounted, "nvidia0")]
    day.at(day.now + 10, "nvidia0")
    day.at(day.now + 100, "loop7")
    assert [here for _, here in day.follow()] == [("nvidia0",)]
    assert day.woken[0][0] < mounted + 31


def test_it_ends_where_no_charm_is_left(day):
    day.at(10, "nvidia0")
    day.watch(lambda: day.now < 10.4)  # it goes while the nodes settle
    assert day.woken == []
