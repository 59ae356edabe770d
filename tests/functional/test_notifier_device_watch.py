# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The watch on GPUs' nodes, on a real /dev, under a real systemd; a script is juju-exec."""

import pytest

from tests.functional import lease_site, selftest_machine

pytestmark = selftest_machine.NEEDS

# Each call is a line; the one that is told to hangs, as where a hook has the machine's lock.
JUJU_EXEC = """\
#!/bin/sh
trap '' TERM
printf '%s|' "$@" >>/srv/calls
env | grep -c -E '^(JUJU|PYTHON|GPU_CI)' >>/srv/calls
[ ! -e /srv/hang ] || { touch /srv/hangs; sleep 600; }
"""
CALL = "-u|gpu-box/0|JUJU_DISPATCH_PATH=hooks/update-status ./dispatch|0"
# As a hook does it, from a charm that lies in /srv/charm.
DO = """
import pathlib
from gpu_agent import install as app
app.HOME, app.CURRENT = pathlib.Path('/srv'), 'charm'
from gpu_agent.gpu.vendors import device_nodes as nodes
from gpu_agent.reporting.notifier import device_watch_unit as devices
devices._DISPATCH = pathlib.Path('/srv/dispatch')
print({})
"""
INSTALL = "devices.install('{}', nodes.present())"
PID = "$(systemctl show -P MainPID gpu-ci-devices)"
# How often it has run: an idle one never does.
RUNS = f"grep -h ctxt_switches /proc/{PID}/status"
IS_IDLE = f'before=$({RUNS}) && sleep 2 && [ "$before" = "$({RUNS})" ]'
IS_INACTIVE = "[ $(systemctl show -P ActiveState gpu-ci-devices) = inactive ]"
WRITES = "i=0; while [ $i -lt 10000 ]; do : >/dev/null; i=$((i+1)); done"


class Box:
    """The machine, and what is asked of it."""

    def __init__(self, host):
        self.machine, self.sh = host.machine, host.sh
        self.do = lambda code: host.run(DO.format(code)).strip()

    def wait(self, script):
        lease_site.until(lambda: self.sh(script, check=False).returncode == 0, 60)

    def wait_for_calls(self, count):
        self.wait(f"[ $(wc -l </srv/calls) -ge {count} ]")


@pytest.fixture(scope="module")
def installed():
    with selftest_machine.started("wake") as host:
        host.machine.write("/usr/bin/juju-exec", JUJU_EXEC, 0o755)
        host.sh("touch /srv/dispatch")
        yield Box(host)


@pytest.fixture
def box(installed):
    """With the watch on what is there now.

    It does not run before that is noted: for what the test before has left it would wake.
    """
    installed.sh("systemctl stop gpu-ci-devices || true; : >/srv/calls; rm -f /srv/hang*")
    assert installed.do(INSTALL.format("gpu-box/0")) == "True"
    return installed


def test_a_node_that_comes_or_goes_wakes_and_writes_do_not(box):
    assert box.do(INSTALL.format("gpu-box/0")) == "False"
    box.wait(IS_IDLE)
    before = box.sh(RUNS).stdout
    box.sh(WRITES)
    assert box.sh(RUNS).stdout == before
    box.sh("touch /dev/loop77; mknod /dev/nvidia7 c 195 7")
    box.wait_for_calls(1)
    box.sh("rm /dev/nvidia1")
    box.wait_for_calls(2)
    box.sh("mknod /dev/dri/card7 c 226 7")
    box.wait_for_calls(3)
    box.wait(IS_IDLE)
    # As LXD does it, with time enough to look in between.
    box.sh("touch /dev/nvidia9; sleep 2; mount --bind /dev/null /dev/nvidia9")
    box.wait_for_calls(4)
    box.sh("umount /dev/nvidia9; sleep 2; rm /dev/nvidia9")
    box.wait_for_calls(5)
    assert box.machine.read("/srv/calls").splitlines() == [CALL] * 5


def test_no_hook_waits_for_a_call_that_waits_for_that_hook(box):
    box.sh("touch /srv/hang; mknod /dev/nvidia8 c 195 8")
    box.wait("[ -e /srv/hangs ]")
    # Of another unit, as a hook would have it: this is back though the call ignores SIGTERM.
    assert box.do(INSTALL.format("gpu-box/1")) == "True"
    assert box.sh("pgrep -f '[/]juju-exec'", check=False).stdout == ""
    assert box.do("devices.remove()") == "True"
    left = "ls /etc/systemd/system/gpu-ci-devices* /run/gpu-ci/devices; pgrep -f '[-]m wake'"
    assert box.sh(left, check=False).stdout == ""
    assert box.do("devices.remove()") == "False"


def test_it_ends_with_the_charm_and_no_boot_starts_it_then(box):
    box.sh("rm /srv/dispatch; mknod /dev/kfd c 240 0")
    try:
        box.wait(IS_INACTIVE)
        # The journal comes to it when it has the time.
        box.wait("journalctl --unit gpu-ci-devices --output cat | grep -q 'the charm is gone'")
        box.sh("systemctl start gpu-ci-devices")
        box.wait(IS_INACTIVE)
        assert box.machine.read("/srv/calls") == ""
    finally:
        box.sh("touch /srv/dispatch; rm /dev/kfd")
