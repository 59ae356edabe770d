# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The lab's command line: what it says to wrong use, and a whole life of a small charm."""

import argparse
import shlex

import pytest
import yaml

from tests.lab import cli, shellcharm

DEFAULTS = {"colour": "blue", "size": 3, "loud": False, "key": None}


@pytest.fixture
def lab(machines_work, tmp_path, monkeypatch, capfd):
    """Run a lab command in a lab of the test's own; exit status, output, errors."""
    monkeypatch.setenv("GPUCI_LAB_DIR", str(tmp_path / "lab"))

    def lab(*arguments: str) -> tuple[int, str, str]:
        try:
            status = cli.main(list(arguments))
        except SystemExit as error:
            status = int(error.code or 0)
        return status, *capfd.readouterr()

    yield lab
    assert lab("destroy")[0] == 0
    assert not (tmp_path / "lab").exists()


def test_every_command_explains_itself_with_an_example_that_can_be_typed():
    parser = cli.build()
    (commands,) = (x for x in parser._actions if isinstance(x, argparse._SubParsersAction))
    assert {"up", "deploy", "config", "run", "task", "logs", "shell", "gpu"} <= {*commands.choices}
    for name, command in commands.choices.items():
        lab, *example = shlex.split(command.epilog.removeprefix("Example: "))
        assert (lab, example[0]) == ("lab", name)
        assert cli.parse(example).function is command.get_default("function")


def is_refused(lab, line, said):
    status, out, errors = lab(*line.split())
    assert (line, status, errors.count("\n")) == (line, 2, 1), errors
    assert said in errors
    # Juju's config prints this before its error.
    assert out == ("{}\n" if line.startswith("config") else "")


def test_wrong_use_is_one_clear_line(lab):
    for line, said in (
        ("status", "no lab is up in"),
        ("config one", "no lab is up in"),
        ("dance", "invalid choice: 'dance'"),
        ("run one/0", "the following arguments are required: action"),
        ("deploy /nowhere/x.charm one", "cannot read the charm /nowhere/x.charm"),
    ):
        is_refused(lab, line, said)


def test_a_charm_lives_by_the_commands(lab, tmp_path):
    hooks = {
        "greet": "action-log working; action-set text=hello\n",
        "break": "action-set seen=yes; exit 3\n",
    }
    charm = str(shellcharm.pack(tmp_path / "shell.charm", hooks))
    assert lab("deploy", charm, "one", "--config", "size=4")[0] == 0
    table = lab("status")[1]
    for text in ("one/0*", "one:peers", "10.77.0."):
        assert text in table
    assert yaml.safe_load(lab("config", "one")[1]) == DEFAULTS | {"size": 4}
    assert lab("config", "one", "loud=true", "--reset", "size")[0] == 0
    assert lab("config", "one", "loud")[1] == "loud: true\n"
    assert lab("run", "one/0", "greet", "name=bob") == (0, "one/0: working\ntext: hello\n", "")
    refused = 'Action id 2 failed: cannot run "greet" action: validation failed: '
    refused += "(root).name : must be of type string, given 1\n"
    assert lab("run", "one/0", "greet", "name=1") == (0, refused, "")
    assert lab("run", "one/0", "break") == (
        1,
        "Action id 3 failed: exit status 3\nseen: 'yes'\n",
        'lab: task "3" failed with return code 3\n',
    )
    assert lab("shell", "one/0", "--", "sh", "-c", "hostname; exit 5") == (5, "one-0\n", "")
    assert "agent running greet" in lab("logs", "one/0")[1]
    for line, said in (
        (f"deploy {charm} one", "is there already"),
        (f"deploy {charm} two --config size=big", "expected type int, got 'big'"),
        (f"deploy {charm} two --resource thing=/etc/hosts", "has no resource 'thing': have blob"),
        ("config one shape=round", "unknown option 'shape'"),
        ("run one/9 greet", "unit 'one/9' not found: have one/0"),
        ("status one=1", "unrecognized arguments: one=1"),
        ("gpu lose one/0 1", "has no simulated GPUs"),
        ("task -- ls", "no web unit in the lab"),
        ("secret grant mine one", "no secret 'mine'"),
    ):
        is_refused(lab, line, said)
    assert lab("remove-unit", "one/0")[0] == 0
    assert "one/0" not in lab("status")[1]
