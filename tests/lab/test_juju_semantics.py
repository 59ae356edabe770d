# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The emulated Juju behaves as Juju does, with a charm of a few lines of shell.

Where each rule comes from: Juju 3.6, internal/worker/uniter and the hook command reference.
"""

import pathlib
import re
import subprocess
import sys
import time

import pytest

from tests.lab import shellcharm
from tests.lab.errors import WrongUse
from tests.lab.juju.agent import Interruption
from tests.lab.juju.model import Model
from tests.lab.session import ROOT


@pytest.fixture
def deploy(model: Model, tmp_path: pathlib.Path):
    """Deploy a shell charm with hooks as an application; does not settle."""

    def deploy(app: str, hooks: dict[str, str] | None = None, **options):
        charm = shellcharm.pack(tmp_path / f"{app}.charm", hooks)
        model.deploy(charm, app, **options)

    return deploy


def hooks_of(model: Model, unit: str) -> list[str]:
    text = model.controller.park.get(unit.replace("/", "-")).read("/var/log/hooks")
    return [line.strip() for line in text.splitlines()]


def forget_hooks(model: Model, unit: str) -> None:
    machine(model, unit).enter("/bin/rm", "-f", "/var/log/hooks")


def machine(model: Model, unit: str):
    return model.controller.park.get(unit.replace("/", "-"))


def behave(model: Model, unit: str, hook: str, script: str) -> None:
    """From now on the unit runs this script in a hook."""
    machine(model, unit).write(f"/srv/hooks/{hook}", script)


def log_of(model: Model, unit: str) -> str:
    return model.controller.log_path(unit).read_text()


def run_script(model: Model, unit: str, script: str) -> str:
    """Run a script as the unit's update-status; what it wrote."""
    behave(model, unit, "update-status", f"exec >/srv/out 2>&1\n{script}\n")
    model.controller.fire(unit, "update-status")
    return machine(model, unit).read("/srv/out")


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


@pytest.mark.parametrize("moment", [Interruption(at_command=2), Interruption(after_seconds=0.5)])
def test_a_hook_killed_half_way_runs_again_from_the_start(model, deploy, moment):
    deploy("one")
    model.controller.settle()
    script = (
        "echo begun >>/srv/steps\nopen-port 80\nconfig-get size\nsleep 1\necho done >>/srv/steps\n"
    )
    behave(model, "one/0", "update-status", script)
    model.controller.fire("one/0", "update-status", moment)
    assert machine(model, "one/0").read("/srv/steps") == "begun\nbegun\ndone\n"
    assert model.store.column("SELECT port FROM port") == ["80/tcp"]
    assert 'hook "update-status" failed' in log_of(model, "one/0")


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
        "peers-relation-departed one/1 departing one/0",
        "peers-relation-broken one",
        "server-relation-departed two/0 departing one/0",
        "server-relation-broken two",
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


def test_a_removed_application_is_forgotten_and_its_relations_with_it(model, deploy):
    deploy("one", units=2)
    deploy("two")
    model.integrations.integrate("one:server", "two:client")
    model.controller.settle()
    model.remove_application("one")
    model.controller.settle()
    assert hooks_of(model, "two/0")[-1] == "client-relation-broken one"
    assert model.store.column("SELECT name FROM application") == ["two"]
    assert model.store.column("SELECT app FROM relation_end") == ["two"]
    assert model.controller.park.names() == ["two-0"]
    deploy("one")


def test_only_the_leader_writes_for_the_application(model, deploy):
    deploy("one", units=2)
    model.controller.settle()
    write = "relation-set -r $(relation-ids peers) --app k=v; echo $?; is-leader --format=json"
    assert run_script(model, "one/0", write) == "0\ntrue\n"
    refused = run_script(model, "one/1", write)
    assert re.match(r"ERROR .*permission denied.*\n1\nfalse\n", refused)
    assert run_script(model, "one/1", "status-set --application=True active; echo $?").endswith(
        "1\n"
    )
    read = "relation-get -r $(relation-ids peers) --format=json --app - one"
    assert run_script(model, "one/1", read) == '{"k": "v"}\n'


