# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Machines of the lab with AMD's and Intel's simulated GPUs, as `lab gpu install` makes them."""

import json
import pathlib

import pytest

from tests.lab import outfit
from tests.lab.juju.agent import SHARED

ROOT = pathlib.Path(__file__).parents[2]
DETECT = """
import sys
sys.path[:0] = ["/srv/repo/src", "/srv/repo/lib"]
from gpu_agent.gpu.vendors import detect, report
print(report.as_json(detect.detect(), (), {}))
"""


@pytest.fixture
def machine(park, tmp_path):
    outfit.prepare(tmp_path)
    machine = park.up("one", binds_ro={SHARED: tmp_path, "/srv/repo": ROOT})
    outfit.fit(machine, {"gpus": 2}, tmp_path)
    return machine


def detected(machine):
    found = json.loads(machine.run(["/usr/bin/python3", "-c", DETECT]).stdout)
    return found["vendor"], found["state"], [gpu["nodes"][0] for gpu in found["gpus"]]


def test_a_machine_gets_another_makers_cards_and_has_them_after_a_reboot(machine):
    outfit.fakegpu(machine, "install", "--vendor", "amd", "--count", "2")
    assert detected(machine) == ("amd", "ready", ["/dev/kfd"] * 2)
    stat = machine.run(["/usr/bin/stat", "-c", "%a %g", "/dev/kfd", "/dev/dri/card32"]).stdout
    kfd, card = stat.splitlines()
    assert kfd.split()[0] == card.split()[0] == "660"
    assert kfd != card != "660 0"
    machine.reboot()
    assert detected(machine) == ("amd", "ready", ["/dev/kfd"] * 2)
    outfit.fakegpu(machine, "install", "--vendor", "intel", "--count", "1")
    card = "/dev/dri/by-path/pci-0000:01:00.0-card"
    assert detected(machine) == ("intel", "ready", [card])
