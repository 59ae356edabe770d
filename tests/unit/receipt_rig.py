# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A watch of one's own for the ledger: a clock, GPUs, who holds them, and what a look finds."""

import dataclasses
import datetime
import json

from gpu_agent.model.card import Card, Figures
from gpu_agent.model.observations import Holding, Look, Message, Moment, Source
from gpu_agent.reporting.receipts import log
from gpu_agent.reporting.receipts.lease_journal import Journal
from gpu_agent.reporting.receipts.ledger import Ledger

BOOTED = 1_763_900_000.0  # 2025-11-23T12:13:20Z
A, B = "GPU-aaaa", "GPU-bbbb"
IDLE = Figures(busy=0, memory_used_mib=10, memory_total_mib=81920, pids=(), reasons=1)
BUSY = Figures(busy=80, memory_used_mib=60000, memory_total_mib=81920, pids=(7,), reasons=0)


def card(uuid=A, index=0, devices=None):
    return Card(uuid, index, f"0000:0{index}:00.0", "A100-SXM4-80GB", devices or (uuid,))


def holding(container="c1", devices=(A,), since=100.0, in_use=True, ours=False):
    return Holding(container, f"/run/{container}", tuple(devices), since, in_use, ours)


class Rig:
    """A ledger on real files, and the turns that it is given."""

    def __init__(self, tmp_path, boot="boot-1", names=lambda _: None):
        self.path, self.state = tmp_path / "log/receipts.log", tmp_path / "state/accounts.json"
        self.oci = tmp_path / "oci.log"
        self.cards = (card(A, 0), card(B, 1))
        self.now, self.boot, self.names = 100.0, boot, names
        self.clock = 0.0  # how far the machine's clock was set forth since
        self.held = ()
        self.last_look = None
        self.start()

    def start(self, boot=None):
        """The daemon is killed and started again."""
        self.boot, self.last_look = boot or self.boot, None
        self.ledger = Ledger(
            self.path,
            state=self.state,
            journal=Journal(self.oci),
            names=self.names,
            boot=self.boot,
        )

    def turn(self, *seen, decisions=(), held=None, at=None):
        """One turn; `held` are the holdings from now on, "unknown" where they can't be told."""
        self.now = self.now if at is None else at
        if held is not None:
            self.held = None if held == "unknown" else tuple(held)
        looks = [one for one in seen if isinstance(one, Look)]
        self.last_look = looks[-1] if looks else self.last_look
        self.ledger.turn(
            Moment(
                self.now,
                BOOTED + self.now + self.clock,
                self.cards,
                seen,
                self.last_look,
                self.held,
            ),
            decisions,
        )

    def look(self, at, found=None, **figures):
        """A poll at that second: `found` of each GPU, or `figures` of the first beside BUSY's."""
        found = found or {A: dataclasses.replace(BUSY, **figures), B: IDLE}
        self.turn(Look(at, found), at=at)

    def xid(self, at, number, uuid=A, source=Source.EVENT):
        self.turn(Message(at, uuid, source, xid=number), at=at)

    def decided(self, container, kind="task", **fields):
        """The wrapper, or an action, writes to its log."""
        moment = datetime.datetime.fromtimestamp(
            BOOTED + self.now + self.clock, datetime.timezone.utc
        )
        time = f"{moment:%Y-%m-%dT%H:%M:%S}.000Z"
        line = {
            "time": time,
            "boot": self.boot,
            "since_boot": self.now,
            "container": container,
            "kind": kind,
            "granted": [A],
            "waited_ms": 0,
            **fields,
        }
        with self.oci.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def receipts(self):
        return list(log.read(self.path))

    def only(self):
        (receipt,) = self.receipts()
        return receipt
