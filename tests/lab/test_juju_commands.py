# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The emulated hook commands, options, secrets, resources and actions, as Juju 4.0.15 has them."""

import concurrent.futures
import time

import pytest

from tests.lab.errors import WrongUse
from tests.lab.juju.commands import Commands
from tests.lab.juju.store import Store
from tests.lab.shellcharm import behave, forget_hooks, hooks_of, machine, run_script


def test_only_the_leader_writes_for_the_application(model, deploy):
    deploy("one", units=2)
    model.controller.settle()
    write = "relation-set -r $(relation-ids peers) --app k=v; echo $?; is-leader --format=json"
    assert run_script(model, "one/0", write) == "0\ntrue\n"
    refused = run_script(model, "one/1", write)
    assert refused == "ERROR cannot write relation settings\n1\nfalse\n"
    assert run_script(model, "one/1", "status-set --application=True active; echo $?").endswith(
        "1\n"
    )
    read = "relation-get -r $(relation-ids peers) --format=json --app - one"
    assert run_script(model, "one/1", read) == '{"k": "v"}\n'


def test_hook_commands_exit_as_jujus(model, deploy):
    deploy("one")
    model.controller.settle()
    out = run_script(
        model,
        "one/0",
        "status-set purple; echo $?\nnetwork-get nothing; echo $?\nconfig-get nothing; echo $?\n"
        "resource-get nothing; echo $?\nrelation-get -r 99 k; echo $?\n"
        "for gone in leader-get leader-set payload-register; do command -v $gone; done\n",
    )
    assert [line.partition(",")[0] for line in out.splitlines()] == [
        'ERROR invalid status "purple"',
        "2",
        'ERROR no network config found for binding "nothing"',
        "1",
        "0",
        'ERROR could not download resource: resource "one/nothing" not found',
        "1",
        'ERROR invalid value "99" for option -r: relation not found',
        "2",
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

    # A new revision fires secret-changed, and is read when the reader asks for it.
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
    broken = run("break")
    assert (broken["status"], broken["message"]) == ("failed", "exit status 3")
    assert model.unit("one/0")["agent"] == "idle"


def test_options_are_typed_and_only_a_change_is_told(model, deploy):
    deploy("one", config={"size": "7"})
    model.controller.settle()
    all_options = '{"colour": "blue", "loud": false, "size": 7}'
    assert run_script(model, "one/0", "config-get --format=json").strip() == all_options
    forget_hooks(model, "one/0")
    model.set_config("one", {"size": "7"})
    model.set_config("one", {"loud": "true", "colour": "red"}, reset=["size"])
    model.controller.settle()
    # Twice for the last one, as Juju usually has it.
    assert hooks_of(model, "one/0") == ["config-changed"] * 2
    assert run_script(model, "one/0", "config-get loud; config-get size") == "True\n3\n"
    for wrong in ({"size": "big"}, {"loud": "3"}, {"shape": "round"}):
        with pytest.raises(WrongUse, match="option"):
            model.set_config("one", wrong)


def test_resources_are_files_and_empty_ones_not_given(model, deploy, tmp_path):
    blob = tmp_path / "some.bin"
    blob.write_text("content")
    deploy("one", resources={"blob": blob})
    deploy("two")
    model.controller.settle()
    assert run_script(model, "one/0", 'cat "$(resource-get blob)"') == "content"
    assert run_script(model, "two/0", 'stat -c %s "$(resource-get blob)"') == "0\n"
    model.attach_resource("two", "blob", blob)
    model.controller.settle()
    assert hooks_of(model, "two/0")[-2:] == ["upgrade-charm", "config-changed"]
    assert run_script(model, "two/0", 'cat "$(resource-get blob)"') == "content"


def test_what_fails_to_give_a_resource_empties_it(model, deploy, tmp_path):
    """A file of another extension, and a deployment under a name that exists."""
    size = 'stat -c %s "$(resource-get blob)"'
    blob = tmp_path / "some.bin"
    blob.write_text("content")
    deploy("one", resources={"blob": blob})
    model.controller.settle()
    blob.rename(tmp_path / "some.txt")
    forget_hooks(model, "one/0")
    with pytest.raises(WrongUse, match=r'some.txt", expected ".bin"'):
        model.attach_resource("one", "blob", tmp_path / "some.txt")
    assert run_script(model, "one/0", size) == "0\n"

    (tmp_path / "some.txt").rename(blob)
    model.attach_resource("one", "blob", blob)
    model.controller.settle()
    assert run_script(model, "one/0", size) == "7\n"
    with pytest.raises(WrongUse, match="application 'one' is there already"):
        deploy("one")
    assert run_script(model, "one/0", size) == "0\n"


# What a machine's own service does that wakes its unit.
WAKER = """\
cd /srv
juju-exec -u one/0 'echo $JUJU_CONTEXT_ID.$JUJU_HOOK_NAME.$PWD; open-port 80; exit 7' >said 2>&1
echo $? >status
juju-exec -u one/0 'JUJU_DISPATCH_PATH=hooks/woken ./dispatch'
juju-exec -u one/9 true 2>nobody
"""


def test_a_machine_runs_commands_as_its_unit_in_turn_with_hooks(model, deploy):
    deploy("one")
    model.controller.settle()
    on = machine(model, "one/0")
    on.write("/srv/waker", WAKER)
    forget_hooks(model, "one/0")
    hook = """
        systemd-run --quiet --collect --unit=waker /bin/sh /srv/waker
        juju-exec -u one/0 true 2>/srv/refused
        sleep 1
        [ ! -e /srv/status ] || echo it was not waited for >>/var/log/hooks
    """
    behave(model, "one/0", "update-status", hook)
    model.update_status("one/0")
    ended = "[ -s /srv/nobody ]"
    model.controller.settle(lambda: not on.enter("/bin/sh", "-c", ended, check=False).returncode)
    assert hooks_of(model, "one/0") == ["update-status", "woken"]
    context, hook_name, folder = on.read("/srv/said").strip().split(".")
    assert context.startswith("one/0-run-commands-")
    assert (hook_name, folder) == ("", model.controller.agent("one/0").charm_dir)
    assert on.read("/srv/status") == "7\n"
    assert model.store.column("SELECT port FROM port") == ["80/tcp"]
    assert "cannot be called from within a hook" in on.read("/srv/refused")
    assert 'unit "one/9" not found' in on.read("/srv/nobody")
    assert model.unit("one/0")["agent"] == "idle"


def test_commands_of_a_machine_wait_for_the_agents_of_the_next_command(model, deploy):
    deploy("one")
    model.controller.settle()
    on = machine(model, "one/0")
    script = "juju-exec -u one/0 'echo ran' >/srv/said 2>&1; echo $? >>/srv/said"
    on.enter("/usr/bin/systemd-run", "--quiet", "--collect", "/bin/sh", "-c", script)
    time.sleep(1)
    assert on.read("/srv/said") == ""
    answered = "[ $(wc -l </srv/said) = 2 ]"
    model.controller.settle(
        lambda: not on.enter("/bin/sh", "-c", answered, check=False).returncode
    )
    assert on.read("/srv/said") == "ran\n0\n"


def test_commands_that_come_as_the_agents_end_ask_the_next_ones(tmp_path):
    store = Store(tmp_path / "model.sqlite")
    commands = Commands(store)
    store.do("INSERT INTO unit (name, app, machine) VALUES ('one/0', 'one', 'm')")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(commands.execute, ["-u", "one/0", "true"])
        while not store.column("SELECT id FROM event"):
            time.sleep(0.01)
        commands.end()
        with pytest.raises(concurrent.futures.CancelledError):
            asked.result(10)
    assert store.column("SELECT id FROM event") == []
