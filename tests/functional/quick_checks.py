# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The quick checks of two simulated GPUs, made in a process that stays for many tests."""

import json
import os
import sys
from pathlib import Path

import pynvml

from tests.fakes import Card, fakekmsg, write_state

ROOT = Path(__file__).parents[2]
# Answers each line of its input, so that NVML and Python are loaded once for all tests.
COMMAND = [
    sys.executable,
    "-c",
    """
import dataclasses, json, pathlib, sys
from gpu_agent.gpu.vendors.nvidia import nvml_health as health, xid
from gpu_agent.model.inventory import Gpu
from gpu_selftest.quick import gpu_checks
from gpu_selftest.settings import Settings

def samples(uuids, count):
    with health.watch(uuids) as sample:
        return [{uuid: dataclasses.asdict(one) for uuid, one in sample().items()}
                for _ in range(count)]

for line in sys.stdin:
    asked = json.loads(line)
    root = pathlib.Path(asked["root"])
    gpus = tuple(Gpu(**{**gpu, "vendor": "nvidia"}) for gpu in asked["gpus"])
    settings = Settings(unit="worker/0", gpus=gpus, **asked["settings"])
    healths = health.read((gpu.uuid for gpu in gpus), root)
    results = gpu_checks.run(settings, healths, xid.read(root), gpus)
    print(json.dumps({
        "results": [dataclasses.asdict(one) | {"outcome": one.outcome.value, "level": ""}
                    for one in results],
        "healths": [dataclasses.asdict(healths[gpu.uuid]) for gpu in gpus],
        "samples": asked["samples"] and samples(list(healths), asked["samples"]),
    }), flush=True)
""",
]
CARDS = (Card(), Card(number=1))
GPUS = [
    {
        "index": card.number,
        "uuid": card.uuid,
        "model": card.model,
        "memory_mib": card.memory_mib,
        "pci_address": card.pci,
        "minor": card.minor,
    }
    for card in CARDS
]
MINIMUMS = {"min_gpu_memory_gib": 80, "min_compute_capability": "8.0"}


def environment(**more):
    paths = [ROOT / "src", ROOT / "lib", Path(pynvml.__file__).parent]
    path = ":".join(map(str, paths))
    return {"PATH": os.environ["PATH"], "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **more}


class Quick:
    """A machine with two GPUs whose self-test runs in a process of its own."""

    def __init__(self, process, state):
        self.process, self.state, self.root = process, state, state / "root"
        self.log = self.root / "dev/kmsg"

    def begin(self):
        write_state(self.state, CARDS)
        fakekmsg.begin(self.log)

    def put(self, name, value, card=0):
        (self.state / f"gpus/{card}/{name}").write_text(f"{value}\n")

    def ask(self, gpus=GPUS, samples=0, **settings):
        asked = {"root": str(self.root), "gpus": gpus, "samples": samples}
        asked["settings"] = MINIMUMS | settings
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def results(self, gpus=GPUS, **settings):
        return self.ask(gpus, **settings)["results"]


def named(results, *outcomes):
    return [
        (one["check"], int(one["gpu"][4:12]), one["outcome"])
        for one in results
        if one["outcome"] in outcomes
    ]


def only(results, check):
    (found,) = [one for one in results if one["check"] == check and one["gpu"] == CARDS[0].uuid]
    return found
