# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""24 h of counters that move, in simulated time: nothing goes out; and each fault in it, once."""

import os
import random

import pytest

from gpu_agent.fault_policy.fault import Action
from gpu_agent.fault_policy.fault_table import BY_NAME
from gpu_agent.model.card import Figures
from gpu_agent.model.decisions import BringBack, Suspect, TakeOut, Tell
from gpu_agent.model.decisions import Test as Retest
from gpu_agent.model.observations import Source
from tests.unit.health_world import POLL, World

HOURS = 24
SEEDS = range(200 if os.environ.get("GPUCI_SOAK") else 4)
GPUS = 4
# What clocks go lower for that is no fault: idle, asked for, power cap, software's heat, sync.
SOFT = (0x1, 0x2, 0x4, 0x8, 0x10, 0x20, 0x100)
HARD = (0x40, 0x80, 0xC0)
# Of jobs, of memory that was remapped or contained, of news, of nobody's list.
XIDS = (13, 31, 43, 45, 63, 92, 94, 109, 8, 32, 154, 4711)


class Noise:
    """What a worker's GPUs show in a day of jobs."""

    def __init__(self, seed, **world):
        self.chosen = random.Random(seed)
        self.world = World(GPUS, **world)
        self.corrected = [0] * GPUS
        self.hot = [0] * GPUS
        self.polls = 0

    def figures(self, index):
        chosen = self.chosen
        self.corrected[index] += chosen.choice((0, 0, 0, 1, 50))
        reasons = sum({chosen.choice(SOFT) for _ in range(chosen.randint(0, 3))})
        # A peak of heat or of power for a look or two, then at least one without.
        if self.hot[index] < 2 and chosen.random() < (0.5 if self.hot[index] else 0.02):
            reasons |= chosen.choice(HARD)
        told = {
            "busy": chosen.randint(0, 100), "power_w": chosen.uniform(60, 420), "reasons": reasons,
            "temperature": chosen.randint(25, 92), "sm_clock_mhz": chosen.randint(200, 1980),
            "ecc_corrected": self.corrected[index], "ecc_uncorrected": 0, "remap_pending": False,
            "remap_failed": False, "recovery_action": 0, "pids": (),
            "memory_used_mib": chosen.randint(0, 81000), "energy_j": self.world.now * 200,
        }  # fmt: skip
        for name in chosen.sample(sorted(told), chosen.choice((0, 0, 0, 2))):
            told[name] = None
        return Figures(**told)

    def turn(self):
        """A poll's time, with what may come meanwhile."""
        chosen, world = self.chosen, self.world
        self.polls += 1
        for index in range(GPUS):
            world.figures[f"GPU-{index}"] = self.figures(index)
        if chosen.random() < 0.05:
            world.holdings = ()
            world.hold(f"job-{self.polls}", *chosen.sample(range(GPUS), chosen.randint(1, GPUS)))
        if chosen.random() < 0.01:
            world.holdings = None
        if chosen.random() < 0.02:
            gpu = chosen.randrange(GPUS)
            for _ in range(chosen.choice((1, 1, 30))):
                world.event(chosen.choice(XIDS), gpu=gpu, after=0.01)
        if chosen.random() < 0.01:
            world.kernel(chosen.choice((13, 79, 119, 48, 64)), gpu=chosen.randrange(GPUS))
        roll = chosen.random()
        if roll < 0.01:
            world.now += POLL  # nothing came
        elif roll < 0.015:
            world.hang(1)
        elif roll < 0.017:
            world.restart()
        else:
            world.look()
            self.looked()

    def looked(self):
        """Count the looks in a row that told of heat: one that came and told nothing is none."""
        for index in range(GPUS):
            reasons = self.world.figures[f"GPU-{index}"].reasons
            if reasons is not None:
                self.hot[index] = self.hot[index] + 1 if reasons & 0xC0 else 0


