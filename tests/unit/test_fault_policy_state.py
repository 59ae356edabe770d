# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the judge remembers: sound or refused, bounded, the same after a restart; and its promises
over anything that may be seen."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_agent.fault_policy import state as memories
from gpu_agent.fault_policy.fault import LEVELS, Action
from gpu_agent.fault_policy.fault_table import BY_NAME, JOB_XIDS, TABLE
from gpu_agent.fault_policy.state import Memory
from gpu_agent.model.card import Figures
from gpu_agent.model.decisions import BringBack, TakeOut, Tell
from gpu_agent.model.decisions import Test as Retest
from gpu_agent.model.observations import Hang, Look, Message, Source
from tests.unit.health_world import WELL, World

GPUS = 3
SMALL = settings(max_examples=60, derandomize=True, deadline=None, database=None)


def told():
    """A memory in which each thing is."""
    world = World(GPUS)
    world.hold("job", 0, 1)
    world.event(31)
    world.event(79)
    world.kernel(119, gpu=1)
    world.look(remap_pending=True)
    world.change(2, reasons=0x40)
    world.looks(3)
    world.hang(2)
    world.event(119, gpu=1)
    world.event(119, gpu=2)
    return world.judge.memory


def test_what_is_told_is_what_is_read():
    memory = told()
    assert Memory.parse(memory.as_json()) == memory
    assert Memory.parse(Memory().as_json()) == Memory()


def test_an_earlier_revisions_name_of_the_mode_is_read():
    memory = told()
    earlier = dataclasses.replace(memory, mode="on").as_json()
    assert Memory.parse(earlier) == dataclasses.replace(memory, mode="enabled")


def paths(value, path=()):
    """Where each value of JSON lies."""
    yield path
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, inner in items:
        yield from paths(inner, (*path, key))


def changed(path, to):
    found = json.loads(told().as_json())
    if not path:
        return to
    place = found
    for key in path[:-1]:
        place = place[key]
    if to is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return found


OPEN = {"standing", "held", "tested", "gpus"}
"""Whose names are anything."""


@pytest.mark.parametrize(
    "to", [{"a": 1}, [[]], "\u2028", -0.5, True, None, 10**400], ids=lambda to: type(to).__name__
)
def test_what_is_of_another_kind_is_refused_or_means_the_same(to):
    """No value of another kind gets in: what is taken can be told and taken again, and used."""
    refused = 0
    for path in paths(json.loads(told().as_json())):
        try:
            memory = Memory.parse(json.dumps(changed(path, to)))
        except ValueError:
            refused += 1
            continue
        assert Memory.parse(memory.as_json()) == memory
        world = World(GPUS)
        world.judge.memory = memory
        world.look()
        world.event(79)
    assert refused > 50


def test_what_lacks_something_is_refused():
    for path in paths(json.loads(told().as_json())):
        if not path or isinstance(path[-1], int) or (path[-2:-1] and path[-2] in OPEN):
            continue
        if path[-1] == "code":  # not there before, and so not missed
            Memory.parse(json.dumps(changed(path, ...)))
            continue
        with pytest.raises(ValueError, match="cannot use"):
            Memory.parse(json.dumps(changed(path, ...)))


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "{}", "NaN", '"x"', "[" * 100_000,
                                  '{"version": 2}', "\x00", " " * 5_000_000])  # fmt: skip
def test_what_is_no_memory_is_refused_in_words(text):
    with pytest.raises(ValueError, match="cannot use the memory") as error:
        Memory.parse(text)
    assert repr(text[:20])[1:-1] in str(error.value)
    assert len(str(error.value)) < 1200


@pytest.mark.parametrize(
    ("name", "value"), [("level", "fast"), ("fault", "nothing"), ("need", 7), ("need", -1)]
)
def test_what_the_table_does_not_know_is_refused(name, value):
    memory = told()
    gpu = memory.gpus["GPU-0"]
    gpu.out = dataclasses.replace(gpu.out, **{name: value})
    with pytest.raises(ValueError, match="cannot use"):
        Memory.parse(memory.as_json())


def test_gpus_that_come_and_go_do_not_fill_it():
    world = World(2)
    for index in range(500):
        world.cards = tuple(
            dataclasses.replace(card, uuid=f"GPU-{index}-{card.index}") for card in world.cards
        )
        world.judge.memory.gpus.setdefault("x", memories.Gpu())
        world.figures = {card.uuid: WELL for card in world.cards}
        world.look()
    assert len(world.judge.memory.gpus) <= memories.MOST_GPUS + 2
    assert {card.uuid for card in world.cards} <= world.judge.memory.gpus.keys()


# ---- Anything that may be seen ----

