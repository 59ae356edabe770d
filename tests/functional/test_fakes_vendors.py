# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Simulated AMD and Intel GPUs, and what the charm's own code finds of them."""

import os
from pathlib import Path

import pytest

from tests.functional import gpu_machine

ROOT = Path(__file__).parents[2]
DETECT = """
import sys
sys.path[:0] = ["{root}/src", "{root}/lib"]
from gpu_agent.gpu.vendors import detect, report
print(report.as_json(detect.detect("{vendor}"), (), {{}}))
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and device nodes need root")


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    with gpu_machine.start(tmp_path_factory) as machine:
        yield machine


def test_amd_cards_have_their_own_nodes_and_tree(machine):
    machine.fakegpu("install", "--count", "2")
    machine.fakegpu("install", "--vendor", "amd", "--count", "2")
    shown = "%n %t:%T %a %u"
    nodes = machine.run("sh", "-c", f"stat -c '{shown}' /dev/kfd /dev/dri/*D* /dev/dri/c*").stdout
    assert nodes.splitlines() == [
        "/dev/kfd 1fd:0 660 0",
        "/dev/dri/renderD160 e2:a0 660 0",
        "/dev/dri/renderD161 e2:a1 660 0",
        "/dev/dri/card32 e2:20 660 0",
        "/dev/dri/card33 e2:21 660 0",
    ]
    groups = machine.run("stat", "-c", "%g", "/dev/dri/card32", "/dev/dri/renderD160", "/dev/kfd")
    card, render, kfd = groups.stdout.split()
    assert card != render == kfd != "0"
    assert not any(machine.exists("/dev/nvidia0", "/dev/nvidiactl", "/proc/driver/nvidia/version"))
    assert "libnvidia-ml" not in machine.run("/sbin/ldconfig", "-p").stdout
    before = machine.run("find", "/dev/dri", "/dev/kfd", "-printf", "%p %i %C@\n").stdout
    machine.fakegpu("apply")
    assert machine.run("find", "/dev/dri", "/dev/kfd", "-printf", "%p %i %C@\n").stdout == before


def detected(machine, vendor="auto"):
    """What the charm's own code finds there: its state, and each GPU's id, memory and nodes."""
    found = machine.python(DETECT.format(root=ROOT, vendor=vendor))
    return found["state"], [
        (gpu["uuid"], gpu["memory_mib"], gpu["nodes"]) for gpu in found["gpus"]
    ]


def by_path(card, *kinds):
    return [f"/dev/dri/by-path/pci-{card['pci']}-{kind}" for kind in kinds]


def test_the_charm_finds_amd_cards_that_come_and_go(machine):
    machine.fakegpu("install", "--vendor", "amd", "--count", "2")
    cards = machine.cards()
    ids = ["GPU-" + card["uuid"].replace("-", "")[3:19] for card in cards]
    both = [
        (i, 65520, ["/dev/kfd", *by_path(c, "render")]) for i, c in zip(ids, cards, strict=True)
    ]
    assert detected(machine) == ("ready", both)
    machine.fakegpu("lose", "0", "--nvml-only")
    assert detected(machine) == ("ready", both[1:])
    machine.fakegpu("lose", "0")
    assert detected(machine) == ("ready", both[1:])
    machine.fakegpu("restore", "0")
    machine.fakegpu("set", "0", "partitions=8")
    state, gpus = detected(machine)
    assert (state, len(gpus)) == ("ready", 9)
    assert gpus[7] == (f"{ids[0]}-7", 8190, ["/dev/kfd", "/dev/dri/renderD199"])
    assert machine.exists(*(node for _, _, nodes in gpus for node in nodes)) == [True] * 18
    machine.fakegpu("driver", "gone")
    assert detected(machine) == ("no driver", [])
    assert machine.exists("/dev/kfd", "/dev/dri/renderD160") == [False, False]
    machine.fakegpu("driver", "loaded")
    machine.fakegpu("bind", "0", "vfio-pci")
    assert detected(machine) == ("ready", both[1:])


def test_the_charm_finds_intel_cards_beside_another_makers(machine):
    machine.fakegpu("install", "--vendor", "intel", "--count", "1")
    machine.fakegpu("add", "--vendor", "amd")
    first, second = machine.cards()
    intel = [(f"PCI-{first['pci']}", 16384, by_path(first, "card", "render"))]
    assert detected(machine, "intel") == ("ready", intel)
    assert [nodes[0] for _, _, nodes in detected(machine)[1]] == ["/dev/kfd"]
    machine.fakegpu("bind", "1", "none")
    assert detected(machine) == ("no driver", [])
    assert machine.exists("/dev/kfd", *by_path(first, "card"), *by_path(second, "card")) == [
        False, True, False,
    ]  # fmt: skip
