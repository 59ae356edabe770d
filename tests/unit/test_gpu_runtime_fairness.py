# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Who of those who wait is next, and for whom what comes free is kept: the rule by itself.

Over all interleavings: tests/unit/lease_model.py.
"""

import pytest

from gpu_runtime import lease_manager as broker
from gpu_runtime import lease_scheduler as leases
from gpu_runtime.decision_log import Decision
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import Holder, Table, Waiter
from gpu_runtime.policy import Policy
from tests.unit.grants import content
from tests.unit.wrapper_rig import GPUS

NOW = 1000.0
OWED = leases.MOST_OVERTAKINGS


def ids(count):
    return [f"GPU-{number}" for number in range(count)]


def waiters(*wishes):
    """Each wish is a count or the indexes it names, or such and how often it was overtaken."""
    found = []
    for number, wish in enumerate(wishes):
        wanted, overtaken = wish if isinstance(wish, tuple) else (wish, 0)
        named = [f"GPU-{index}" for index in wanted] if isinstance(wanted, list) else []
        found.append(Waiter(f"w{number}", (100 + number, 1), len(named) or wanted, NOW - 1))
        found[-1].overtaken, found[-1].named = overtaken, named
    return found


@pytest.mark.parametrize(
    ("wishes", "free", "given", "kept_for"),
    [
        ([], 8, 0, None),
        ([1, 2, 4], 8, 7, None),
        ([4, 1, 1], 3, 2, None),  # the large one is passed over, for now
        ([(4, OWED), 1, 1], 3, 0, 0),  # now it is not
        ([(4, OWED), 1, 1], 4, 4, None),  # it fits
        ([(4, OWED), 1, 1], 5, 5, None),  # and what is beyond it goes on
        ([1, (4, OWED), 1], 3, 1, 1),  # who is older goes first all the same
        ([(4, OWED), (6, OWED)], 5, 4, 1),
        ([(6, OWED), (4, OWED)], 5, 0, 0),  # one at a time, so that two never block each other
        ([(4, OWED - 1), 1], 3, 1, None),
        ([4, (6, OWED)], 3, 0, 1),
        ([(1, OWED)], 0, 0, 0),
    ],
)
def test_what_is_free_is_divided(wishes, free, given, kept_for):
    waiting = waiters(*wishes)
    shares = leases.divide(waiting, ids(free), NOW)
    kept = [] if kept_for is None else [(waiting[kept_for], free - given)]
    assert shares.kept == kept
    assert shares.given == (given if kept_for is None else free)
    assert shares.left == {*ids(free)}, "nobody has named any"
    assert shares.has_room(1) is (free - given > 0 and kept_for is None)


@pytest.mark.parametrize(
    ("wishes", "free", "left", "given", "kept"),
    [
        ([[0]], [0, 1], [1], 0, {}),
        ([[0]], [1], [1], 0, {}),  # it waits for its own, and nobody waits for it
        ([([0], OWED), 1], [1], [1], 1, {0: 0}),
        ([[0, 1]], [0, 2], [0, 2], 0, {}),
        ([([0, 1], OWED)], [0, 2], [2], 0, {0: 1}),  # only those that it names
        ([([0, 1], OWED), 1, 1], [0, 2], [2], 1, {0: 1}),  # others go on beside it
        ([([0, 1], OWED), ([1, 2], OWED)], [0, 2], [], 0, {0: 1, 1: 1}),
        ([([0, 1], OWED), ([0, 2], OWED)], [0], [], 0, {0: 1, 1: 0}),  # the elder's
        ([([0, 1], OWED), (3, OWED), 1], [0, 2, 3], [2, 3], 2, {0: 1, 1: 2}),
        ([(3, OWED), ([0], OWED)], [0, 2], [0, 2], 2, {0: 2}),  # all that is left is kept
        ([1, [0]], [0, 1], [1], 1, {}),  # whoever names none can do with the other
        ([1, [0]], [0], [0], 1, {}),  # but goes first
        ([1, ([0, 1], OWED)], [0, 1], [], 1, {1: 1}),
        ([1, ([0, 2], OWED), 1], [0, 1], [1], 1, {1: 1}),
    ],
)
def test_what_is_free_is_divided_among_those_who_name_devices(wishes, free, left, given, kept):
    waiting = waiters(*wishes)
    shares = leases.divide(waiting, [f"GPU-{index}" for index in free], NOW)
    assert shares.left == {f"GPU-{index}" for index in left}
    assert shares.given == given
    assert shares.kept == [(waiting[place], count) for place, count in kept.items()]


@pytest.mark.parametrize(("seconds", "kept"), [(29.9, False), (30, True)])
def test_who_waits_for_long_has_what_comes_free_kept_for_it(seconds, kept):
    waiter = Waiter("large", (1, 1), 4, NOW - seconds)
    assert leases.divide([waiter], ids(3), NOW).kept == ([(waiter, 3)] if kept else [])


class Machine:
    """A machine on which these containers use their devices; see leases.Facts."""

    def __init__(self, *users):
        self.users, self.ended, self.asked, self.looked = users, [], [], {}
        self.mark = None

    def now(self):
        return NOW

    def alive(self, call):
        return True

    def me(self):
        return 1, 1

    def in_use(self, container, holder):
        self.asked.append(container)
        return container in self.users

    def is_gone(self, container, holder):
        return False

    def clear(self, container, holder):
        self.ended.append(container)
        return True


def table_of(devices, *waiting, exclusive=True):
    table = Table({})
    for name, ids in devices.items():
        table.holders[name] = Holder("/b", ids, [], exclusive=exclusive, since=0)
    table.waiters = [*waiting]
    return table


def allot(table, wish, machine, count=4, exclusive=True):
    return leases.allot(table, wish, ids(count), machine, exclusive=exclusive)


def test_each_grant_to_a_younger_one_is_an_overtaking():
    large, small = waiters(4, 1)
    table, machine = table_of({"job": ["GPU-3"]}, large, small), Machine("job")
    for number in range(1, OWED + 1):
        assert allot(table, small, machine) == ["GPU-0"]
        assert large.overtaken == number
    assert allot(table, small, machine) == [], "from now on what comes free is kept"
    assert large.overtaken == OWED
    del table.holders["job"]
    assert allot(table, large, machine) == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]


def test_no_container_ends_unless_its_device_is_needed():
    """Whoever looks into a finished build's container keeps it as long as nobody needs its GPU."""
    (wish,) = waiters(1)
    table, machine = table_of({"old": ["GPU-0"], "older": ["GPU-1"]}), Machine()
    assert allot(table, wish, machine) == ["GPU-2"]
    assert (machine.ended, machine.asked) == ([], [])
    wish.count = 3
    assert allot(table, wish, machine) == ["GPU-0", "GPU-2", "GPU-3"]
    assert machine.ended == ["old"]


