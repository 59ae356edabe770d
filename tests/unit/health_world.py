# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A worker's GPUs in simulated time, the judge that decides on them, and who does what it says."""

import collections

from gpu_agent.fault_policy.judge import Judge, Policy
from gpu_agent.fault_policy.state import Memory
from gpu_agent.model.card import Card, Figures
from gpu_agent.model.decisions import BringBack, Suspect, TakeOut, Tell
from gpu_agent.model.decisions import Test as Retest
from gpu_agent.model.observations import Hang, Holding, Look, Message, Moment, Source
from gpu_runtime.unavailable import QUARANTINED, Unavailable

POLL = 15.0
WALL = 1_800_000_000.0
WELL = Figures(busy=0, reasons=1, ecc_corrected=0, ecc_uncorrected=0, remap_pending=False,
               remap_failed=False, recovery_action=0, pids=())  # fmt: skip


def card(index):
    return Card(
        f"GPU-{index}", index, f"0000:{index:02x}:00.0", "A100-SXM4-80GB", (f"GPU-{index}",)
    )


class World:
    """Some GPUs; each decision is carried out as the clerk does it, and kept."""

    def __init__(self, count=2, *, full_disk=False, **policy):
        self.cards = tuple(map(card, range(count)))
        self.policy = Policy(**policy)
        self.judge = Judge(self.policy, Memory())
        self.now, self.booted = 1000.0, WALL - 1000
        self.figures = dict.fromkeys((one.uuid for one in self.cards), WELL)
        self.gone, self.missing = set(), set()
        self.out, self.holdings = {}, ()
        self.full_disk = full_disk
        self.all = []

    def turn(self, *seen):
        look = next((one for one in reversed(seen) if isinstance(one, Look)), None)
        unavailable = {uuid: Unavailable(QUARANTINED, "", "out") for uuid in self.out}
        moment = Moment(
            self.now, self.booted + self.now, self.cards, seen, look, self.holdings, unavailable
        )
        decisions = self.judge.turn(moment)
        for one in decisions:
            if self.full_disk or self.policy.mode == "observe":
                continue
            if isinstance(one, TakeOut):
                self.out[one.uuid] = one
            elif isinstance(one, BringBack):
                assert self.out[one.uuid].fault == one.fault
                del self.out[one.uuid]
        self.all += decisions
        return decisions

    def look(self, after=POLL, **changes):
        """A poll; changes are of GPU 0's figures."""
        self.now += after
        if changes:
            self.change(0, **changes)
        lost = self.gone | self.missing
        figures = {uuid: it for uuid, it in self.figures.items() if uuid not in lost}
        gone, missing = frozenset(self.gone), frozenset(self.missing)
        return self.turn(Look(self.now, figures, missing, gone))

    def looks(self, count, **changes):
        return [one for _ in range(count) for one in self.look(**changes)]

    def change(self, index, **changes):
        uuid = f"GPU-{index}"
        self.figures[uuid] = Figures(**{**vars(self.figures[uuid]), **changes})

    def event(self, xid=None, *, gpu=0, fault="", source=Source.EVENT, text="", after=1.0):
        self.now += after
        return self.turn(Message(self.now, f"GPU-{gpu}", source, fault, xid, text))

    def kernel(self, xid=None, **about):
        return self.event(xid, source=Source.KERNEL, **about)

    def hang(self, misses):
        self.now += POLL
        return self.turn(Hang(self.now, misses))

    def passes(self, index=0):
        """A test of the level that was asked for passes, and lifts the record."""
        del self.out[f"GPU-{index}"]

    def restart(self):
        """The watch is killed and starts again."""
        self.judge = Judge(self.policy, Memory.parse(self.judge.memory.as_json()))

    def reboot(self, away=120.0):
        wall = self.booted + self.now + away
        self.now = 40.0
        self.booted = wall - self.now
        self.restart()

    def hold(self, name, *indexes, ours=False):
        devices = tuple(f"GPU-{index}" for index in indexes)
        self.holdings = (
            *self.holdings,
            Holding(name, "/b", devices, self.now, in_use=True, ours=ours),
        )

    def of(self, kind):
        return [one for one in self.all if isinstance(one, kind)]

    def counts(self):
        return collections.Counter(type(one) for one in self.all)


def kinds(decisions):
    return [type(one) for one in decisions]


def only(decisions, kind):
    (one,) = [decision for decision in decisions if isinstance(decision, kind)]
    return one


__all__ = [
    "POLL",
    "WELL",
    "BringBack",
    "Retest",
    "Suspect",
    "TakeOut",
    "Tell",
    "World",
    "kinds",
    "only",
]
