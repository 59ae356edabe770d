# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A machine's simulated kernel log: there from its boot on, and gone at the next."""

import json
import pathlib

from tests.lab import outfit
from tests.lab.juju.agent import SHARED

ROOT = pathlib.Path(__file__).parents[2]
LOOK = """
import json, sys
sys.path[:0] = ["/srv/repo/src", "/srv/repo/lib"]
from gpu_agent.gpu.vendors.nvidia import xid
log = xid.read()
print(json.dumps([log.problem, log.complete, [[m.code, m.pci_address] for m in log.messages]]))
"""


def seen(machine):
    return json.loads(machine.run(["/usr/bin/python3", "-c", LOOK]).stdout)


def test_an_xid_is_in_the_log_until_the_machine_is_rebooted(park, tmp_path):
    outfit.prepare(tmp_path)
    machine = park.up("one", binds_ro={SHARED: tmp_path, "/srv/repo": ROOT})
    assert seen(machine)[0] == "/dev/kmsg: No such file or directory"
    outfit.fit(machine, {"gpus": 2}, tmp_path)
    assert seen(machine) == ["", True, []]
    outfit.fakegpu(machine, "xid", "1", "79")
    outfit.fakegpu(machine, "lose", "1")
    machine.enter("/bin/systemctl", "restart", "systemd-journald")
    machine.enter("/bin/systemctl", "daemon-reexec")
    assert seen(machine) == ["", True, [[79, "0000:02:00.0"]]]
    machine.reboot()
    assert machine.enter("/bin/systemctl", "is-system-running").stdout == "running\n"
    assert seen(machine) == ["", True, []]
