# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whose a machine is: the agent without Juju and the charm refuse what is the other's."""

import json
import pathlib

import pytest

from gpu_standalone.owner import Owner, TakenError
from lifecycle import machine_claim
from plan.unit_id import UnitId

# Where the agent's command would be.
COMMAND = "gpu-ci-agent"


@pytest.fixture
def owner(tmp_path):
    """The owner of a machine, for the agent."""
    return Owner(tmp_path / "state", tmp_path / "agents")


def unit(tmp_path, name="worker/0"):
    """A unit whose agent lives on the machine."""
    agent = tmp_path / name.replace("/", "-")
    agent.mkdir(exist_ok=True)
    return UnitId(name, "ci", "uuid-of-ci", str(agent))


def take(owner, unit):
    """Claim the machine for a unit of Juju, as the charm does."""
    return machine_claim.Claim(owner.folder).take(unit)


def deploy(owner, folder="unit-worker-0", metadata="name: gpu-ci-worker\nsummary: x\n"):
    """Put a unit on the machine, as Juju does; return the file that names its charm."""
    file = owner.agents / folder / "charm/metadata.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(metadata)
    return file


def test_a_unit_of_juju_is_refused_a_machine_with_the_agent(owner, tmp_path):
    command = tmp_path / COMMAND
    assert owner.claim(command) is True
    command.touch()
    assert owner.claim(command) is False
    with pytest.raises(machine_claim.TakenError) as raised:
        take(owner, unit(tmp_path))
    assert str(raised.value) == (
        "This machine belongs to gpu-ci-agent, the agent without Juju: run sudo gpu-ci-agent "
        "remove on the machine, or juju remove-unit worker/0"
    )
    assert owner.is_ours()


def test_a_unit_of_juju_takes_over_where_the_agent_was_deleted_by_hand(owner, tmp_path):
    owner.claim(tmp_path / COMMAND)
    former = take(owner, unit(tmp_path))
    assert former is not None
    assert former.name == "gpu-ci-agent"
    assert not owner.is_ours()


def test_the_agent_is_refused_a_machine_with_a_unit_of_juju(owner, tmp_path):
    take(owner, unit(tmp_path))
    for refused in (owner.check, lambda: owner.claim(tmp_path / COMMAND)):
        with pytest.raises(TakenError) as raised:
            refused()
        assert str(raised.value) == (
            "This machine belongs to worker/0 of model ci, a unit of Juju: juju remove-unit "
            "worker/0, or use another machine"
        )
    assert not owner.is_ours()


def test_the_agent_is_refused_what_a_unit_that_is_gone_has_left(owner, tmp_path):
    gone = unit(tmp_path)
    take(owner, gone)
    pathlib.Path(gone.agent).rmdir()
    with pytest.raises(TakenError, match="worker/0 of model ci, a unit of Juju that is gone"):
        owner.claim(tmp_path / COMMAND)


@pytest.mark.parametrize(
    "metadata", ["name: gpu-ci-worker\n", "summary: x\nname: 'gpu-ci-worker'  # it\n"]
)
def test_a_unit_of_a_revision_without_a_record_is_refused_by_its_name(owner, tmp_path, metadata):
    deploy(owner, "unit-gpu-worker-12", metadata)
    for refused in (owner.check, lambda: owner.claim(tmp_path / COMMAND)):
        with pytest.raises(TakenError) as raised:
            refused()
        assert str(raised.value) == (
            "This machine belongs to gpu-worker/12, a unit of Juju: juju remove-unit "
            "gpu-worker/12, or use another machine"
        )
    assert not owner.record.exists()


def test_units_of_other_charms_and_juju_itself_are_no_obstacle(owner, tmp_path):
    deploy(owner, "unit-postgresql-0", "name: postgresql\nsummary: not name: gpu-ci-worker\n")
    deploy(owner, "unit-other-0", "name: gpu-ci-worker-tests\n")
    (owner.agents / "machine-3").mkdir()
    (owner.agents / "unit-new-0").mkdir()
    (owner.agents / "unit-file-0").touch()
    assert owner.claim(tmp_path / COMMAND)


def test_a_unit_that_waits_for_the_machine_does_not_keep_the_agent_from_removal(owner, tmp_path):
    owner.claim(tmp_path / COMMAND)
    deploy(owner)
    owner.check()


@pytest.mark.parametrize("part", ["charm/metadata.yaml", "agents"])
def test_a_charm_that_cannot_be_read_is_not_taken_for_another(owner, tmp_path, part):
    if part == "agents":
        owner.agents.symlink_to(owner.agents)
    else:
        file = deploy(owner)
        file.unlink()
        file.mkdir()
    with pytest.raises(TakenError, match=r"\[Errno .*, so the units of Juju on this .* unknown"):
        owner.claim(tmp_path / COMMAND)
    assert not owner.record.exists()


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"owner": {}}', b'{"owner": null}', b"\xff", b"[" * 100_000]
)
def test_a_damaged_record_is_nobodys_to_take(owner, tmp_path, content):
    owner.claim(tmp_path / COMMAND)
    owner.record.write_bytes(content)
    for refused in (owner.check, owner.is_ours):
        with pytest.raises(TakenError, match=r"owner.json cannot be read"):
            refused()


def test_what_is_given_up_is_free_for_either(owner, tmp_path):
    assert owner.give_up() is False
    owner.claim(tmp_path / COMMAND)
    (owner.folder / "quarantine").mkdir()
    assert owner.give_up() is True
    assert not owner.folder.exists()
    assert take(owner, unit(tmp_path)) is None
    assert json.loads(owner.record.read_text())["owner"]["name"] == "worker/0"
