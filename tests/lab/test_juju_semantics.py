# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The emulated Juju behaves as Juju does, with a charm of a few lines of shell.

Where each rule comes from: what Juju 4.0.15 was seen to do, and its internal/worker/uniter.
"""

import json
import subprocess
import sys
import time

import pytest

from tests.lab import shellcharm
from tests.lab.errors import WrongUse
from tests.lab.juju.agent import Interruption
from tests.lab.session import ROOT
from tests.lab.shellcharm import behave, forget_hooks, hooks_of, log_of, machine, run_script


def test_the_first_hooks_of_a_unit_come_in_jujus_order(model, deploy):
    deploy("one")
    model.controller.settle()
    order = ["install", "peers-relation-created one", "leader-elected", "config-changed", "start"]
    assert hooks_of(model, "one/0") == order


def test_a_hook_has_jujus_environment_and_nothing_else(model, deploy):
    deploy("one", {"update-status": "/usr/bin/env >/srv/out\n"})
    model.controller.settle()
    model.controller.fire("one/0", "update-status")
    env = dict(
        line.split("=", 1) for line in machine(model, "one/0").read("/srv/out").splitlines()
    )
    assert env["JUJU_HOOK_NAME"] == "update-status"
    assert env["JUJU_DISPATCH_PATH"] == "hooks/update-status"
    assert env["JUJU_UNIT_NAME"] == "one/0"
    assert env["PATH"].startswith("/var/lib/juju/tools/")
    assert env["JUJU_CHARM_HTTP_PROXY"] == ""
    assert "SUDO_USER" not in env
    assert "INVOCATION_ID" not in env


def test_related_units_meet_by_created_joined_changed(model, deploy):
    deploy("one", {"server-relation-created": "relation-set greeting=hello\n"})
    deploy("two", {"client-relation-changed": "relation-get greeting >>/srv/got\n"})
    model.controller.settle()
    model.integrations.integrate("one:server", "two:client")
    model.controller.settle()
    assert hooks_of(model, "two/0")[-3:] == [
        "client-relation-created one",
        "client-relation-joined one/0",
        "client-relation-changed one/0",
    ]
    assert machine(model, "two/0").read("/srv/got") == "hello\n"


def test_a_unit_hears_late_of_a_peer_that_left_after_a_reboot(model, deploy):
    deploy("one", units=2)
    model.controller.settle()
    model.controller.reboot("one/0")
    forget_hooks(model, "one/0")
    model.remove_unit("one/1")
    model.controller.settle()
    model.controller.fire("one/0", "config-changed")
    assert hooks_of(model, "one/0") == ["config-changed"]
    assert run_script(model, "one/0", "relation-list -r $(relation-ids peers)") == "one/1\n"
    assert hooks_of(model, "one/0")[-1] == "peers-relation-departed one/1 departing one/1"
    assert run_script(model, "one/0", "relation-list -r $(relation-ids peers)") == ""


def test_a_failed_hook_keeps_statuses_drops_the_rest_and_is_retried(model, deploy):
    deploy("one")
    deploy("two")
    model.integrations.integrate("one:server", "two:client")
    model.controller.settle()
    writes = (
        "status-set blocked 'on the way'\n"
        "relation-set -r $(relation-ids server) colour=red\n"
        "open-port 80/tcp\nstate-set a=b\nexit 1\n"
    )
    behave(model, "one/0", "update-status", writes)
    forget_hooks(model, "one/0")
    forget_hooks(model, "two/0")
    machine(model, "two/0").write("/var/log/hooks", "")
    model.controller.fire("one/0", "update-status")
    unit = model.unit("one/0")
    assert (unit["status"], unit["message"]) == ("blocked", "on the way")
    assert (unit["agent"], unit["agent_message"]) == ("error", 'hook failed: "update-status"')
    assert hooks_of(model, "one/0") == ["update-status"] * 3
    assert model.store.rows("SELECT * FROM port") == []
    assert hooks_of(model, "two/0") == []

    behave(model, "one/0", "update-status", writes.replace("exit 1", "exit 0"))
    model.resolved("one/0")
    model.controller.settle()
    assert model.unit("one/0")["agent"] == "idle"
    assert model.store.column("SELECT port FROM port") == ["80/tcp"]
    assert hooks_of(model, "two/0") == ["client-relation-changed one/0"]


def test_a_hook_killed_half_way_runs_again_from_the_start(model, deploy):
    deploy("one")
    model.controller.settle()
    script = (
        "echo begun >>/srv/steps\nopen-port 80\nconfig-get size\nsleep 6\necho done >>/srv/steps\n"
    )
    behave(model, "one/0", "update-status", script)
    for number, moment in enumerate((Interruption(at_command=2), Interruption(after_seconds=3))):
        model.store.do("DELETE FROM port")
        machine(model, "one/0").write("/srv/steps", "")
        model.controller.fire("one/0", "update-status", moment)
        assert machine(model, "one/0").read("/srv/steps") == "begun\nbegun\ndone\n"
        assert model.store.column("SELECT port FROM port") == ["80/tcp"]
        failed = log_of(model, "one/0").count('hook "update-status" failed')
        assert failed == number + 1


def test_a_dying_unit_breaks_its_relations_before_stop(model, deploy, monkeypatch):
    slow = {"server-relation-broken": "sleep 1; date +%s.%N >/srv/broken\n"}
    deploy("one", slow, units=2)
    deploy("two", {"client-relation-departed": "date +%s.%N >/srv/departed\n"})
    model.integrations.integrate("one:server", "two:client")
    model.controller.settle()
    gone = machine(model, "one/0")
    log = gone.directory / "upper/var/log/hooks"
    forget_hooks(model, "one/0")
    seen: list[str] = []
    remove = model.controller.park.remove

    def keep_log(name):
        seen.extend(line.strip() for line in log.read_text().splitlines())
        seen.append((gone.directory / "upper/srv/broken").read_text())
        remove(name)

    monkeypatch.setattr(model.controller.park, "remove", keep_log)
    model.remove_unit("one/0")
    model.controller.settle()
    monkeypatch.undo()
    *hooks, broken = seen
    assert hooks == [
        "server-relation-departed two/0 departing one/0",
        "server-relation-broken two",
        "peers-relation-departed one/1 departing one/0",
        "stop",
        "remove",
    ]
    assert hooks_of(model, "two/0")[-1] == "client-relation-departed one/0 departing one/0"
    assert float(machine(model, "two/0").read("/srv/departed")) > float(broken)
    assert "one-0" not in model.controller.park.names()
    # The other unit leads now.
    assert model.application("one")["leader"] == "one/1"
    assert hooks_of(model, "one/1")[-1] == "leader-elected"


def test_a_removed_relation_departs_and_breaks_on_both_sides(model, deploy):
    deploy("one")
    deploy("two")
    model.integrations.integrate("one:server", "two:client")
    model.controller.settle()
    model.integrations.remove("one:server", "two:client")
    model.controller.settle()
    assert hooks_of(model, "one/0")[-2:] == [
        "server-relation-departed two/0 departing two/0",
        "server-relation-broken two",
    ]
    assert hooks_of(model, "two/0")[-1] == "client-relation-broken one"
    kept = "SELECT endpoint FROM relation_end"
    assert set(model.store.column(kept)) == {"peers"}


def said(model, unit, words):
    (line,) = (line for line in log_of(model, unit).splitlines() if f"juju-log {words}" in line)
    return line


def test_a_removed_application_is_forgotten_and_its_relations_with_it(model, deploy):
    deploy("one", {"server-relation-departed": "sleep 15; juju-log gone\n"}, units=2)
    deploy("two", {"client-relation-broken": "juju-log broken\n"})
    model.integrations.integrate("one:server", "two:client")
    model.controller.settle()
    model.remove_application("one")
    model.controller.settle()
    assert hooks_of(model, "two/0")[-1] == "client-relation-broken one"
    # The other side hears at the same time; each line begins with its second.
    assert said(model, "two/0", "broken") < said(model, "one/0", "gone")
    assert model.store.column("SELECT name FROM application") == ["two"]
    assert model.store.column("SELECT app FROM relation_end") == ["two"]
    assert model.controller.park.names() == ["two-0"]
    deploy("one")


def test_refresh_brings_new_code_and_keeps_the_charms_state(model, deploy, tmp_path):
    deploy("one", {"install": "echo kept >.unit-state.db\n"})
    model.controller.settle()
    forget_hooks(model, "one/0")
    new = shellcharm.pack(
        tmp_path / "new.charm", {"upgrade-charm": "cat .unit-state.db >/srv/out\n"}
    )
    model.refresh("one", new)
    model.controller.settle()
    assert hooks_of(model, "one/0") == ["upgrade-charm", "config-changed"]
    assert machine(model, "one/0").read("/srv/out") == "kept\n"


def test_juju_reboot_now_runs_the_hook_again_and_later_starts_the_unit(model, deploy):
    deploy("one")
    model.controller.settle()
    now = (
        "open-port 80\n"
        "if [ ! -e /srv/once ]; then touch /srv/once; juju-reboot --now; sleep 60; fi\n"
        "opened-ports >/srv/ports\n"
    )
    behave(model, "one/0", "update-status", now)
    before = machine(model, "one/0").leader()
    forget_hooks(model, "one/0")
    model.controller.fire("one/0", "update-status")
    assert machine(model, "one/0").leader() != before
    # Juju waits with the start event after a reboot until the interrupted hook has run.
    assert hooks_of(model, "one/0") == ["update-status", "update-status", "start"]
    forget_hooks(model, "one/0")
    before = machine(model, "one/0").leader()
    run_script(model, "one/0", "juju-reboot")
    assert machine(model, "one/0").leader() != before
    assert hooks_of(model, "one/0") == ["update-status", "start"]


def test_endpoints_must_fit_and_a_limit_holds(model, deploy):
    for app in ("one", "two", "three"):
        deploy(app)
    with pytest.raises(WrongUse, match="ambiguous"):
        model.integrations.integrate("one", "two")
    with pytest.raises(WrongUse, match="no endpoints fit"):
        model.integrations.integrate("one:server", "two:server")
    with pytest.raises(WrongUse, match="no endpoint 'nothing'"):
        model.integrations.integrate("one:nothing", "two")
    model.integrations.integrate("one:server", "two:client")
    with pytest.raises(WrongUse, match="already"):
        model.integrations.integrate("one:server", "two:client")
    with pytest.raises(WrongUse, match="limit of 1"):
        model.integrations.integrate("three:server", "two:client")


def test_machines_that_were_killed_come_up_and_their_units_start(model, deploy):
    deploy("one")
    model.controller.settle()
    forget_hooks(model, "one/0")
    machine(model, "one/0").enter("/bin/sync")
    machine(model, "one/0").kill()
    model.controller.wake()
    model.controller.settle()
    assert hooks_of(model, "one/0") == ["start"]


BRIDGE = (
    "ip link add {0} type bridge && ip address add {1}/16 dev {0} && ip link set {0} up && "
    "ip address add 169.254.7.7/16 dev {0}"
)


def test_a_new_interface_fires_config_changed_and_is_offered_first(model, deploy):
    deploy("one")
    model.controller.settle()
    own = model.unit("one/0")["address"]
    ask = "network-get peers --format=json; network-get peers --ingress-address"
    before, first = run_script(model, "one/0", ask).splitlines()
    assert json.loads(before)["ingress-addresses"] == [first] == [own]

    forget_hooks(model, "one/0")
    machine(model, "one/0").enter("/bin/sh", "-c", BRIDGE.format("xyz0", "10.80.0.1"))
    model.controller.settle()
    assert hooks_of(model, "one/0") == ["config-changed"]
    after, first = run_script(model, "one/0", ask).splitlines()
    told = json.loads(after)
    assert told["ingress-addresses"] == ["10.80.0.1", own]
    assert [device["interface-name"] for device in told["bind-addresses"]] == ["xyz0", "host0"]
    assert told["bind-addresses"][0]["addresses"][0]["cidr"] == "10.80.0.0/16"
    assert first == "10.80.0.1"

    forget_hooks(model, "one/0")
    machine(model, "one/0").enter("/sbin/ip", "link", "delete", "xyz0")
    model.controller.settle()
    model.controller.settle()
    assert hooks_of(model, "one/0") == ["config-changed"]


SETTLE = """
import pathlib, signal, sys
# A shell starts its background jobs with SIGINT ignored, and so all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.lab.juju.controller import Controller
controller = Controller(pathlib.Path(sys.argv[1]), retry_seconds=0.01)
controller.fire("one/0", "update-status")
"""


@pytest.mark.parametrize("ending", ["SIGINT", "SIGKILL"])
def test_a_lab_command_that_is_interrupted_leaves_a_hook_to_be_run_again(model, deploy, ending):
    deploy("one")
    model.controller.settle()
    script = "open-port 80\necho begun >>/srv/steps\n[ -e /srv/go ] || sleep 1234\n"
    behave(model, "one/0", "update-status", script)
    state_dir = str(model.controller.state_dir)
    with subprocess.Popen(
        [sys.executable, "-c", SETTLE, state_dir], cwd=ROOT, stderr=subprocess.DEVNULL
    ) as command:
        try:
            deadline = time.monotonic() + 30
            while machine(model, "one/0").enter("/bin/cat", "/srv/steps", check=False).returncode:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            subprocess.run(["/bin/kill", f"-{ending}", str(command.pid)], check=True)
            command.wait(30)
        finally:
            command.kill()
    assert model.store.rows("SELECT * FROM port") == []
    machine(model, "one/0").write("/srv/go", "")
    model.controller.settle()
    running = machine(model, "one/0").enter("/usr/bin/pgrep", "-f", "sleep 1234", check=False)
    assert running.returncode == 1
    assert machine(model, "one/0").read("/srv/steps") == "begun\nbegun\n"
    assert model.store.column("SELECT port FROM port") == ["80/tcp"]
    assert model.unit("one/0")["agent"] == "idle"
