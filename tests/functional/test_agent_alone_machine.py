# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The agent on a machine with systemd and without Juju, ops and src: from install to remove.

One machine, and the tests in their order: each begins where the one before it has ended.
"""

import json

import pytest

from tests.functional import alone_machine, run_machine, selftest_machine
from tests.functional.alone_machine import AGENT, SETTINGS

pytestmark = selftest_machine.NEEDS

UNITS = "systemctl list-unit-files --plain --no-legend 'gpu*' | cut -d' ' -f1"
NODES = f"{run_machine._SEES}\necho begun"
FIRST, SECOND = (f"/dev/nvidia{n}\n/dev/nvidiactl\n/dev/null\nbegun\n" for n in (0, 1))
# A unit of Juju claims the machine, as its hook does.
CLAIM = """
import pathlib, sys
sys.path[:0] = ["/srv/charm/src"]
from lifecycle import machine_claim
from plan.unit_id import UnitId
try:
    claim = machine_claim.Claim(pathlib.Path("/var/lib/gpu-ci"))
    claim.take(UnitId("worker/0", "ci", "uuid", "/srv"))
except machine_claim.TakenError as error:
    print(error)
"""
OWNER = {"name": "worker/0", "model": "ci", "model_uuid": "uuid", "agent": "/srv"}


@pytest.fixture(scope="module")
def machine():
    with alone_machine.started("alone") as box:
        box.before = box.listed()
        yield box


def holders(box):
    return box.sh("grep -c gpu-run- /run/gpu-ci/leases/leases.json || :").stdout.strip()


def test_a_machine_of_juju_is_refused_with_the_units_name(machine):
    record = json.dumps({"owner": OWNER, "former": None})
    machine.sh(f"mkdir -p /var/lib/gpu-ci; echo '{record}' >/var/lib/gpu-ci/owner.json")
    for verb in ("install", "remove"):
        told = machine.tree(verb, check=False)
        assert told.returncode == 1
        assert told.stderr.startswith(
            "gpu-ci-agent: This machine belongs to worker/0 of model ci, a unit of Juju: "
        )
    machine.sh("rm /var/lib/gpu-ci/owner.json")
    # A unit of a revision of the charm that wrote no record.
    charm = "/var/lib/juju/agents/unit-old-worker-7/charm"
    machine.sh(f"mkdir -p {charm}; echo 'name: gpu-ci-worker' >{charm}/metadata.yaml")
    for verb in ("install", "remove"):
        told = machine.tree(verb, check=False)
        assert told.returncode == 1
        assert "This machine belongs to old-worker/7, a unit of Juju: " in told.stderr
    machine.sh("rm -r /var/lib/juju")
    assert machine.listed() == machine.before


def test_packages_that_are_missing_are_told_with_the_command(machine):
    machine.sh("mkdir /srv/aside; mv /srv/tree/venv/tomlkit-*.dist-info /srv/aside")
    told = machine.tree("install", check=False)
    assert told.returncode == 2
    assert "tomlkit==" in told.stderr
    assert "/usr/bin/python3 -m pip install --target '/srv/tree/venv'" in told.stderr
    machine.sh("mv /srv/aside/* /srv/tree/venv")
    assert machine.listed() == machine.before


def test_install_is_whole_after_a_kill_and_then_changes_nothing(machine):
    app = "/opt/gpu-ci/app"
    machine.sh(
        "systemd-run --quiet --unit=killed -p KillMode=mixed /srv/tree/scripts/agent install; "
        f"until [ -e {app}/.new ]; do sleep 0.02; done; systemctl kill --signal=KILL killed"
    )
    assert machine.sh(f"ls {app}/current {AGENT} {SETTINGS}", check=False).stdout == ""
    told = machine.tree("install").stdout
    assert f"Installed: {AGENT}\n" in told
    assert f"Next: edit {SETTINGS}, then sudo gpu-ci-agent start\n" in told
    now = machine.listed()
    assert "This version is installed already\n" in machine.tree("install").stdout
    assert machine.listed() == now
    assert machine.sh(UNITS).stdout == ""
    told = machine.sh(f"shellcheck {AGENT}; ls {app}/current/", check=False)
    assert told.stdout.split() == ["lib", "stamp", "venv"]


def test_the_charm_is_refused_the_machine(machine):
    told = machine.run(CLAIM)
    assert told.startswith("This machine belongs to gpu-ci-agent, the agent without Juju: run ")


def test_a_wrong_setting_is_told_and_nothing_is_started(machine):
    written = machine.machine.read(SETTINGS)
    machine.configure(gpus_per_task=3, gpu_health="on")
    told = machine.agent("start", check=False)
    assert told.returncode == 1
    assert f'gpu-ci-agent: {SETTINGS}: "gpu-health" is "on": use enabled, ' in told.stderr
    machine.configure(gpu_health="enabled")
    told = machine.agent("start", check=False)
    assert '"gpus-per-task" is 3, and 2 can be handed out: use 2 or less' in told.stderr
    assert machine.sh(UNITS).stdout == ""
    machine.machine.write(SETTINGS, written)


def test_start_tests_the_gpus_and_hands_them_out(machine):
    machine.configure(gpu_run_group="gpu-users", container_engines=["podman"])
    told = machine.agent("start").stdout
    assert "Self-test passed: quick and isolation, 2 GPUs" in told
    assert "gpu-run: for members of gpu-users\n" in told
    assert machine.sh(UNITS).stdout.split() == [
        *("gpu-ci-agent.service", "gpu-ci-health.service", "gpu-ci-run@.service"),
        *("gpu-ci-selftest.service", "gpu-ci-run.socket", "gpu-ci-agent.timer"),
    ]
    verified = "gpu-ci-agent.service gpu-ci-agent.timer"
    assert machine.sh(f"cd /etc/systemd/system; systemd-analyze verify {verified}").stderr == ""
    assert "engines/gpu-ci" in machine.sh("cat /etc/containers/containers.conf.d/*").stdout
    machine.begin("one", NODES, holds=True)
    machine.wait("grep begun /srv/one")
    assert machine.sh("cat /srv/one").stdout == FIRST
    status = machine.agent("status").stdout
    assert "health service: runs\n" in status
    assert "held by gpu-run of alice" in status


def test_an_upgrade_leaves_a_running_task_its_gpu(machine):
    before = machine.version()
    machine.renew("two")
    told = machine.tree("install").stdout
    assert "GPU 0: NVIDIA" in told
    assert machine.version() != before
    health = "tr '\\0' '\\n' </proc/$(systemctl show -P MainPID gpu-ci-health)/environ"
    assert machine.version() in machine.sh(health).stdout
    assert machine.version() in machine.sh("cat /opt/gpu-ci/bin/gpu-selftest").stdout
    assert holders(machine) == "1"
    machine.begin("two", NODES, holds=True)
    machine.wait("grep begun /srv/two")
    assert machine.sh("cat /srv/two").stdout == SECOND
    machine.end("two")


def test_remove_is_refused_while_a_gpu_is_in_use(machine):
    told = machine.agent("remove", check=False)
    assert told.returncode == 1
    assert "GPUs are in use by gpu-run of alice" in told.stderr
    assert "remove --leave-running" in told.stderr
    machine.end("one")
    # It still gives them out.
    machine.begin("again", NODES)
    machine.wait("grep begun /srv/again")


def test_a_faulty_gpu_is_out_until_the_self_test_passes_and_no_charm_is_woken(machine):
    record = "/var/lib/gpu-ci/quarantine/GPU*"
    machine.fakegpu("xid", "1", "79", "--only", "nvml")
    machine.wait(f"ls {record}")
    assert "gpu-1: quarantined: Xid 79" in machine.agent("status").stdout
    machine.fakegpu("xid", "clear")
    told = machine.agent("self-test", "--gpu", "1", "--level", "isolation").stdout
    assert "passed: quick and isolation, 1 GPU" in told
    assert machine.sh(f"ls {record}", check=False).stdout == ""
    journal = machine.sh("journalctl --no-pager -u gpu-ci-health").stdout
    assert "quarantine GPU 1" in journal
    assert "charm" not in journal


def test_after_a_reboot_it_looks_at_the_gpus_again(machine):
    machine.machine.reboot()
    machine.wait("systemctl show -P ExecMainExitTimestampMonotonic gpu-ci-agent | grep -qvx 0")
    assert machine.sh("systemctl show -P ExecMainStatus gpu-ci-agent").stdout == "0\n"
    machine.wait("systemctl is-active -q gpu-ci-health gpu-ci-run.socket gpu-ci-agent.timer")
    assert machine.sh("systemctl --failed --plain --no-legend").stdout == ""
    machine.begin("three", NODES)
    machine.wait("grep begun /srv/three")
    assert machine.sh("cat /srv/three").stdout == FIRST


def test_a_self_test_that_the_timer_starts_has_the_machines_proxy(machine):
    proxy = "https_proxy=http://proxy.example:3128"
    machine.sh("cp -a /etc/environment /srv/environment || :")
    machine.sh(f"echo '{proxy}' >>/etc/environment")
    # As in a boot that has not tested, a self-test is due.
    machine.sh("rm /run/gpu-ci/selftest.done; systemctl start gpu-ci-agent")
    told = machine.sh("cat /run/gpu-ci/selftest.env", check=False).stdout
    machine.sh("rm /etc/environment; mv /srv/environment /etc || :")
    assert told.replace('"', "") == f"{proxy}\n"


def test_remove_leaves_nothing(machine):
    machine.wait("! systemctl -q is-active 'gpu-run-*.scope'")
    assert machine.agent("remove").stdout.endswith("Removed\n")
    assert machine.sh(UNITS).stdout == ""
    assert machine.sh("ls -d /run/gpu-ci*", check=False).stdout == ""
    left = set(machine.listed()) - set(machine.before)
    # Folders whose size changes with what was in them, and the one for gpu-run's manual page.
    folders = ("/etc ", "/etc/systemd ", "/usr/local/share/man/man1 ")
    assert {line for line in left if not line.startswith(folders)} == set()
    told = machine.tree("start", check=False)
    assert (told.returncode, told.stderr) == (
        2, "gpu-ci-agent: the agent is not installed: sudo scripts/agent install, in its tree\n",
    )  # fmt: skip