def test_hook_commands_refuse_what_is_not_there(model, deploy):
    deploy("one")
    model.controller.settle()
    out = run_script(
        model,
        "one/0",
        "relation-get -r 99 k\nrelation-get -r server:99 k\nrelation-ids nothing --format=json\n"
        "secret-get nothing\nstatus-set purple\nopen-port 99999\nresource-get nothing",
    )
    assert [line.split(":")[0] for line in out.splitlines()] == [
        'ERROR invalid value "99" for option -r',
        'ERROR invalid value "server',
        "[]",
        'ERROR secret "nothing" not found',
        'ERROR invalid status "purple", expected one of active, blocked, maintenance, waiting',
        'ERROR invalid port "99999"',
        "ERROR could not download resource",
    ]
    tool = "/var/lib/juju/tools/lab/config-get"
    done = machine(model, "one/0").enter(tool, check=False)
    assert (done.returncode, "no agent" in done.stderr) == (1, True)


def test_a_secret_is_read_by_whom_it_is_granted_to(model, deploy):
    add = (
        "id=$(secret-add --label mine --owner application password=first)\n"
        "secret-get --label mine --format=json\n"
        "relation-set -r $(relation-ids server) --app id=$id"
    )
    deploy("one")
    deploy("two")
    relation = model.integrations.integrate("one:server", "two:client")
    model.controller.settle()
    assert run_script(model, "one/0", add) == '{"password": "first"}\n'
    find = f"id=$(relation-get -r {relation} --app id one)\n"
    read = f"{find}secret-get $id --label theirs --format=json"
    assert run_script(model, "two/0", read) == "ERROR permission denied\n"
    grant = f"secret-grant --relation {relation} $(secret-ids)"
    assert run_script(model, "one/0", grant) == ""
    assert run_script(model, "two/0", read) == '{"password": "first"}\n'

    # A new revision is told, and read when the reader asks for it.
    forget_hooks(model, "two/0")
    change = "secret-set $(secret-ids) password=second"
    assert run_script(model, "one/0", change) == ""
    assert hooks_of(model, "two/0") == ["secret-changed"]
    label = "secret-get --label theirs --format=json"
    assert run_script(model, "two/0", label) == '{"password": "first"}\n'
    assert run_script(model, "two/0", f"{label} --peek") == '{"password": "second"}\n'
    assert run_script(model, "two/0", f"{label} --refresh") == '{"password": "second"}\n'
    assert run_script(model, "two/0", label) == '{"password": "second"}\n'
    assert hooks_of(model, "one/0")[-1] == "secret-remove"

    # Who does not own it cannot change it; the grant ends with the relation.
    secret = model.store.value("SELECT id FROM secret")
    change = run_script(model, "two/0", f"secret-set {secret} password=third")
    assert change.startswith("ERROR permission denied")
    model.integrations.remove("one:server", "two:client")
    model.controller.settle()
    assert run_script(model, "two/0", f"secret-get {secret}") == "ERROR permission denied\n"


def test_the_operators_secret_reaches_an_option(model, deploy):
    deploy("one")
    uri = model.secrets.add("mine", {"private-key": "text"})
    with pytest.raises(WrongUse, match="wants the URI of a secret"):
        model.set_config("one", {"key": "text"})
    model.set_config("one", {"key": uri})
    model.controller.settle()
    read = "secret-get $(config-get key) --format=json"
    assert run_script(model, "one/0", read) == "ERROR permission denied\n"
    model.secrets.grant("mine", "one")
    assert run_script(model, "one/0", read) == '{"private-key": "text"}\n'
    model.secrets.update("mine", {"private-key": "new"})
    model.controller.settle()
    assert hooks_of(model, "one/0")[-1] == "secret-changed"


