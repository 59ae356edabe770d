# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A burn-in on simulated GPUs: the real leases, NVML and kernel log, and faults that come midway.

Only PyTorch is not there: a program that tells what it would stands in its place.
"""

import json
import time

import pytest

from tests.functional import selftest_machine

pytestmark = selftest_machine.NEEDS

# Half a minute instead of one: the first 20 s prove nothing.
LOAD = """
import json, sys, time
for second in range(int(sys.argv[-1]) // 2):
    print(json.dumps({"tflops": 1.0, "products": second, "mismatches": 0}), flush=True)
    time.sleep(1)
print(json.dumps({"tflops": 1.0, "products": 30, "mismatches": 0, "ended": True}))
"""
SETUP = """
from gpu_agent.gpu.vendors import detect
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
from gpu_selftest import settings
gpus = detect.detect().gpus
install.apply(GpuPlan(gpus, "/usr/bin/nvidia-container-runtime"))
settings.write(settings.Settings("worker/0", gpus=gpus, files=install.installed()))
"""
RUN = """
import json, pathlib, sys
from gpu_selftest import settings
from gpu_selftest.burnin import level as burnin
from gpu_selftest.check import Request
from gpu_selftest.compute import work
from gpu_selftest.compute.environment import Environment
from gpu_selftest.compute.equipment import Equipment
work.PROGRAM = pathlib.Path("/srv/load.py")
equipment = Equipment(pytorch=lambda *_: Environment(pathlib.Path("/srv/env"), "key"))
kept = settings.read()
say = lambda line: print(line, file=sys.stderr, flush=True)
request = Request("20261121T170000Z-1a2b", minutes=1)
found = burnin.run(kept, kept.gpus, request, say, equipment)
first = kept.gpus[0].uuid
print(json.dumps([[one.gpu == first, one.check, one.outcome.value, one.text] for one in found]))
"""


@pytest.fixture(scope="module")
def host():
    with selftest_machine.started("burnin") as host:
        host.machine.write("/srv/load.py", LOAD)
        host.sh("mkdir -p /srv/env/bin; ln -s /usr/bin/python3 /srv/env/bin/python")
        runtime = "/etc/nvidia-container-runtime"
        host.sh(f"mkdir -p {runtime}; touch {runtime}/config.toml")
        host.run(SETUP)
        yield host


def test_faults_under_load_turn_their_own_checks_of_their_own_gpu(host):
    for gpu in "01":
        # Idle, they have less, which a GPU under load has not.
        host.fakegpu("set", gpu, "sm-clock-mhz=1300")
    host.machine.write("/srv/run.py", RUN)
    files = ["-p", "StandardOutput=file:/srv/out", "-p", "StandardError=file:/srv/err"]
    unit = ["/usr/bin/systemd-run", "--quiet", "--unit=burn", *files]
    host.machine.run([*unit, *host.python, "/srv/run.py"])
    deadline = time.monotonic() + 60
    while "Burn-in of 1 min on GPU 0, 1" not in host.sh("cat /srv/err").stdout:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    # A second one finds both in use, and starts nothing.
    busy = json.loads(host.run(RUN.replace("1a2b", "ffff")))
    assert {outcome for *_, outcome, _ in busy} == {"not-run"}
    assert all("is in use by " in text for *_, text in busy), busy
    host.fakegpu("set", "1", "throttle-reasons=0x48", "ecc-uncorrected-volatile=3")
    host.fakegpu("set", "0", "ecc-corrected-volatile=2")
    host.fakegpu("xid", "0", "13")
    host.sh("while systemctl is-active -q burn; do sleep 0.5; done")
    told = json.loads(host.sh("cat /srv/out").stdout)
    first = {check: (outcome, text) for is_first, check, outcome, text in told if is_first}
    second = {check: (outcome, text) for is_first, check, outcome, text in told if not is_first}
    assert {check for check, (outcome, _) in first.items() if outcome != "passed"} == {
        "burn-in-xid",
    }  # fmt: skip
    assert first["burn-in-xid"][0] == "warning"
    assert first["burn-in-ecc"][1] == "none uncorrected, 2 corrected"
    assert {check for check, (outcome, _) in second.items() if outcome != "passed"} == {
        "burn-in-ecc", "burn-in-throttle",
    }  # fmt: skip
    assert second["burn-in-throttle"] == (
        "failed",
        "slowed down by its hardware: 100 % of the time",
    )
    assert second["burn-in-ecc"] == ("failed", "uncorrected memory errors under load: 3")
    folder = "/var/lib/gpu-ci/selftest"
    pictures = host.sh(f"ls {folder}").stdout.split()
    assert pictures == [f"burn-in-20261121T170000Z-1a2b-gpu{index}.svg" for index in (0, 1)]
    assert 'class="slowed"' in host.sh(f"cat {folder}/{pictures[1]}").stdout
    assert 'class="slowed"' not in host.sh(f"cat {folder}/{pictures[0]}").stdout
