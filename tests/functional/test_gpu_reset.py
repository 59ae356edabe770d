# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A reset of a simulated GPU by systemd: what stands in its way comes back whatever it ends in."""

import json
import time

import pytest

from tests.fakes import nvidiapackages
from tests.functional import selftest_machine

pytestmark = selftest_machine.NEEDS

BESIDE = "beside.service"
# Notes what is asked for, and whether the service beside is out of the way then.
SMI = nvidiapackages.SMI.replace(
    "#!/bin/sh\n",
    f'#!/bin/sh\necho "$1 $2 $(systemctl is-active {BESIDE})" >>/run/asked\n. /run/before\n',
)
CALL = """
import json
from gpu_agent.gpu.vendors.nvidia import reset as gpu_reset
print(json.dumps(gpu_reset.reset({uuid!r}, persistent=True, beside={beside!r})))
"""


class Host(selftest_machine.Host):
    uuid = ""

    def reset(self, before=":"):
        """Have a GPU reset, where nvidia-smi first does what `before` says; why that failed."""
        self.machine.write("/run/before", before + "\n")
        self.sh("rm -f /run/asked")
        return json.loads(self.run(CALL.format(uuid=self.uuid, beside=BESIDE)))

    def asked(self):
        return self.sh("cat /run/asked").stdout.splitlines()

    def runs_beside(self):
        """Whether the service beside runs, which systemd starts without waiting for it."""
        deadline = time.monotonic() + 30
        while self.sh(f"systemctl is-active {BESIDE}", check=False).stdout != "active\n":
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        return True


@pytest.fixture(scope="module")
def host():
    with selftest_machine.started("reset") as started:
        host = Host(started.machine, started.libraries)
        host.machine.write("/usr/bin/nvidia-smi", SMI, 0o755)
        unit = "[Service]\nExecStart=/bin/sleep infinity\n"
        host.machine.write(f"/etc/systemd/system/{BESIDE}", unit)
        host.sh(f"systemctl daemon-reload; systemctl start {BESIDE}")
        host.uuid = host.sh("cat /var/lib/fake-gpu/gpus/0/uuid").stdout.strip()
        yield host


ALL = ["-pm 0 inactive", "--gpu-reset -i inactive", "-pm 1 inactive"]


def test_a_gpu_is_reset_and_all_is_as_before(host):
    host.fakegpu("set", "0", "field-230=1")
    assert host.reset() == ""
    assert host.asked() == ALL
    assert host.runs_beside()
    assert host.sh("ls /var/lib/fake-gpu/gpus/0/field-230", check=False).returncode


def test_what_nvidia_smi_says_against_it_is_told(host):
    host.fakegpu("refuse-reset")
    assert "currently in use by another process" in host.reset()
    host.fakegpu("refuse-reset", "off")
    assert host.asked() == ALL
    assert host.runs_beside()


def test_one_that_is_killed_leaves_nothing_out_of_place(host):
    """As by systemd's own time limit."""
    kill = 'case "$1" in --gpu-reset) kill -9 $$;; esac'
    assert host.reset(kill) == "it ended with signal 9"
    assert host.asked() == ALL
    assert host.runs_beside()
    assert host.reset() == ""