def test_no_container_ends_for_one_that_has_to_wait():
    elder, wish = waiters(3, 2)
    table = table_of({"old": ["GPU-0"], "job": ["GPU-1"]}, elder, wish)
    machine = Machine("job")
    assert allot(table, wish, machine) == []
    assert machine.ended == []


def test_who_shares_ends_nobody_who_shares():
    (wish,) = waiters(1)
    table, machine = table_of({"old": ["GPU-0"]}, exclusive=False), Machine()
    assert allot(table, wish, machine, exclusive=False) == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert machine.ended == []
    assert list(table.holders) == ["old"]
    table.holders["old"].exclusive = True
    assert len(allot(table, wish, machine, exclusive=False)) == 4
    assert machine.ended == ["old"]


def test_who_names_devices_gets_these_or_waits():
    (wish,) = waiters([1, 3])
    table, machine = table_of({"old": ["GPU-1"], "other": ["GPU-0"]}), Machine()
    assert allot(table, wish, machine) == ["GPU-1", "GPU-3"]
    assert machine.ended == ["old"], "and nobody else ends for it"
    table, machine = table_of({"job": ["GPU-1"], "old": ["GPU-3"]}), Machine("job")
    assert allot(table, wish, machine) == []
    assert machine.ended == []
    table = table_of({"old": ["GPU-1", "GPU-2"]}, exclusive=False)
    assert allot(table, wish, Machine(), exclusive=False) == ["GPU-1", "GPU-3"]
    assert list(table.holders) == ["old"]
    table.holders["old"].exclusive = True
    assert allot(table, wish, Machine("old"), exclusive=False) == []


def test_who_names_none_leaves_those_that_others_wait_for():
    """Else one of both would wait although there is a GPU for each."""
    elder, named = waiters(1, [0])
    table, machine = table_of({"old": ["GPU-1"]}, elder, named), Machine()
    assert allot(table, elder, machine, count=2) == ["GPU-1"]
    assert machine.ended == ["old"]
    table = table_of({"old": ["GPU-1"]}, elder, named)
    assert allot(table, elder, Machine("old"), count=2) == ["GPU-0"], "it is the elder"
    table = table_of({}, elder, named)
    assert allot(table, named, machine, count=1) == []
    assert allot(table, named, machine, count=2) == ["GPU-0"]


def test_only_who_takes_what_somebody_names_overtakes_it():
    named, small = waiters([0, 1], 1)
    table, machine = table_of({"job": ["GPU-0"]}, named, small), Machine("job")
    assert allot(table, small, machine) == ["GPU-2"]
    assert named.overtaken == 0
    assert allot(table, small, machine, count=2) == ["GPU-1"]
    assert named.overtaken == 1
    named.overtaken = OWED
    assert allot(table, small, machine, count=2) == []
    assert allot(table, small, machine) == ["GPU-2"]


class Enough(Exception):
    """The test has seen what it wanted."""


@pytest.mark.parametrize(("elders", "seconds"), [([], 0.25), (waiters(1), 0.5)])
def test_the_oldest_looks_more_often(tmp_path, elders, seconds):
    shelf, machine = Store(str(tmp_path / "leases")), Machine("job")
    policy = Policy({**content(gpus=GPUS[:1]), "wait_timeout": 60})
    with shelf as table:
        every = [device.id for device in policy.devices]
        table.holders["job"] = Holder("/b", every, [], exclusive=True, since=0)
        table.waiters = elders
    slept = []

    def look(pause):
        slept.append(pause)
        raise Enough

    machine.sleep = look
    decision = Decision("one")
    decision.asked = 1
    request = broker.Request("one", "/b", "garden/one")
    with pytest.raises(Enough):
        broker.acquire(shelf, machine, iter([policy]), request, decision)
    assert slept == [seconds]


def test_who_asks_for_all_waits_for_as_many_as_there_are_now(tmp_path):
    shelf, machine = Store(str(tmp_path / "leases")), Machine("job")
    many = Policy({**content(gpus=GPUS), "wait_timeout": 60})
    fewer = Policy({**content(gpus=GPUS[:1]), "wait_timeout": 60})
    every = [device.id for device in many.devices]
    with shelf as table:
        table.holders["job"] = Holder("/b", every, [], exclusive=True, since=0)
    seen = []

    def look(_):
        seen.append([waiter.count for waiter in shelf.read().waiters])
        if len(seen) == 2:
            raise Enough

    machine.sleep = look
    decision = Decision("large")
    decision.asked = None
    request = broker.Request("large", "/b", "garden/large")
    with pytest.raises(Enough):
        broker.acquire(shelf, machine, iter([many, fewer]), request, decision)
    assert seen == [[len(every)], [1]]
