# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The machine's interfaces, read from a real kernel in networks of the test's own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ci.concourse.plan.addresses import choose
from gpu_agent.model import errors
from host import network
from machine import process
from machine import process as machine_process
from plan.network import Interface, Offer

ROOT = Path(__file__).parents[2]
CODE = """
import dataclasses, json
from host import network
print(json.dumps([dataclasses.asdict(one) for one in network.interfaces()]))
"""
LINKS = """
set -e
ip link set lo up
ip link add eth0 type veth peer name peer0
ip link add link eth0 name mac0 type macvlan
ip link add br-uplink type bridge
ip link add concourse0 type bridge
ip link add task type veth peer name task1
ip link set peer0 master br-uplink
ip link set task master concourse0
for one in eth0 peer0 mac0 br-uplink concourse0 task task1; do ip link set $one up; done
ip address add 10.80.0.1/16 dev concourse0
ip address add 10.0.0.7/24 dev br-uplink
ip address add 169.254.3.4/16 dev br-uplink
ip address add 10.0.0.8/24 dev br-uplink
ip -6 address add FD00:0::7/64 dev br-uplink nodad
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")


def look(script):
    """What is found in a network that the script has made."""
    shell = ["/bin/bash", "-c", f'{script}\n"$@"', "-"]
    done = subprocess.run(
        ["unshare", "--net", *shell, sys.executable, "-c", CODE],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}/src:{ROOT}/lib"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [
        Interface(**{**one, "addresses": tuple(one["addresses"])})
        for one in json.loads(done.stdout)
    ]
    return {one.name: one for one in found}


def test_what_the_kernel_has():
    found = look(LINKS)
    ours = ("10.0.0.7", "10.0.0.8", "fd00::7")
    assert found["lo"] == Interface("lo")
    assert found["br-uplink"] == Interface("br-uplink", "bridge", ours)
    assert found["mac0"] == Interface("mac0", "macvlan", lower="eth0")
    assert (found["peer0"].kind, found["peer0"].master) == ("veth", "br-uplink")
    assert found["concourse0"] == Interface("concourse0", "bridge", ("10.80.0.1",))
    assert (found["task"].kind, found["task"].master) == ("veth", "concourse0")


@pytest.mark.parametrize(
    ("route", "ways_out"),
    [
        ("ip route add default via 10.0.0.1", {"br-uplink"}),
        ("ip -6 route add default via fd00::1 dev br-uplink", {"br-uplink"}),
        ("ip route add unreachable default", set()),
        ("ip route add 0.0.0.0/1 via 10.0.0.1", set()),
        ("", set()),
    ],
)
def test_the_way_out_is_the_interface_of_the_default_route(route, ways_out):
    found = look(f"{LINKS}{route}")
    assert {name for name, one in found.items() if one.has_default_route} == ways_out
    bound = ("10.80.0.1", "10.0.0.7")
    chosen = choose(Offer(bound, bound), tuple(found.values()))
    assert chosen == ("10.0.0.7" if ways_out else "")


def fail(*_, **__):
    raise process.CommandError(["/usr/sbin/ip"], None, "no end within 10 s")


@pytest.mark.parametrize(
    "run", [fail, lambda *_, **__: process.Completed(0, '[{"ifname":', "")], ids=["fails", "half"]
)
def test_an_error_is_no_absence(monkeypatch, run):
    monkeypatch.setattr(machine_process, "run", run)
    with pytest.raises(errors.UnknownError, match="cannot be read, so nothing is changed"):
        network.interfaces()
