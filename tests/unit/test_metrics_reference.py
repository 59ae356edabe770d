# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""metrics.md has one entry for each metric and alert, and each command in an alert can be run."""

import collections
import pathlib
import re

import pytest
import yaml

from gpu_agent.reporting.metrics import definitions

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/metrics.md").read_text()
RULES = [
    rule
    for path in sorted((ROOT / "src/prometheus_alert_rules").glob("*.rules"))
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
]
ACTIONS = yaml.safe_load((ROOT / "actions.yaml").read_text())
OPTIONS = yaml.safe_load((ROOT / "config.yaml").read_text())["options"]
UNIT = r"(?:{{[^}]*}}|<unit>)"
APPLICATION = r"(?:{{[^}]*}}|<application>)"


def entries(section):
    """The names in the first column of the table between a section's marks."""
    (table,) = re.findall(rf"<!-- {section} -->\n(.*?)<!-- /{section} -->", PAGE, re.DOTALL)
    return collections.Counter(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))


def test_each_metric_has_one_entry():
    assert entries("metrics") == collections.Counter(one.name for one in definitions.TABLE)


def test_each_alert_has_one_entry():
    assert entries("alerts") == collections.Counter(rule["alert"] for rule in RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_each_command_of_an_alert_can_be_run(rule):
    text = " ".join(rule["annotations"].values())
    commands = re.findall(r"`juju (run|config) ([^`]*)`", text)
    assert len(commands) == len(re.findall(r"juju (?:run|config)", text))
    for kind, rest in commands:
        if kind == "config":
            name = re.fullmatch(rf"{APPLICATION} ([a-z-]+)=\S+", rest)[1]
            assert name in OPTIONS, rest
            continue
        action, params = re.fullmatch(rf"{UNIT} ([a-z-]+)((?: .*)?)", rest).groups()
        declared = ACTIONS[action]
        given = set(re.findall(r"(?:^| )([a-z-]+)=", params))
        assert given <= set(declared.get("params", {})), rest
        assert set(declared.get("required", ())) <= given, rest