UUIDS = st.sampled_from([f"GPU-{index}" for index in range(GPUS)] + ["GPU-other"])
TEXTS = st.sampled_from(
    ["", "a\nb", "recovery action 2", "Fatal XC0 i0 Link 09", "x" * 5000, "{what}"]
)
FAULTS = st.sampled_from([row.name for row in TABLE] + ["", "odd"])
FIGURES = st.builds(
    Figures,
    failure=st.sampled_from(["", "", "", "GPU is lost"]),
    reasons=st.sampled_from([None, 0, 1, 0x40, 0x80, 0x24]),
    ecc_uncorrected=st.sampled_from([None, 0, 0, 1, 2]),
    remap_pending=st.sampled_from([None, False, True]),
    remap_failed=st.sampled_from([None, False, False, True]),
    recovery_action=st.sampled_from([None, 0, 0, 1, 2, 99]),
)
GROUPS = st.frozensets(UUIDS, max_size=2)
MESSAGES = st.builds(
    Message, st.just(0.0), UUIDS, st.sampled_from(Source), FAULTS,
    st.sampled_from([None, *JOB_XIDS, 48, 64, 79, 119, 63, 149, 4711]), TEXTS,
)  # fmt: skip
LOOKS = st.builds(Look, st.just(0.0), st.dictionaries(UUIDS, FIGURES), GROUPS, GROUPS)
HANGS = st.builds(Hang, st.just(0.0), st.integers(1, 4))
SEEN = st.one_of(MESSAGES, LOOKS, HANGS)
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 15.0, 15.0, 700.0, 90000.0]),
        st.lists(SEEN, max_size=3),
        st.sampled_from(["", "", "", "", "restart", "reboot", "lift", "hold", "unknown"]),
    ),
    max_size=25,
)
POLICIES = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["enabled", "enabled", "observe"]),
        "max_quarantined": st.sampled_from([1, 50, 100]),
        "recovery": st.sampled_from(["none", "reset"]),
    }
)


def play(world, steps):
    for number, (after, seen, happens) in enumerate(steps):
        world.now += after
        if happens in ("restart", "reboot"):
            getattr(world, happens)()
        elif happens == "lift":
            world.out.clear()
        elif happens == "hold":
            world.holdings = ()
            world.hold(f"job-{number}", number % GPUS)
        elif happens == "unknown":
            world.holdings = None
        world.turn(*(dataclasses.replace(one, at=world.now) for one in seen))


@SMALL
@given(POLICIES, STEPS)
def test_whatever_is_seen_is_decided_soundly_and_remembered_within_bounds(policy, steps):
    world = World(GPUS, **policy)
    play(world, steps)
    cards = {card.uuid for card in world.cards}
    for one in world.all:
        if isinstance(one, TakeOut):
            assert one.uuid in cards
            assert one.level in LEVELS
            assert (one.reason + one.remedy).isprintable()
            assert one.reason.partition(":")[0]
            assert one.remedy
            assert len(one.reason) < 400
        elif isinstance(one, Retest):
            assert one.uuid in cards
            assert one.level in LEVELS[:-1]
            assert one.why.isprintable()
        elif isinstance(one, Tell):
            assert one.text.isprintable()
            assert "{" not in one.text or "{what}" in one.text
            assert one.fault in BY_NAME
    text = world.judge.memory.as_json()
    assert len(text) < 20_000 * GPUS
    assert Memory.parse(text) == world.judge.memory


@SMALL
@given(POLICIES, STEPS)
def test_what_jobs_and_the_kernels_log_say_takes_nothing_out(policy, steps):
    harmless = []
    for after, seen, happens in steps:
        kept = [
            one
            for one in seen
            if isinstance(one, Message)
            and (one.source is Source.KERNEL or one.xid in (*JOB_XIDS, 63, 4711))
        ]
        harmless.append(
            (after, [*kept, Look(0.0, {f"GPU-{n}": WELL for n in range(GPUS)})], happens)
        )
    world = World(GPUS, **policy)
    play(world, harmless)
    assert world.of(TakeOut) == world.of(BringBack) == []
    assert not any(one.hardware for one in world.of(Tell))


@SMALL
@given(POLICIES, STEPS)
def test_no_gpu_is_stuck(policy, steps):
    """Once all is well again, each that is out is tested or brought back, or is the operator's."""
    world = World(GPUS, **policy)
    play(world, steps)
    world.figures = {f"GPU-{index}": WELL for index in range(GPUS)}
    world.gone, world.missing = set(), set()
    start = len(world.all)
    world.looks(60)
    assert world.judge.suspect == "", "what is gone is suspected no more"
    asked = {one.uuid for one in world.all if isinstance(one, Retest)}
    for uuid, entry in world.out.items():
        known = world.judge.memory.gpus[uuid].out
        assert known is not None
        assert uuid in asked or entry.level == ""
    # And what goes wrong then is decided as ever.
    world.out.clear()
    world.looks(2)
    world.event(62, gpu=1)
    assert any(isinstance(one, TakeOut) for one in world.all[start:])


@SMALL
@given(STEPS)
def test_a_restart_at_any_point_changes_no_decision(steps):
    one, other = World(GPUS), World(GPUS)
    play(one, steps)
    for step in steps:
        play(other, [step])
        other.judge.memory = Memory.parse(other.judge.memory.as_json())
    assert one.all == other.all


def test_the_table_has_a_row_for_each_action():
    assert {row.action for row in TABLE} == set(Action)
