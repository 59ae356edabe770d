# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Units on machines of their own, and several on one, with a charm of a few lines of shell."""

import pytest

from tests.lab.errors import WrongUse
from tests.lab.shellcharm import behave, forget_hooks, hooks_of, machine


def test_units_share_the_machine_that_to_names(model, deploy):
    deploy("one")
    deploy("two", units=2, to=["0"])
    model.controller.settle()
    assert machine(model, "two/0").name == machine(model, "one/0").name == "one-0"
    assert machine(model, "two/1").name == "two-1"
    units = [model.unit(unit) for unit in ("one/0", "two/0", "two/1")]
    assert [unit["machine_id"] for unit in units] == ["0", "0", "1"]
    assert units[0]["address"] == units[1]["address"]
    assert len([hook for hook in hooks_of(model, "one/0") if hook == "start"]) == 2
    with pytest.raises(WrongUse, match="machine '7' not found: have 0, 1"):
        model.add_units("one", to=["7"])
    with pytest.raises(WrongUse, match="names more machines than units: 1"):
        model.add_units("one", to=["0", "1"])

    # A unit that goes leaves the machine, and what it did to it, to the other one.
    machine(model, "two/0").write("/srv/left", "by two/0")
    model.remove_unit("two/0")
    model.controller.settle()
    assert machine(model, "one/0").read("/srv/left") == "by two/0"
    agents = machine(model, "one/0").enter("/bin/ls", "/var/lib/juju/agents").stdout
    assert agents == "unit-one-0\n"
    model.remove_unit("one/0")
    model.controller.settle()
    assert model.controller.park.names() == ["two-1"]


def test_hooks_of_one_machine_take_turns(model, deploy):
    deploy("one")
    deploy("two", to=["0"])
    model.controller.settle()
    script = "echo begin >>/srv/turns; sleep 0.5; echo end >>/srv/turns\n"
    behave(model, "one/0", "update-status", script)
    model.update_status()
    model.controller.settle()
    assert machine(model, "one/0").read("/srv/turns") == "begin\nend\n" * 2


def test_a_reboot_starts_every_unit_of_the_machine(model, deploy):
    deploy("one")
    deploy("two", to=["0"])
    model.controller.settle()
    forget_hooks(model, "one/0")
    model.controller.reboot("two/0")
    assert hooks_of(model, "one/0") == ["start", "start"]
