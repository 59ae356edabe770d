# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The settings of the host in a machine: real systemd, sysctl and modprobe, a kernel's word faked.

The limit of mappings is the kernel's as a whole, so that the machine has a file in its place. Its
persistence daemon is a shell script, started by Ubuntu's own unit.
"""

import contextlib
import json
import pathlib
import subprocess
import tempfile

import pytest

from tests.functional.apt_machine import NEEDS, SITE_PACKAGES
from tests.functional.forked_calls import Calls
from tests.lab.park import Park

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = NEEDS

LIVE = "/proc/sys/vm/max_map_count"
UNIT = "/etc/systemd/system/nvidia-persistenced.service"
SYSCTL = "/etc/sysctl.d/60-gpu-ci.conf"
MODPROBE = "/etc/modprobe.d/zz-gpu-ci-nvidia.conf"
RECORD = "/var/lib/gpu-ci/host-settings.json"
IDLE = "--no-persistence-mode"
PREPARE = f"""
set -e
rm /run/systemd/container
mkdir -p /root/maps /var/lib/gpu-ci
echo 65530 >/root/max_map_count
mount --bind /root/max_map_count {LIVE}
touch /dev/nvidia0 /dev/nvidiactl
printf 'Mobile: 4294967295\\nModifyDeviceFiles: 1\\nDeviceFileMode: 438\\n' >/root/params
printf '#!/bin/sh\\nsleep infinity & echo $! >/run/persistenced.child; wait\\n' \\
    >/usr/bin/nvidia-persistenced
chmod 755 /usr/bin/nvidia-persistenced
"""
# As Ubuntu has it, but for the daemon's way into the background.
DAEMON = f"""[Unit]
Description=NVIDIA Persistence Daemon

