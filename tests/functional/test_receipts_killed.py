# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A ledger in a process of its own that is killed with SIGKILL at any point, again and again.

Whatever it was doing, no lease is lost and none is written twice; what is left of a torn line
spoils no other one. The store of leases outlives it, as on a worker.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import time

from gpu_agent.reporting.receipts import log

ROOT = pathlib.Path(__file__).parents[2]
LEASES, KILLS = (1000, 300) if os.environ.get("GPUCI_SOAK") else (60, 20)
TURNS = 8  # at most between two kills

# Each lease is held for three turns, then gone: in real time a turn is as long as the disk takes.
# `at` is on the disk before the turn that begins there, as the store of leases is on a worker.
WRITER = """
import json, os, pathlib, sys, time
from gpu_agent.model.card import Card, Figures
from gpu_agent.model.observations import Holding, Look, Moment
from machine import files
from gpu_agent.reporting.receipts.lease_journal import Journal
from gpu_agent.reporting.receipts.ledger import Ledger

folder, leases = pathlib.Path(sys.argv[1]), int(sys.argv[2])
ledger = Ledger(
    folder / "log/receipts.log", state=folder / "state/accounts.json",
    journal=Journal(folder / "oci.log"), boot="boot",
)
card = Card("GPU-a", 0, "0000:01:00.0", "A100", ("GPU-a",))
path = folder / "at"
at = int(files.read_text(path) or 0)
rest = at + int(sys.argv[3])
print("ready", flush=True)
while at < 3 * leases + 30:
    while at == rest:
        time.sleep(1)
    number, now = at // 3, 1000.0 + 20 * at
    held = (Holding(f"c{number}", "/run/c", ("GPU-a",), 1000.0 + 60 * number, True),)
    look = Look(now, {"GPU-a": Figures(busy=50, pids=(1,), energy_j=now)})
    moment = Moment(now, 1.7e9 + now, (card,), (look,), look, held if number < leases else ())
    ledger.turn(moment, ())
    at += 1
    path.with_suffix(".new").write_text(str(at))
    path.with_suffix(".new").replace(path)
"""


def test_no_lease_is_lost_or_written_twice_wherever_the_writer_is_killed(tmp_path):
    chance = random.Random(14)
    argv = [sys.executable, "-B", "-c", WRITER, str(tmp_path), str(LEASES)]
    environment = {"PYTHONPATH": f"{ROOT}/src:{ROOT}/lib"}
    for _ in range(KILLS):
        with subprocess.Popen(
            [*argv, str(TURNS)], env=environment, stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0, 0.2))
            writer.kill()
    subprocess.run([*argv, "-1"], env=environment, check=True, timeout=300)
    found = list(log.read(tmp_path / "log/receipts.log"))
    whole = [one for one in found if one]
    assert [one.container for one in whole] == [f"c{number}" for number in range(LEASES)]
    assert {one.outcome for one in whole} <= {"ended", "lost"}
    assert len(found) - len(whole) <= KILLS
    assert all(one.held_s <= 60 for one in whole)
    state = json.loads((tmp_path / "state/accounts.json").read_text())
    assert (state["open"], state["pending"]) == ([], [])
