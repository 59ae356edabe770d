# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the lab's Juju refuses, with which text and status, as Juju 4.0.15 does; no machines."""

import json

import pytest

from tests.lab.errors import WrongUse
from tests.lab.juju.context import ToolError
from tests.lab.juju.controller import Controller
from tests.lab.juju.model import Model
from tests.lab.recorder import PATH, Recorder, in_hook


@pytest.fixture(scope="module")
def one(machines_work, tmp_path_factory):
    """A model with the application one, whose first hooks have run."""
    Recorder.hooks.clear()
    Recorder.script.clear()
    model = Model(Controller(tmp_path_factory.mktemp("lab")))
    model.play("one", PATH)
    model.controller.settle()
    yield model
    model.controller.destroy()


def said(model, command: str) -> tuple[int, str]:
    """A hook command's exit status, and what it printed."""
    tool, *arguments = command.split()
    found = []

    def call(hook):
        try:
            found.append((0, hook(tool, *arguments)))
        except ToolError as error:
            found.append((error.status, str(error)))

    in_hook(model, "one/0", call)
    return found[0]


STATUSES = "expected one of [maintenance blocked waiting active]"


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        ("status-set foo", 2, f'invalid status "foo", {STATUSES}'),
        ("status-set", 2, "invalid args, require <status> [message]"),
        ("status-set active on the way", 2, 'unrecognized args: ["the" "way"]'),
        ("open-port 80-70/tcp", 2, "invalid port range 80-70/tcp"),
        ("open-port 80-70", 2, "invalid port range 80-70/tcp"),
        ("open-port 99999", 2, "port range bounds must be between 0 and 65535, got 99999-99999"),
        ("open-port", 2, "no port or range specified"),
        ("close-port 80/sctp", 2, 'invalid protocol "sctp", expected "tcp", "udp", or "icmp"'),
        ("network-get nosuch", 1, 'no network config found for binding "nosuch"'),
        ("network-get", 2, "no arguments specified"),
        ("config-get nosuch", 0, ""),
        ("config-get nosuch --format=json", 0, "null"),
        ("config-get --nosuch", 2, "option provided but not defined: --nosuch"),
        ("config-get loud", 0, "False"),
        ("is-leader", 0, "True"),
        ("relation-ids", 2, "no endpoint name specified"),
        ("relation-get key", 2, "no relation id specified"),
        ("relation-get -r 1 key", 2, "no unit or application specified"),
        ("relation-get -r 7 key one", 2, 'invalid value "7" for option -r: relation not found'),
        ("resource-get", 2, "missing required resource name"),
        ("secret-get", 2, "require either a secret URI or label"),
        ("secret-get nosuch", 2, 'secret URI "nosuch" not valid'),
        ("secret-get --label nosuch", 1, 'consumer label "nosuch" not found: secret not found'),
        ("secret-add", 2, "missing secret value or filename"),
        ("secret-add some_key=x", 2, 'key "some_key" not valid'),
        ("action-set key=value", 1, "not running an action"),
    ],
)
def test_hook_commands_answer_as_jujus(one, command, status, text):
    assert said(one, command) == (status, text)


def test_a_new_secrets_address_names_the_model(one):
    status, address = said(one, "secret-add some-key=text")
    scheme, _, rest = address.partition("://")
    model, _, identity = rest.partition("/")
    assert (status, scheme, model) == (0, "secret", one.store.model_uuid)
    for form in (address, identity, f"secret:{identity}"):
        assert said(one, f"secret-get {form}") == (0, "some-key: text")


def ran(model, action, string_args=False, **params):
    """Run an action; its status, its message, and the parameters that it got."""
    got = []
    Recorder.script["one/0"] = lambda hook: got.append(
        json.loads(hook("action-get", "--format=json"))
    )
    number = model.run_action("one/0", action, params, string_args)
    model.controller.settle()
    del Recorder.script["one/0"]
    row = model.store.rows("SELECT * FROM action WHERE id = ?", number)[0]
    return row["status"], row["message"], *got


def test_an_actions_parameters_are_read_as_yaml_and_checked_on_the_unit(one):
    wrong = 'cannot run "greet" action: validation failed: '
    assert ran(one, "greet", times="2") == ("completed", "", {"name": "you", "times": 2})
    assert ran(one, "greet", name="1") == (
        "failed",
        wrong + "(root).name : must be of type string, given 1",
    )
    assert ran(one, "greet", string_args=True, name="1") == ("completed", "", {"name": "1"})
    assert ran(one, "greet", times="many") == (
        "failed",
        wrong + '(root).times : must be of type integer, given "many"',
    )
    assert ran(one, "greet", size="1") == (
        "failed",
        wrong + '(root) : additional property "size" is not allowed, given {"size":1}',
    )
    with pytest.raises(WrongUse, match='action "dance" not defined for unit "one/0": have break'):
        ran(one, "dance")
    assert Recorder.hooks["one/0"].count("greet") == 2
