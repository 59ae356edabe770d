# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The lab's command line: what it says to wrong use, and a whole life of a small charm."""

import os
import subprocess

import pytest
import yaml

from tests.lab import shellcharm
from tests.lab.session import ROOT

DEFAULTS = {"colour": "blue", "size": 3, "loud": False, "key": None}
PYTHON = str(ROOT / ".venv/bin/python")


@pytest.fixture
def lab(machines_work, tmp_path):
    """Run a lab command in a lab of the test's own; exit status, output, errors."""
    env = {**os.environ, "GPUCI_LAB_DIR": str(tmp_path / "lab"), "PYTHONPATH": str(ROOT)}

    def lab(*arguments: str) -> tuple[int, str, str]:
        command = [PYTHON, "-m", "tests.lab.cli", *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    yield lab
    assert lab("destroy")[0] == 0
    assert not (tmp_path / "lab").exists()


@pytest.fixture
def charm(tmp_path):
    hooks = {
        "greet": "action-log working; action-set text=hello\n",
        "break": "action-set seen=yes; exit 3\n",
    }
    return str(shellcharm.pack(tmp_path / "shell.charm", hooks))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("status", "no lab is up in"),
        ("config one", "no lab is up in"),
        ("dance", "invalid choice: 'dance'"),
        ("run one/0", "the following arguments are required: action"),
        ("deploy /nowhere/x.charm one", "cannot read the charm /nowhere/x.charm"),
        ("fetch moon", "invalid choice: 'moon'"),
        ("secret steal a b", "invalid choice: 'steal'"),
    ],
)
def test_wrong_use_without_a_lab_is_one_clear_line(lab, arguments, said):
    status, _, errors = lab(*arguments.split())
    assert (status, errors.count("\n")) == (2, 1)
    assert said in errors


def test_every_command_explains_itself_with_an_example(lab):
    listed = lab("--help")[1].partition("COMMAND\n")[2].partition("\noptions:")[0]
    names = [
        line.split()[0]
        for line in listed.splitlines()
        if line.startswith("    ") and line[4] != " "
    ]
    assert {"up", "deploy", "config", "run", "task", "logs", "shell", "gpu", "fetch"} <= set(names)
    for name in names:
        assert f"Example: lab {name}" in lab(name, "--help")[1]


def test_a_charm_lives_by_the_commands(lab, charm):
    assert lab("deploy", charm, "one", "--config", "size=4", "-n", "2")[0] == 0
    assert lab("deploy", charm, "two")[0] == 0
    assert lab("integrate", "one:server", "two:client")[0] == 0
    table = lab("status")[1]
    for text in ("one/0*", "one/1", "one:server", "two:client", "10.77.0."):
        assert text in table
    assert yaml.safe_load(lab("config", "one")[1])["size"] == 4
    assert lab("config", "one", "size=5", "--reset", "colour")[0] == 0
    assert lab("config", "one", "size")[1] == "size: 5\n"
    assert lab("config", "one", "loud=true", "colour=red")[0] == 0
    assert lab("config", "one", "--reset", "size,loud", "--reset", "colour")[0] == 0
    assert yaml.safe_load(lab("config", "one")[1]) == DEFAULTS
    assert lab("run", "one/0", "greet", "name=bob") == (0, "one/0: working\ntext: hello\n", "")
    refused = 'Action id 2 failed: cannot run "greet" action: validation failed: '
    refused += "(root).name : must be of type string, given 1\n"
    assert lab("run", "one/0", "greet", "name=1") == (0, refused, "")
    assert lab("run", "one/0", "greet", "--string-args", "name=1")[1].endswith("text: hello\n")
    status, out, errors = lab("run", "one/0", "break")
    assert (status, out) == (1, "Action id 4 failed: exit status 3\nseen: 'yes'\n")
    assert errors == 'lab: task "4" failed with return code 3\n'
    done = (0, "", "The following tasks could not be canceled:\ntask: 4\n")
    assert lab("cancel-task", "4") == done
    assert lab("shell", "one/0", "hostname")[1] == "one-0\n"
    assert lab("shell", "one/0", "--", "sh", "-c", "exit 5")[0] == 5
    assert "agent running greet" in lab("logs", "one/0")[1]
    uri = lab("secret", "add", "mine", "some-key=text")[1].split()[-1]
    assert lab("config", "one", f"key={uri}")[0] == lab("secret", "grant", "mine", "one")[0] == 0
    assert lab("update-status", "one/0")[0] == 0
    assert lab("refresh", "one", charm)[0] == 0
    assert lab("add-unit", "two", "--to", "1")[1].startswith("added two/1\n")
    assert lab("shell", "two/1", "hostname")[1] == "one-1\n"
    assert lab("remove-relation", "one", "two:client")[0] == 0
    assert lab("remove-unit", "one/1")[0] == 0
    assert "one/1" not in lab("status")[1]


def test_wrong_use_of_a_lab_is_one_clear_line(lab, charm):
    assert lab("deploy", charm, "one")[0] == 0
    for arguments, said in (
        (f"deploy {charm} one", "is there already"),
        (f"deploy {charm} two --config size=big", "expected type int, got 'big'"),
        (f"deploy {charm} two --resource thing=/etc/hosts", "has no resource 'thing': have blob"),
        (f"deploy {charm} two --resource blob", "resources are written key=value"),
        ("config one shape=round", "unknown option 'shape'"),
        ("config two size=1", "application 'two' not found: have one"),
        ("run one/9 greet", "unit 'one/9' not found: have one/0"),
        ("run one/0 dance", 'action "dance" not defined for unit "one/0": have break, greet'),
        ("run one/0 greet Size=1", 'key "Size" must start and end with lowercase'),
        ("cancel-task 7", "task with ID '7' not found: have none"),
        ("status one=1", "unrecognized arguments: one=1"),
        ("integrate one two", "application 'two' not found"),
        ("remove-relation one:server one:client", "cannot relate one to itself"),
        ("remove-unit one/9", "unit 'one/9' not found"),
        ("add-unit two", "application 'two' not found"),
        ("resolved one/0", "is not in an error state"),
        ("gpu lose one/0 1", "has no simulated GPUs"),
        ("logs one/9", "unit 'one/9' not found"),
        ("shell one/9", "unit 'one/9' not found"),
        ("task -- ls", "no web unit in the lab"),
        ("task", "which command?"),
        ("fly workers", "no web unit in the lab"),
        ("secret grant mine one", "no secret 'mine'"),
    ):
        status, out, errors = lab(*arguments.split())
        assert (arguments, status, errors.count("\n")) == (arguments, 2, 1), errors
        assert said in errors
        # Juju's config prints this before its error.
        assert out == ("{}\n" if arguments.startswith("config") else "")
