# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""docs/reference/actions.md has one entry for each action, with all its parameters."""

import pathlib
import re

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
ACTIONS = yaml.safe_load((ROOT / "actions.yaml").read_text())
PAGE = (ROOT / "docs/reference/actions.md").read_text()
ENTRIES = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]


def one_line(text):
    return " ".join(text.split()).replace("|", "\\|")


def shown_default(action, name, param):
    if name in action.get("required", []):
        return "required"
    if "default" not in param:
        return "not set"
    value = param["default"]
    value = str(value).lower() if isinstance(value, bool) else value
    return f"`{value}`" if value != "" else "empty"


def shown_type(param):
    return ", ".join(f"`{one}`" for one in param["enum"]) if "enum" in param else param["type"]


def test_each_action_has_one_entry_and_each_entry_is_an_action():
    assert sorted(entry.partition("\n")[0] for entry in ENTRIES) == sorted(ACTIONS)


@pytest.mark.parametrize("name", ACTIONS)
def test_an_entry_has_the_purpose_the_parameters_an_example_and_the_effect_on_builds(name):
    (entry,) = (entry for entry in ENTRIES if entry.startswith(f"{name}\n"))
    action = ACTIONS[name]
    assert one_line(action["description"]) in one_line(entry)
    rows = [
        f"| `{param}` | {shown_type(about)} | {shown_default(action, param, about)} "
        f"| {one_line(about['description'])} |"
        for param, about in action.get("params", {}).items()
    ]
    assert [line for line in entry.splitlines() if line.startswith("| `")] == rows
    assert rows or "Parameters: none." in entry
    assert re.search(r"^Results: |\bResults: ", entry, re.MULTILINE)
    assert "\nRunning builds: " in entry
    assert re.search(rf"^    juju run \S+ {name}\b", entry, re.MULTILINE)
