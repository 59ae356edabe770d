# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Moments for the tests of the watch's parts that speak to jobs: a clock, GPUs, leases, looks."""

import dataclasses

from gpu_agent.model.card import Card, Figures
from gpu_agent.model.observations import Holding, Look, Moment

IDLE = Figures(busy=0, memory_used_mib=4, memory_total_mib=81920, energy_j=0.0, pids=(), drawing=0)
BUSY = dataclasses.replace(IDLE, busy=80, memory_used_mib=20480, pids=(4711,))
FIRST = 1000.0


def card(index, *devices):
    uuid = f"GPU-{index}"
    return Card(uuid, index, f"0000:0{index}:00.0", "A100-SXM4-80GB", devices or (uuid,))


def job(name="t1", *devices, since=FIRST, **changes):
    found = Holding(name, f"/b/{name}", devices or ("GPU-0",), since, in_use=True, waited=12.0)
    return dataclasses.replace(found, **changes)


class Days:
    """A clock, and what the watch has at each of its turns.

    Attributes:
        now: seconds since boot.
        cards, holdings, unavailable: as in a Moment.
        figures: what a look finds, by the UUID; None: none comes.
    """

    def __init__(self, *cards):
        self.now = FIRST
        self.cards = cards or (card(0), card(1))
        self.holdings = ()
        self.unavailable = {}
        self.figures = {card.uuid: IDLE for card in self.cards}
        self.look = None

    def moment(self, *, look=False):
        if look:
            self.look = Look(self.now, dict(self.figures))
        return Moment(
            self.now, 1.7e9 + self.now, self.cards, look=self.look, holdings=self.holdings,
            unavailable=self.unavailable, driver="580.95", cuda="13.0",
        )  # fmt: skip
