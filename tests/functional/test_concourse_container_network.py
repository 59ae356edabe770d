# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Forwarding is turned on in a real kernel, in a network of the test's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# iptables is installed in the lab's machines; here that would change the developer's own.
CODE = """
import pathlib, sys
from ci.concourse.worker import container_network as network
drop_in = pathlib.Path(sys.argv[1]) / "90-gpu-ci-worker.conf"
machine = network.Machine(drop_in, install=lambda *names: False)
live = pathlib.Path("/proc/sys/net/ipv4/ip_forward")
live.write_text("0")
seen = []
for step in (network.ensure, network.ensure, network.remove, network.remove):
    seen.append((step(machine), live.read_text().strip(), drop_in.exists()))
print(seen)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_forwarding_in_a_network_of_its_own(tmp_path):
    done = subprocess.run(
        ["unshare", "--net", "--mount", sys.executable, "-c", CODE, tmp_path],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}/src:{ROOT}/lib"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(
        [(True, "1", True), (False, "1", True), (True, "1", False), (False, "1", False)]
    )
