# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which hooks the lab's Juju runs and when, and what they may read and write; without machines.

Where each rule comes from: what Juju 4.0.15 was seen to do, and its internal/worker/uniter.
"""

import json

import pytest

from tests.lab.errors import WrongUse
from tests.lab.juju import events
from tests.lab.juju.context import ToolError
from tests.lab.recorder import PATH, Recorder, hooks_since, in_hook, said


@pytest.fixture
def play(model):
    """Add applications of recorders; does not settle."""
    Recorder.hooks.clear()
    Recorder.script.clear()

    def play(*apps: str, units: int = 1) -> None:
        for app in apps:
            model.play(app, PATH, units)

    return play


def related(model, play, units=1):
    """Applications one and two, related, with all first hooks behind them."""
    play("one", units=units)
    play("two")
    model.integrations.integrate("one:server", "two:client")
    model.controller.settle()
    Recorder.hooks.clear()


def test_the_first_hooks_of_a_unit_and_of_a_relation_come_in_jujus_order(model, play):
    play("one", "two")
    model.controller.settle()
    order = ["install", "peers-relation-created one", "leader-elected", "config-changed", "start"]
    assert hooks_since("one/0") == order
    hooks_since("two/0")
    model.integrations.integrate("one:server", "two:client")
    model.controller.settle()
    assert hooks_since("two/0") == [
        "client-relation-created one",
        "client-relation-joined one/0",
        "client-relation-changed one/0",
    ]


def test_further_units_enter_their_relations_in_either_order(model, play):
    play("two")
    play("one", units=3)
    model.integrations.integrate("one:server", "two:client")
    model.controller.settle()
    both = ["peers-relation-created one", "server-relation-created two"]
    entered = {unit: hooks_since(unit)[1:3] for unit in ("one/0", "one/1", "one/2")}
    assert entered == {"one/0": both, "one/1": both[::-1], "one/2": both}


def test_data_is_told_to_who_may_see_it_and_only_a_leader_writes_for_all(model, play):
    related(model, play, units=2)
    write = "relation-set -r {} {} key=value"
    said(model, "one/0", write.format("server:3", "--app"))
    assert hooks_since("one/0") == ["update-status"]
    assert hooks_since("one/1") == []
    assert hooks_since("two/0") == ["client-relation-changed one"]
    # Of its application's data among peers a leader hears, of its own unit's no unit.
    said(model, "one/0", write.format("peers:1", "--app"))
    assert hooks_since("one/0") == ["update-status", "peers-relation-changed one"]
    assert hooks_since("one/1") == ["peers-relation-changed one"]
    # An unchanged value fires nothing.
    said(model, "one/0", write.format("peers:1", "--app"))
    said(model, "one/0", write.format("peers:1", ""))
    assert hooks_since("one/0") == ["update-status"] * 2
    assert hooks_since("one/1") == ["peers-relation-changed one/0"]
    refused = "ERROR cannot write relation settings"
    assert said(model, "one/1", write.format("peers:1", "--app")) == refused
    read = "relation-get -r peers:1 --format=json --app - one"
    assert json.loads(said(model, "one/1", read)) == {"key": "value"}


def test_a_failed_hook_keeps_its_status_drops_the_rest_and_is_retried(model, play):
    related(model, play)

    def write(hook):
        hook("status-set", "--application=False", "blocked", "--", "on the way")
        hook("relation-set", "-r", "3", "colour=red")
        hook("open-port", "80/tcp")

    def fail(hook):
        write(hook)
        raise ToolError("not now")

    in_hook(model, "one/0", fail)
    unit = model.unit("one/0")
    assert (unit["status"], unit["message"]) == ("blocked", "on the way")
    assert (unit["agent"], unit["agent_message"]) == ("error", 'hook failed: "update-status"')
    assert hooks_since("one/0") == ["update-status"] * 3
    assert model.store.rows("SELECT * FROM port") == []
    assert hooks_since("two/0") == []
    Recorder.script["one/0"] = write
    model.resolved("one/0")
    model.controller.settle()
    assert model.unit("one/0")["agent"] == "idle"
    assert model.store.column("SELECT port FROM port") == ["80/tcp"]
    assert hooks_since("two/0") == ["client-relation-changed one/0"]


def test_a_dying_unit_breaks_its_relations_before_stop_and_then_the_others_see_it_go(model, play):
    related(model, play, units=2)
    model.remove_unit("one/0")
    model.controller.settle()
    broken = ("one/0", "server-relation-broken two")
    gone = ("two/0", "client-relation-departed one/0 departing one/0")
    assert Recorder.hooks.index(gone) > Recorder.hooks.index(broken)
    assert hooks_since("one/0") == [
        "server-relation-departed two/0 departing one/0",
        "server-relation-broken two",
        "peers-relation-departed one/1 departing one/0",
        "stop",
        "remove",
    ]
    # The other unit leads now.
    assert model.application("one")["leader"] == "one/1"
    assert hooks_since("one/1")[-1] == "leader-elected"


def test_a_unit_removed_by_force_departs_from_the_others(model, play):
    related(model, play, units=2)
    model.remove_unit("one/1", force=True)
    model.controller.settle()
    assert hooks_since("one/1") == []
    assert hooks_since("one/0") == ["peers-relation-departed one/1 departing one/1"]
    assert hooks_since("two/0") == ["client-relation-departed one/1 departing one/1"]


def test_a_unit_hears_late_of_a_peer_that_left_after_a_reboot(model, play):
    play("one", units=2)
    model.controller.settle()
    model.store.do("UPDATE unit SET rebooted = 1 WHERE name = 'one/0'")
    hooks_since("one/0")
    model.remove_unit("one/1")
    model.controller.settle()
    assert hooks_since("one/0") == []
    assert said(model, "one/0", "relation-list -r 1") == "one/1"
    assert hooks_since("one/0")[-1] == "peers-relation-departed one/1 departing one/1"
    assert said(model, "one/0", "relation-list -r 1") == ""


def test_a_removed_relation_departs_and_breaks_on_both_sides(model, play):
    related(model, play)
    model.integrations.remove("one:server", "two:client")
    model.controller.settle()
    assert hooks_since("one/0") == [
        "server-relation-departed two/0 departing two/0",
        "server-relation-broken two",
    ]
    assert hooks_since("two/0")[-1] == "client-relation-broken one"
    assert set(model.store.column("SELECT endpoint FROM relation_end")) == {"peers"}


def test_a_removed_application_is_forgotten_and_its_relations_with_it(model, play):
    related(model, play, units=2)
    model.remove_application("one")
    # The other side takes its leave at once, not after the units that go.
    queue = "SELECT kind FROM event WHERE unit = 'two/0' ORDER BY id"
    assert model.store.column(queue)[-1] == "relation-broken"
    model.controller.settle()
    assert hooks_since("two/0")[-1] == "client-relation-broken one"
    assert model.store.column("SELECT name FROM application") == ["two"]
    assert model.store.column("SELECT app FROM relation_end") == ["two"]


def test_a_unit_that_hears_of_a_departure_at_this_moment_hears_of_it_once(model, play):
    related(model, play)
    store = model.store
    relation = store.value("SELECT relation FROM relation_end WHERE endpoint = 'client'")
    with store.transaction():
        events.end_relation(store, relation)
        store.do("UPDATE event SET state = 'running' WHERE unit = 'two/0' AND remote_unit != ''")
        events.left(store, relation, "one/0")
    queue = store.column("SELECT kind FROM event WHERE unit = 'two/0' ORDER BY id")
    assert queue == ["relation-departed", "relation-broken"]
    # A unit that goes at this moment hinders no other.
    with store.transaction():
        events.unit_gone(store, "one/0")
    model.controller._runnable({"one/0"})


def test_options_are_typed_and_only_a_change_is_told_twice(model, play):
    play("one")
    model.controller.settle()
    hooks_since("one/0")
    model.set_config("one", {"loud": "true", "colour": "red"}, reset=["size"])
    model.set_config("one", {"size": "4"})
    model.controller.settle()
    assert hooks_since("one/0") == ["config-changed"] * 2
    model.set_config("one", {"size": "4"})
    # Nor is a reset alone.
    model.set_config("one", {}, reset=["size"])
    model.controller.settle()
    assert hooks_since("one/0") == []
    options = json.loads(said(model, "one/0", "config-get --format=json"))
    assert options == {"colour": "red", "loud": True, "size": 3}
    for wrong in ({"size": "big"}, {"loud": "3"}, {"shape": "round"}, {"key": "text"}):
        with pytest.raises(WrongUse, match="option"):
            model.set_config("one", wrong)


def test_a_secret_is_read_by_whom_it_is_granted_to_in_the_revision_that_it_asks_for(model, play):
    related(model, play)
    said(model, "one/0", "secret-add --owner application password=first")
    secret = model.store.value("SELECT id FROM secret")
    get = f"secret-get {secret} --format=json"
    assert said(model, "two/0", get) == "ERROR permission denied"
    said(model, "one/0", f"secret-grant --relation server:3 {secret}")
    assert said(model, "two/0", get) == '{"password": "first"}'
    # A new revision fires secret-changed, and is read when the reader asks for it.
    hooks_since("two/0")
    said(model, "one/0", f"secret-set {secret} password=second")
    assert hooks_since("two/0") == ["secret-changed"]
    assert said(model, "two/0", get) == '{"password": "first"}'
    assert said(model, "two/0", f"{get} --refresh") == '{"password": "second"}'
    assert said(model, "two/0", get) == '{"password": "second"}'
    assert hooks_since("one/0")[-1] == "secret-remove"
    said(model, "one/0", f"secret-remove {secret} --revision 1")
    assert model.store.column("SELECT revision FROM secret_revision") == [2]
    # Only its owner may change it; the grant ends with the relation.
    change = said(model, "two/0", f"secret-set {secret} password=third")
    assert change.startswith("ERROR permission denied")
    model.integrations.remove("one:server", "two:client")
    model.controller.settle()
    assert said(model, "two/0", get) == "ERROR permission denied"


def test_the_operators_secret_reaches_an_option(model, play):
    play("one")
    uri = model.secrets.add("mine", {"private-key": "text"})
    model.set_config("one", {"key": uri})
    model.controller.settle()
    get = f"secret-get {uri} --format=json"
    assert said(model, "one/0", get) == "ERROR permission denied"
    model.secrets.grant("mine", "one")
    assert said(model, "one/0", get) == '{"private-key": "text"}'
    model.secrets.update("mine", {"private-key": "new"})
    model.controller.settle()
    assert hooks_since("one/0")[-1] == "secret-changed"


def test_an_actions_parameters_are_read_as_yaml_and_checked_on_the_unit(model, play):
    play("one")
    model.controller.settle()

    def ran(**params):
        got = []
        Recorder.script["one/0"] = lambda hook: got.append(
            json.loads(hook("action-get", "--format=json"))
        )
        number = model.run_action("one/0", "greet", params)
        model.controller.settle()
        row = model.store.row("SELECT * FROM action WHERE id = ?", number)
        return row["status"], row["message"].partition("validation failed: ")[2], *got

    assert ran(loud="true") == ("completed", "", {"name": "you", "loud": True})
    for params, why in (
        ({"name": "1"}, "(root).name : must be of type string, given 1"),
        (
            {"name": "everybody"},
            '(root).name : string length must be lower or equal to 5, given "everybody"',
        ),
        ({"loud": "many"}, '(root).loud : must be of type boolean, given "many"'),
        (
            {"size": "1"},
            '(root) : additional property "size" is not allowed, given {"size":1}',
        ),
    ):
        assert ran(**params) == ("failed", why)
    with pytest.raises(WrongUse, match='action "dance" not defined for unit "one/0": have break'):
        model.run_action("one/0", "dance", {})


def test_what_the_charm_reads_of_a_refusal_is_jujus(model, play):
    play("one")
    model.controller.settle()
    gone = "abcdefghij0123456789"
    assert said(model, "one/0", f"secret-get {gone}") == f'ERROR secret "{gone}" not found'
    assert said(model, "one/0", "resource-get blob") == (
        'ERROR could not download resource: resource "one/blob" not found'
    )
