# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The record of whose a machine is, and what is told of machines that have none yet."""

import concurrent.futures
import multiprocessing
import types

import pytest

import ownership
from ci.concourse import former_owner
from ci.concourse.web import web
from ci.concourse.worker import worker
from effects import Effects
from gpu_agent import paths
from lifecycle import drain
from lifecycle import machine_claim as owner
from lifecycle import unit_record as memory
from machine import files
from plan.unit_id import UnitId

CHARM = "name: gpu-ci-worker\nsummary: x\n"


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A folder in the place of this machine's root."""
    monkeypatch.setattr(paths, "STATE", tmp_path / "state")
    monkeypatch.setattr(memory, "_IDS", tmp_path / "state/gpu-ids.json")
    monkeypatch.setattr(memory, "_LEAVING", tmp_path / "state/leaving")
    monkeypatch.setattr(owner, "RECORD", tmp_path / "state/owner.json")
    monkeypatch.setattr(worker, "_ENVIRONMENT", tmp_path / "worker.env")
    monkeypatch.setattr(web, "ENVIRONMENT", tmp_path / "web.env")
    return tmp_path


def unit(machine, name, model="ci", charm=CHARM):
    """A unit whose agent lives on the machine."""
    agent = machine / f"agents/unit-{name.replace('/', '-')}"
    (agent / "charm").mkdir(parents=True, exist_ok=True)
    (agent / "charm/metadata.yaml").write_text(charm)
    return UnitId(name, model, f"uuid-of-{model}", str(agent))


def gone(machine, name, model="ci"):
    agent = machine / f"agents/unit-{name.replace('/', '-')}"
    return UnitId(name, model, f"uuid-of-{model}", str(agent))


def claimed(candidate):
    try:
        owner.claim(candidate)
    except owner.TakenError:
        return False
    return True


def test_of_units_that_come_at_once_one_has_the_machine(machine):
    units = [unit(machine, f"worker/{number}") for number in range(8)]
    fork = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(8, fork) as pool:
        for _ in range(20):
            won = list(pool.map(claimed, units))
            assert won.count(True) == 1
            assert owner.has(units[won.index(True)])
            owner.give_up()


def test_of_units_that_come_at_once_one_takes_over(machine):
    units = [unit(machine, f"worker/{number}") for number in range(8)]
    fork = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(8, fork) as pool:
        for _ in range(20):
            owner.claim(gone(machine, "old/0"))
            assert list(pool.map(claimed, units)).count(True) == 1
            owner.give_up()


def test_a_second_claim_of_the_owner_changes_nothing(machine):
    mine = unit(machine, "worker/0")
    assert owner.claim(mine) is None
    record = owner.RECORD.stat()
    assert owner.claim(mine) is None
    # Reading it may have changed the time of access.
    assert owner.RECORD.stat().st_ctime_ns == record.st_ctime_ns


def test_the_record_outlives_all_that_else_is_remembered(machine, monkeypatch):
    owner.claim(unit(machine, "worker/0"))
    memory.set_leaving()
    removed = []
    absent = files.ensure_absent
    monkeypatch.setattr(files, "ensure_absent", lambda path: removed.append(path.name))
    owner.give_up()
    assert removed == ["leaving", "owner.json", ".lock"]
    monkeypatch.setattr(files, "ensure_absent", absent)
    owner.give_up()
    assert not paths.STATE.exists()


def test_an_agent_that_can_not_be_looked_for_is_none_that_is_gone(machine, monkeypatch):
    owner.claim(unit(machine, "worker/0"))

    def refuse(_):
        raise PermissionError

    monkeypatch.setattr(owner.pathlib.Path, "exists", refuse)
    with pytest.raises(PermissionError):
        owner.claim(unit(machine, "web/0"))


def test_an_owner_of_another_model_is_gone_where_its_agents_folder_is_this_units(machine):
    former = gone(machine, "worker/0", model="old")
    owner.claim(former)
    assert owner.claim(unit(machine, "worker/0")) == former


def take(candidate, monkeypatch, mode="worker", *, new):
    """What was cleared away, by the words for whose it was."""
    cleared = []
    monkeypatch.setattr(drain, "forget", lambda: False)
    system = types.SimpleNamespace(
        former=former_owner.find,
        retire=lambda *_: None,
        set_data_aside=cleared.append,
        removals={},
    )
    effects = Effects(remove=dict.fromkeys(Effects().remove, lambda: None))
    ownership.take(candidate, mode, effects, [system], print, new=new)
    assert owner.has(candidate)
    assert owner.read().former is None
    return cleared


def test_an_empty_machine_is_the_first_units(machine, monkeypatch):
    unit(machine, "worker/1")
    assert take(unit(machine, "worker/0"), monkeypatch, new=True) == []


def test_the_worker_of_an_earlier_revision_is_the_unit_that_it_is_named_by(machine, monkeypatch):
    (machine / "worker.env").write_text('A=1\nCONCOURSE_NAME="gpu-box-12"\n')
    mine, other = unit(machine, "gpu-box/12"), unit(machine, "worker/1")
    memory.set_leaving()
    with pytest.raises(owner.TakenError, match="belongs to gpu-box/12 of model ci"):
        take(other, monkeypatch, "all", new=False)
    assert not owner.RECORD.exists()
    assert take(mine, monkeypatch, new=False) == []
    assert memory.is_leaving()


def test_the_worker_of_an_earlier_revision_whose_unit_is_gone_is_cleared(machine, monkeypatch):
    (machine / "worker.env").write_text('CONCOURSE_NAME="worker-0"\n')
    memory.set_leaving()
    cleared = take(unit(machine, "worker/1"), monkeypatch, new=True)
    assert cleared == ["worker/0 of model ci"]
    assert not memory.is_leaving()


@pytest.mark.parametrize(
    ("mode", "new", "beside", "expected"),
    [
        ("web", False, True, []),
        ("web", False, False, []),
        ("worker", False, False, []),
        ("worker", False, True, "taken"),
        ("web", True, True, "taken"),
        ("web", True, False, ["a unit that is gone"]),
    ],
)
def test_the_web_of_an_earlier_revision_is_the_unit_that_may_have_it(
    machine, monkeypatch, mode, new, beside, expected
):
    (machine / "web.env").write_text("X=1\n")
    mine = unit(machine, "ci/0")
    unit(machine, "postgresql/0", charm="name: postgresql\n")
    if beside:
        unit(machine, "other/7")
    if expected == "taken":
        with pytest.raises(owner.TakenError, match="belongs to other/7 of model ci"):
            take(mine, monkeypatch, mode, new=new)
        assert not owner.RECORD.exists()
    else:
        assert take(mine, monkeypatch, mode, new=new) == expected