def day(noise, *, hours=HOURS, at=None, plant=None):
    for poll in range(int(hours * 3600 / POLL)):
        if poll == at:
            plant(noise.world)
        noise.turn()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_day_of_noise_takes_nothing_out(seed):
    noise = Noise(seed)
    day(noise)
    world = noise.world
    assert world.of(TakeOut) == world.of(Suspect) == world.of(BringBack) == []
    assert {one.fault for one in world.of(Tell)} == {"job"}
    assert not any(one.hardware for one in world.of(Tell))
    # Those of two jobs once a day on each GPU, those of the kernel's log once an hour at most.
    levels = [one.level for one in world.of(Retest)]
    assert levels.count("compute") <= GPUS
    assert levels.count("quick") <= GPUS * HOURS
    assert len(world.judge.memory.as_json()) < 30_000


class Stuck(dict):
    """Figures of which one GPU's stay as they are from now on."""

    def __init__(self, world, **stuck):
        super().__init__(world.figures)
        self.stuck = stuck

    def __setitem__(self, uuid, figures):
        if uuid == "GPU-1":
            figures = Figures(**{**vars(figures), **self.stuck})
        super().__setitem__(uuid, figures)


def stuck(**figures):
    def plant(world):
        world.figures = Stuck(world, **figures)

    return plant


def event(xid=None, **about):
    return lambda world: world.event(xid, gpu=1, **about)


def lost(place):
    return lambda world: getattr(world, place).add("GPU-1")


PLANTED = {
    "xid 79": (event(79), "xid"),
    "xid 119": (event(119), "xid"),
    "xid 48": (event(48), "xid"),
    "xid 64": (event(64), "xid"),
    "recovery by event": (event(fault="recovery"), "recovery"),
    "recovery": (stuck(recovery_action=1), "recovery"),
    "gone": (lost("gone"), "off-bus"),
    "missing": (lost("missing"), "off-bus"),
    "lost": (stuck(failure="GPU is lost"), "lost"),
    "unavailable": (event(fault="lost"), "lost"),
    "ecc": (stuck(ecc_uncorrected=1), "ecc"),
    "ecc by event": (event(fault="ecc"), "ecc"),
    "poison": (event(fault="poison"), "poison"),
    "remap failed": (stuck(remap_failed=True), "remap-failed"),
    "remap failed by event": (event(fault="remap-failed"), "remap-failed"),
    "ras": (event(fault="ras", source=Source.COUNTER), "ras"),
    "wedged": (event(fault="wedged", source=Source.COUNTER), "wedged"),
}


@pytest.mark.parametrize("seed", SEEDS[:1] if len(SEEDS) < 10 else SEEDS[:10])
@pytest.mark.parametrize("what", PLANTED)
def test_a_fault_in_the_noise_takes_its_gpu_out_once(what, seed):
    plant, fault = PLANTED[what]
    noise = Noise(seed)
    day(noise, hours=2, at=100, plant=plant)
    (out,) = noise.world.of(TakeOut)
    assert out.uuid == "GPU-1"
    # The kernel's log may have named an Xid before, of which this is a sign.
    assert out.fault == fault or (out.fault == "xid" and fault in ("recovery", "off-bus", "lost"))
    told = [one for one in noise.world.of(Tell) if one.hardware]
    assert [one.uuid for one in told] == ["GPU-1"]


def test_each_row_that_takes_out_is_planted():
    rows = {name for name, row in BY_NAME.items() if row.action is Action.OUT}
    assert rows - {fault for _, fault in PLANTED.values()} == {"slowdown-lasting"}


def test_heat_that_lasts_in_the_noise_is_one_after_the_other():
    noise = Noise(3)
    noise.hot = [2] * GPUS
    day(noise, hours=2, at=100, plant=stuck(reasons=0x44))
    assert [one.fault for one in noise.world.of(TakeOut)] == ["slowdown", "slowdown-lasting"]
    assert {one.uuid for one in noise.world.of(TakeOut)} == {"GPU-1"}
    assert noise.world.of(BringBack) == []
