# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whose a machine is: the agent without Juju and the charm refuse what is the other's."""

import json
import pathlib

import pytest

from gpu_standalone import owner
from lifecycle import machine_claim
from plan.unit_id import UnitId

# Where the agent's command would be.
COMMAND = "gpu-ci-agent"


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A folder in the place of /var/lib/gpu-ci, for both."""
    state = tmp_path / "state"
    monkeypatch.setattr(owner.paths, "STATE", state)
    monkeypatch.setattr(owner, "RECORD", state / "owner.json")
    return tmp_path


def unit(machine, name="worker/0"):
    """A unit whose agent lives on the machine."""
    agent = machine / name.replace("/", "-")
    agent.mkdir(exist_ok=True)
    return UnitId(name, "ci", "uuid-of-ci", str(agent))


def take(unit):
    """Claim the machine for a unit of Juju, as the charm does."""
    return machine_claim.Claim(owner.paths.STATE).take(unit)


def test_a_unit_of_juju_is_refused_a_machine_with_the_agent(machine):
    command = machine / COMMAND
    assert owner.claim(command) is True
    command.touch()
    assert owner.claim(command) is False
    with pytest.raises(machine_claim.TakenError) as raised:
        take(unit(machine))
    assert str(raised.value) == (
        "This machine belongs to gpu-ci-agent, the agent without Juju: run sudo gpu-ci-agent "
        "remove on the machine, or juju remove-unit worker/0"
    )
    assert owner.is_ours()


def test_a_unit_of_juju_takes_over_where_the_agent_was_deleted_by_hand(machine):
    owner.claim(machine / COMMAND)
    former = take(unit(machine))
    assert former is not None
    assert former.name == "gpu-ci-agent"
    assert not owner.is_ours()


def test_the_agent_is_refused_a_machine_with_a_unit_of_juju(machine):
    take(unit(machine))
    for refused in (owner.check, lambda: owner.claim(machine / COMMAND)):
        with pytest.raises(owner.TakenError) as raised:
            refused()
        assert str(raised.value) == (
            "This machine belongs to worker/0 of model ci, a unit of Juju: juju remove-unit "
            "worker/0, or use another machine"
        )
    assert not owner.is_ours()


def test_the_agent_is_refused_what_a_unit_that_is_gone_has_left(machine):
    gone = unit(machine)
    take(gone)
    pathlib.Path(gone.agent).rmdir()
    with pytest.raises(
        owner.TakenError, match="worker/0 of model ci, a unit of Juju that is gone"
    ):
        owner.claim(machine / COMMAND)


@pytest.mark.parametrize("text", ["{", "[]", '{"owner": {}}', '{"owner": null}'])
def test_a_damaged_record_is_nobodys_to_take(machine, text):
    owner.claim(machine / COMMAND)
    owner.RECORD.write_text(text)
    for refused in (owner.check, owner.is_ours):
        with pytest.raises(owner.TakenError, match=r"owner.json cannot be read"):
            refused()


def test_what_is_given_up_is_free_for_either(machine):
    assert owner.give_up() is False
    owner.claim(machine / COMMAND)
    (owner.paths.STATE / "quarantine").mkdir()
    assert owner.give_up() is True
    assert not owner.paths.STATE.exists()
    assert take(unit(machine)) is None
    assert json.loads(owner.RECORD.read_text())["owner"]["name"] == "worker/0"
