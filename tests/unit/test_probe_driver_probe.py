# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""When the child that asks the drivers is believed, given up and tried again."""

import pathlib

import pytest

from gpu_agent.gpu.probe import driver_probe as asker
from gpu_agent.gpu.probe import probe_protocol as wire
from gpu_agent.model.card import Card, Figures
from gpu_agent.model.observations import Hang, Look, Message, Source
from machine import child_process as children

CARD = Card("GPU-0", 0, "0000:01:00.0", "A100", ("GPU-0",))
FIGURES = Figures(busy=7)


class Child:
    """What it says is put in by the test; its end too."""

    pid = 4711

    def __init__(self):
        self.told, self.asked, self.killed, self.ended = [], [], False, ""
        self.starved = 0.0

    def fileno(self):
        return 99

    def say(self, line):
        if self.ended:
            raise children.EndedError(self.ended)
        self.asked.append(line)

    def lines(self):
        if self.ended:
            raise children.EndedError(self.ended)
        told, self.told = self.told, []
        return [one if isinstance(one, bytes) else wire.pack(one) for one in told]

    def waited(self):
        return self.starved

    def kill(self):
        self.killed = True


class World:
    def __init__(self):
        self.now, self.children, self.refusal = 1000.0, [], None
        self.left = 0
        self.asker = asker.Asker(
            [CARD], begin=self.begin, clock=lambda: self.now, left=lambda: self.left
        )

    def begin(self, cards, root):
        assert list(cards) == [CARD]
        if self.refusal:
            raise self.refusal
        self.children.append(Child())
        return self.children[-1]

    @property
    def child(self):
        return self.children[-1]

    def turn(self, *told):
        self.child.told += told
        return self.asker.turn()

    def sleep(self):
        """As the daemon does where nothing comes."""
        self.now = max(self.now, self.asker.due())
        return self.asker.turn()

    def look(self):
        return self.turn(wire.One("GPU-0", FIGURES), wire.End())


@pytest.fixture
def world():
    world = World()
    assert world.asker.turn() == []
    world.turn(wire.Begun())
    return world


def test_the_first_look_comes_by_itself_and_the_next_ones_each_15_seconds(world):
    (look,) = world.look()
    assert look == Look(1000, {"GPU-0": FIGURES})
    assert world.child.asked == []
    times = []
    for _ in range(3):
        while not world.child.asked:
            world.turn(wire.Beat())
            world.now = min(world.asker.due(), world.now + 4)
            world.asker.turn()
        times.append(world.now)
        world.child.asked.clear()
        assert [one.at for one in world.look()] == [world.now]
    assert times == [1015, 1030, 1045]


def test_the_time_between_looks_can_be_changed(world):
    world.look()
    world.asker.poll_every(5)
    world.asker.poll_every(5)
    world.sleep()
    assert (world.now, world.child.asked) == (1005, [b"look"])
    world.look()
    world.asker.poll_every(15)
    world.now = 1012
    world.turn(wire.Beat())
    world.sleep()
    assert (world.now, world.child.asked) == (1020, [b"look"] * 2)


def test_a_look_is_dated_by_its_beginning_and_has_what_is_lost(world):
    world.now += 3
    (look,) = world.turn(wire.End(missing=("GPU-0",)))
    assert look == Look(1000, {}, frozenset({"GPU-0"}))


def test_who_asks_for_looks_gets_one_a_second_and_one_more_after_that_which_goes_on(world):
    world.look()
    world.asker.poll_now()
    assert world.asker.due() == 1001
    world.sleep()
    world.asker.poll_now()
    world.asker.poll_now()
    world.asker.turn()
    assert world.child.asked == [b"look"]
    world.now += 0.5
    world.look()
    world.sleep()
    assert (world.now, world.child.asked) == (1002, [b"look", b"look"])
    world.look()
    assert world.asker.due() > 1010


def test_two_calls_that_do_not_return_are_a_hang_and_then_it_is_tried_each_15_seconds(world):
    world.look()
    world.now = 1004
    world.turn(wire.Beat())
    assert world.sleep() == [Hang(1015, 1)] or world.now == 1015
    first = world.child
    while not world.children[1:]:
        world.sleep()
    # The poll of 1015 was asked, and 7 s later the child was given up and another one began.
    assert (world.now, first.killed) == (1022, True)
    world.turn(wire.Begun())
    assert world.sleep() == [Hang(1029, 2)]
    assert world.child.killed
    assert world.asker.fileno() is None
    assert world.asker.due() == 1044
    world.sleep()
    world.turn(wire.Begun())
    assert world.sleep() == [Hang(1051, 3)]
    world.sleep()
    world.turn(wire.Begun())
    assert [one.at for one in world.look()] == [1066]
    world.asker.poll_now()
    world.sleep()
    assert world.sleep() == [Hang(world.now, 1)]