[Service]
# Else it is "started" while it is systemd's own child still, with no arguments of its own.
Type=exec
ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced {IDLE} --verbose
"""
INSTALL = "[Install]\nWantedBy=multi-user.target\n"
CALLS = """
import logging, pathlib
from host import kernel_settings as settings
from tests.functional.forked_calls import serve
settings._PARAMETERS = pathlib.Path("/root/params")
logging.basicConfig(level=logging.WARNING)
serve(lambda asked: getattr(settings, asked[0])(*asked[1:]))
"""


class Host:
    def __init__(self, machine):
        self.machine = machine
        path = "/srv/repo/src:/srv/repo/lib:/srv/repo:/srv/packages"
        self._calls = Calls(machine, path, "-c", CALLS)

    def close(self):
        self._calls.close()

    def sh(self, script, check=True):
        return self.machine.enter("/bin/sh", stdin=script, check=check).stdout

    def call(self, name, *arguments):
        return self._calls.ask([name, *arguments])

    def ensure(self, nvidia=True):
        return self.call("ensure", nvidia)

    def remove(self):
        return self.call("remove")

    def limit(self):
        return int(self.sh(f"cat {LIVE}"))

    def set_limit(self, most):
        self.sh(f"echo {most} >{LIVE}")

    def daemon(self):
        """The arguments that the daemon runs with; None if it does not."""
        pid = self.sh("systemctl show -P MainPID nvidia-persistenced").strip()
        return self.sh(f"tr '\\0' ' ' </proc/{pid}/cmdline").split()[2:] if pid != "0" else None

    def install(self, unit=DAEMON, *commands):
        self.machine.write(UNIT, unit)
        self.sh("systemctl daemon-reload; " + "; ".join(commands))

    def etc(self):
        """All that is below /etc: names, modes, sizes, links and folders."""
        return self.sh("find /etc -type d -printf '%p %m\\n' -o -printf '%p %m %s %l\\n' | sort")

    def exists(self, path):
        return self.sh(f"test -e {path} && echo yes", check=False).strip() == "yes"


@pytest.fixture(scope="module")
def booted():
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gpuci-test-") as folder:
        park = Park(pathlib.Path(folder))
        try:
            binds = {"/srv/repo": ROOT, "/srv/packages": SITE_PACKAGES}
            machine = park.up("settings", binds_ro=binds)
            with contextlib.closing(Host(machine)) as host:
                host.sh(PREPARE)
                yield host
        finally:
            park.destroy()


@pytest.fixture
def host(booted):
    before = booted.etc()
    yield booted
    booted.remove()
    booted.sh(
        f"systemctl disable --now nvidia-persistenced 2>&1; rm -rf {UNIT} {UNIT}.d "
        f"{MODPROBE} /etc/modprobe.d/nvidia.conf /run/systemd/container; systemctl daemon-reload; "
        "sed -i 's/^DeviceFileMode.*/DeviceFileMode: 438/' /root/params; touch /dev/nvidia0"
    )
    booted.set_limit(65530)
    assert booted.etc() == before
    assert not booted.exists(RECORD)


def test_a_machine_without_a_daemon_gets_its_limit_and_loses_it_again(host):
    before = host.etc()
    assert host.ensure() is True
    assert host.limit() == 1048576
    # What the next boot reads.
    host.set_limit(65530)
    host.sh(f"sysctl -q -p {SYSCTL}")
    assert host.limit() == 1048576
    assert host.ensure() is False
    assert host.remove() is True
    assert (host.limit(), host.etc()) == (65530, before)
    assert not host.exists(RECORD)
    assert host.remove() is False


def test_a_higher_limit_is_the_operators(host):
    host.set_limit(2000000)
    assert host.ensure() is False
    assert not host.exists(SYSCTL)
    assert host.remove() is False
    assert host.limit() == 2000000


def test_a_limit_that_somebody_has_changed_since_stays(host):
    host.ensure()
    host.set_limit(3000000)
    assert host.ensure() is False
    assert host.remove() is True
    assert host.limit() == 3000000
    assert not host.exists(SYSCTL)


def test_a_boot_that_brings_a_lower_one_is_no_reason_to_forget_the_first(host):
    host.set_limit(100000)
    host.ensure()
    host.set_limit(65530)
    assert host.ensure() is True
    assert host.limit() == 1048576
    host.remove()
    assert host.limit() == 100000


def test_a_program_that_needs_the_limit_by_now_keeps_it(host):
    host.set_limit(200)
    host.ensure()
    code = "import mmap,time; a=[mmap.mmap(-1, 4096, prot=1+i%2) for i in range(900)]; print(1)"
    code += "; import sys; sys.stdout.flush(); time.sleep(600)"
    command = [*host.machine.enter_command(), "/usr/bin/python3", "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        assert program.stdout.readline() == b"1\n"
        try:
            assert host.remove() is True
        finally:
            host.sh("pkill -f 'mmap.mmap[(]' || :")
    assert host.limit() == 1048576
    assert not host.exists(SYSCTL)


def test_a_limit_that_can_not_be_set_is_left_alone(host):
    host.sh(f"mount -o remount,bind,ro {LIVE}")
    try:
        assert host.ensure() is False
        assert not host.exists(SYSCTL)
    finally:
        host.sh(f"mount -o remount,bind,rw {LIVE}")


def test_in_a_container_the_limit_is_its_hosts(host):
    host.ensure()
    host.sh("mkdir -p /run/systemd; echo lxc >/run/systemd/container")
    # As by an earlier revision, where AppArmor lets nobody write it.
    assert host.remove() is True
    assert host.limit() == 1048576
    host.set_limit(65530)
    assert host.ensure(nvidia=False) is False
    assert host.limit() == 65530
    assert not host.exists(SYSCTL)


def test_the_daemon_holds_the_gpus_as_long_as_the_charm_wants_it(host):
    host.install(DAEMON, "systemctl start nvidia-persistenced")
    with_daemon = host.etc()
    assert host.daemon() == ["--user", "nvidia-persistenced", IDLE, "--verbose"]
    assert host.ensure() is True
    assert host.daemon() == ["--user", "nvidia-persistenced", "--verbose"]
    assert host.ensure() is False
    # As udev does at each boot.
    host.sh("systemctl restart nvidia-persistenced")
    assert host.daemon() == ["--user", "nvidia-persistenced", "--verbose"]
    assert host.remove() is True
    assert host.daemon() == ["--user", "nvidia-persistenced", IDLE, "--verbose"]
    assert host.etc() == with_daemon


def test_a_hook_that_was_killed_before_the_restart_is_made_good(host):
    host.install(DAEMON, "systemctl start nvidia-persistenced")
    host.ensure()
    drop_in = host.sh(f"cat {UNIT}.d/gpu-ci.conf")
    host.remove()
    record = json.dumps({"daemon": ["active", "static"]})
    host.machine.write(RECORD, record)
    host.sh(f"mkdir {UNIT}.d")
    host.machine.write(f"{UNIT}.d/gpu-ci.conf", drop_in)
    assert host.ensure() is True
    assert IDLE not in host.daemon()
    host.sh(f"rm -r {UNIT}.d; systemctl daemon-reload")
    assert host.remove() is True
    assert IDLE in host.daemon()


def test_a_daemon_that_is_off_is_enabled_and_off_again_afterwards(host):
    host.install(DAEMON.replace(f"{IDLE} ", "") + INSTALL)
    assert host.ensure() is True
    assert host.daemon() == ["--user", "nvidia-persistenced", "--verbose"]
    assert host.sh("systemctl is-enabled nvidia-persistenced").strip() == "enabled"
    assert not host.exists(f"{UNIT}.d")
    assert host.ensure() is False
    assert host.remove() is True
    assert host.daemon() is None
    assert host.sh("systemctl is-enabled nvidia-persistenced", check=False).strip() == "disabled"


def test_a_daemon_that_runs_as_it_should_is_none_of_ours(host):
    host.install(
        DAEMON.replace(f"{IDLE} ", "") + INSTALL, "systemctl enable -q --now nvidia-persistenced"
    )
    host.ensure()
    assert "daemon" not in json.loads(host.sh(f"cat {RECORD}"))
    host.remove()
    assert host.daemon() == ["--user", "nvidia-persistenced", "--verbose"]


@pytest.mark.parametrize(
    "so",
    [
        "rm /dev/nvidia0",
        "mkdir -p /run/systemd; echo lxc >/run/systemd/container",
        "mkdir -p /run/systemd/system; systemctl mask -q --runtime nvidia-persistenced",
    ],
    ids=["without a GPU", "in a container", "masked by the operator"],
)
def test_a_daemon_that_can_not_or_must_not_run_is_left_alone(host, so):
    host.set_limit(2000000)
    unit = "/usr/lib/systemd/system/nvidia-persistenced.service"
    host.machine.write(unit, DAEMON)
    host.sh(f"systemctl daemon-reload; {so}")
    try:
        assert host.ensure() is False
        assert host.daemon() is None
    finally:
        host.sh(f"systemctl unmask -q --runtime nvidia-persistenced; rm {unit}")


def test_a_daemon_that_can_not_be_started_stops_nothing(host):
    host.install(DAEMON.replace("/usr/bin/nvidia-persistenced", "/bin/false") + "Type=oneshot\n")
    assert host.ensure() is True
    assert host.limit() == 1048576
    assert host.remove() is True


def test_a_daemon_that_can_not_be_set_back_is_set_back_later(host):
    host.install(DAEMON, "systemctl start nvidia-persistenced")
    host.ensure()
    program = "/usr/bin/nvidia-persistenced"
    host.sh(f"mv {program} {program}.off")
    assert host.remove() is True
    assert "daemon" in json.loads(host.sh(f"cat {RECORD}"))
    host.sh(f"mv {program}.off {program}")
    assert host.remove() is True
    assert IDLE in host.daemon()
    assert host.remove() is False


def test_another_makers_gpus_change_nothing_of_the_daemon(host):
    host.install(DAEMON, "systemctl start nvidia-persistenced")
    assert host.ensure(nvidia=False) is True
    assert (host.limit(), IDLE in host.daemon()) == (1048576, True)
    host.ensure()
    assert host.ensure(nvidia=False) is False
    assert IDLE not in host.daemon()


def test_nodes_that_the_driver_closes_are_open_from_its_next_start_on(host):
    assert not host.exists(MODPROBE)
    host.ensure()
    assert not host.exists(MODPROBE)
    host.sh("sed -i 's/^DeviceFileMode.*/DeviceFileMode: 432/' /root/params")
    host.machine.write("/etc/modprobe.d/nvidia.conf", "options nvidia NVreg_DeviceFileMode=0660\n")
    assert host.ensure() is True
    said = host.sh("modprobe --showconfig | grep '^options nvidia '").splitlines()
    assert said[-1] == "options nvidia NVreg_DeviceFileMode=0666"
    # So that the module starts with them.
    host.sh("sed -i 's/^DeviceFileMode.*/DeviceFileMode: 438/' /root/params")
    assert host.ensure() is False
    assert host.remove() is True
    assert not host.exists(MODPROBE)