def test_actions_have_typed_parameters_and_nested_results(model, deploy):
    greet = (
        'action-log "on the way"\n'
        'action-set greeting.text="hello $(action-get name)" times=$(action-get times)\n'
    )
    deploy("one", {"greet": greet, "break": "action-set seen=yes; exit 3\n"})
    model.controller.settle()

    def run(name, **params):
        action = model.run_action("one/0", name, params)
        model.controller.settle()
        return dict(model.store.row("SELECT * FROM action WHERE id = ?", action))

    done = run("greet", times="2")
    assert (done["status"], done["results"]) == (
        "completed",
        '{"greeting": {"text": "hello you"}, "times": "2"}',
    )
    assert run("break")["status"] == "failed"
    assert model.unit("one/0")["agent"] == "idle"
    with pytest.raises(WrongUse, match="must be of type integer, not 'many'"):
        run("greet", times="many")
    with pytest.raises(WrongUse, match="no parameter 'size'"):
        run("greet", size="1")
    with pytest.raises(WrongUse, match="action 'dance' is not defined"):
        run("dance")


def test_options_are_typed_and_only_a_change_is_told(model, deploy):
    deploy("one", config={"size": "7"})
    model.controller.settle()
    all_options = '{"colour": "blue", "loud": false, "size": 7}'
    assert run_script(model, "one/0", "config-get --format=json").strip() == all_options
    forget_hooks(model, "one/0")
    model.set_config("one", {"size": "7"})
    model.set_config("one", {"loud": "true", "colour": "red"}, reset=["size"])
    model.controller.settle()
    assert hooks_of(model, "one/0") == ["config-changed"]
    assert run_script(model, "one/0", "config-get loud; config-get size") == "true\n3\n"
    for wrong in ({"size": "big"}, {"loud": "3"}, {"shape": "round"}):
        with pytest.raises(WrongUse, match="option"):
            model.set_config("one", wrong)


def test_resources_are_files_and_empty_ones_not_given(model, deploy, tmp_path):
    blob = tmp_path / "some"
    blob.write_text("content")
    deploy("one", resources={"blob": blob})
    deploy("two")
    model.controller.settle()
    assert run_script(model, "one/0", 'cat "$(resource-get blob)"') == "content"
    assert run_script(model, "two/0", 'stat -c %s "$(resource-get blob)"') == "0\n"
    model.attach_resource("two", "blob", blob)
    model.controller.settle()
    assert hooks_of(model, "two/0")[-1] == "upgrade-charm"
    assert run_script(model, "two/0", 'cat "$(resource-get blob)"') == "content"


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
    assert hooks_of(model, "one/0") == ["update-status", "update-status"]
    before = machine(model, "one/0").leader()
    run_script(model, "one/0", "juju-reboot")
    assert machine(model, "one/0").leader() != before
    assert hooks_of(model, "one/0")[-2:] == ["config-changed", "start"]


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
    assert hooks_of(model, "one/0") == ["config-changed", "start"]


SETTLE = """
import pathlib, sys
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
        deadline = time.monotonic() + 30
        while machine(model, "one/0").enter("/bin/cat", "/srv/steps", check=False).returncode:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        subprocess.run(["/bin/kill", f"-{ending}", str(command.pid)], check=True)
        command.wait(30)
    assert model.store.rows("SELECT * FROM port") == []
    machine(model, "one/0").write("/srv/go", "")
    model.controller.settle()
    running = machine(model, "one/0").enter("/usr/bin/pgrep", "-f", "sleep 1234", check=False)
    assert running.returncode == 1
    assert machine(model, "one/0").read("/srv/steps") == "begun\nbegun\n"
    assert model.store.column("SELECT port FROM port") == ["80/tcp"]
    assert model.unit("one/0")["agent"] == "idle"