def test_a_child_that_is_silent_without_being_asked_is_given_up_too(world):
    world.look()
    world.now += 1
    world.turn(wire.Beat())
    world.asker._due = 9999
    assert world.sleep() == [Hang(1012, 1)]


def test_each_gpu_has_its_own_deadline(world):
    for _ in range(5):
        world.now += 6
        assert world.turn(wire.One("GPU-0", FIGURES)) == []
    assert world.sleep() == [Hang(1037, 1)]


def test_a_child_that_got_no_processor_has_more_time_once(world):
    world.child.starved = 5
    assert world.sleep() == []
    assert world.now == 1007
    assert world.sleep() == [Hang(1014, 1)]


def test_a_watch_that_slept_itself_blames_nobody(world):
    world.now = 1100
    assert world.asker.turn() == []
    assert world.asker.due() == 1101
    assert world.look()
    world.now = 1300
    assert world.asker.turn() == []
    assert world.sleep() == [Hang(world.now, 1)]


def test_what_was_said_in_time_counts_however_late_it_is_read(world):
    world.now = 1100
    assert len(world.look()) == 1


def test_an_event_is_a_message_and_no_end_of_a_hang(world):
    assert world.sleep() == [Hang(1007, 1)]
    world.sleep()
    world.turn(wire.Begun())
    (told,) = world.turn(wire.Event("GPU-0", "", 79, "text"))
    assert told == Message(1007, "GPU-0", Source.EVENT, "", 79, "text")
    assert world.sleep() == [Hang(1014, 2)]


@pytest.mark.parametrize("how", [b"not json", b'{"end":{"missing":["GPU-1"]}}', b"{}", "ended"])
def test_a_child_that_fails_is_replaced_at_once_and_then_ever_later(world, caplog, how):
    times = []
    for _ in range(7):
        begun = world.now
        if how == "ended":
            world.child.ended = "it ended with -9"
            assert world.asker.turn() == []
        else:
            assert world.turn(how) == []
        assert world.child.killed
        number = len(world.children)
        while len(world.children) == number:
            assert world.sleep() == []
        times.append(world.now - begun)
    assert times == [0, 1, 2, 4, 8, 15, 15]
    assert len(caplog.records) == 1
    world.turn(wire.Begun())
    world.look()
    world.turn(b"no json")
    assert world.asker.due() == world.now


def test_a_child_that_never_begins_is_no_fault_of_a_drivers(caplog):
    world = World()
    world.asker.turn()
    for _ in range(5):
        assert world.sleep() == []
    assert "does not start" in caplog.text


@pytest.mark.parametrize("error", [OSError(12, "Cannot allocate memory"), children.EndedError("")])
def test_a_child_that_cant_be_started_is_tried_again(caplog, error):
    world = World()
    world.refusal = error
    assert world.asker.turn() == world.sleep() == world.sleep() == []
    assert "can't be started" in caplog.text
    world.refusal = None
    world.sleep()
    world.turn(wire.Begun())
    assert len(world.look()) == 1


def test_no_fourth_child_joins_three_that_hang(world):
    world.left = 3
    world.sleep()
    for _ in range(20):
        assert world.sleep() == []
    assert len(world.children) == 1
    world.left = 2
    world.sleep()
    assert len(world.children) == 2


def test_a_machine_that_is_out_of_something_tells_nothing_of_its_gpus(world, caplog):
    assert world.turn(wire.End(scarce="/dev/null: Too many open files in system")) == []
    assert "Too many open files" in caplog.text
    assert world.asker.due() > world.now


def test_close_kills_and_begins_no_other(world):
    world.asker.close()
    assert world.child.killed
    assert world.asker.due() == float("inf")
    assert world.asker.turn() == []
    assert len(world.children) == 1


def test_without_gpus_nobody_is_asked():
    world = World()
    idle = asker.Asker([], pathlib.Path("/"), begin=world.begin, clock=lambda: 5)
    assert idle.turn() == []
    assert idle.due() == float("inf")
    assert idle.fileno() is None
