# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What juju status says of a GPU that the watch took out, from the decision to the words."""

import pytest

from gpu_agent.model.decisions import TakeOut
from gpu_agent.model.quarantine import HEALTH, Quarantine
from tests.unit.health_world import World
from tests.unit.situations import TSA, Running, changed, gpu, make_plan, situation, status_lines


def said(world):
    """Status with the records of what the judge decided last."""
    records = {
        one.uuid: Quarantine(
            one.uuid, one.reason, one.fault, one.level, remedy=one.remedy, by=HEALTH
        )
        for one in world.of(TakeOut)
    }
    given = situation(gpu(0), gpu(1))
    state = changed(given, quarantined=tuple(records.values()), tsa=TSA)
    made = make_plan(state)
    return status_lines(state, made, Running(worker=True, connected=True))[0].text


READY = "Worker ready (GPU: 1x NVIDIA, 1 quarantined: GPU 0 ("
SEEN = {
    "Xid 79; reboot the machine))": lambda world: world.event(79),
    "Xid 48; reset the idle GPU))": lambda world: world.event(48),
    "recovery needed; reset the idle GPU))": lambda world: world.look(recovery_action=1),
    "recovery needed; reboot the machine))": lambda world: world.look(recovery_action=2),
    "recovery needed; power the machine off and on))": lambda world: world.look(recovery_action=7),
    "off the bus; reboot the machine))": lambda world: (
        world.missing.add("GPU-0"),
        world.look(),
    ),
    "does not answer; reboot the machine))": lambda world: world.look(failure="GPU is lost"),
    "remapping failed; replace GPU 0))": lambda world: world.look(remap_failed=True),
    "slowed down; check fans, air flow and power cables of GPU 0))": lambda world: world.looks(
        3, reasons=0x40
    ),
}


@pytest.mark.parametrize("words", SEEN)
def test_status_has_fault_and_first_step(words):
    world = World()
    SEEN[words](world)
    assert said(world) == READY + words


def test_where_all_are_out_the_next_step_is_a_test_or_the_operators_word():
    world = World()
    world.event(79)
    world.event(64, gpu=1)
    assert said(world) == (
        "All GPUs are unavailable (2 quarantined: GPU 0 (Xid 79), GPU 1 (Xid 64)): reboot the "
        "machine, replace GPU 1, then juju run worker/0 gpu-selftest level=isolation and "
        "juju run worker/0 gpu-uncordon gpu=gpu-1"
    )


def test_the_fifth_time_is_said_to_the_operator():
    world = World()
    for _ in range(5):
        world.event(62)
        world.look()
        if world.out["GPU-0"].level:
            world.passes()
        world.look()
    assert said(world) == (f"{READY}Xid 62; find out why GPU 0 fails repeatedly))")
