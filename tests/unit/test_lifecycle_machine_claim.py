# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The record of whose a machine is, and what is told of machines that have none yet."""

import concurrent.futures
import functools
import multiprocessing
import types

import pytest

import ownership
from ci.concourse import former_owner
from ci.concourse.web import web
from ci.concourse.worker import worker
from effects import Effects
from lifecycle.machine_claim import TakenError
from machine import files
from outside import Outside
from plan.unit_id import UnitId
from tests.unit.situations import Rooms

CHARM = "name: gpu-ci-worker\nsummary: x\n"


@pytest.fixture
def machine(tmp_path):
    """A folder in the place of this machine's root."""
    return tmp_path


@pytest.fixture
def records(machine):
    return Rooms(machine_folder=machine).records


@pytest.fixture
def owner(records):
    return records.claim


@pytest.fixture
def take(records, monkeypatch, machine):
    """Have a unit take the machine; what was cleared away, by the words for whose it was."""
    monkeypatch.setattr(worker, "_ENVIRONMENT", machine / "worker.env")
    monkeypatch.setattr(web, "ENVIRONMENT", machine / "web.env")
    effects = Effects(remove=dict.fromkeys(Effects().remove, lambda: None))

    def take(candidate, mode="worker", *, new):
        cleared = []
        system = types.SimpleNamespace(
            former=former_owner.find,
            retire=lambda *_: None,
            set_data_aside=cleared.append,
            removals={},
        )
        outside = Outside(effects=effects, records=records)
        ownership.take(candidate, mode, outside, [system], print, new=new)
        assert records.claim.has(candidate)
        assert records.claim.read().former is None
        return cleared

    return take


def unit(machine, name, model="ci", charm=CHARM):
    """A unit whose agent lives on the machine."""
    agent = machine / f"agents/unit-{name.replace('/', '-')}"
    (agent / "charm").mkdir(parents=True, exist_ok=True)
    (agent / "charm/metadata.yaml").write_text(charm)
    return UnitId(name, model, f"uuid-of-{model}", str(agent))


def gone(machine, name, model="ci"):
    agent = machine / f"agents/unit-{name.replace('/', '-')}"
    return UnitId(name, model, f"uuid-of-{model}", str(agent))


def claimed(owner, candidate):
    try:
        owner.take(candidate)
    except TakenError:
        return False
    return True


def test_of_units_that_come_at_once_one_has_the_machine(machine, owner):
    units = [unit(machine, f"worker/{number}") for number in range(8)]
    fork = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(8, fork) as pool:
        for _ in range(20):
            won = list(pool.map(functools.partial(claimed, owner), units))
            assert won.count(True) == 1
            assert owner.has(units[won.index(True)])
            owner.give_up()


def test_of_units_that_come_at_once_one_takes_over(machine, owner):
    units = [unit(machine, f"worker/{number}") for number in range(8)]
    fork = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(8, fork) as pool:
        for _ in range(20):
            owner.take(gone(machine, "old/0"))
            assert list(pool.map(functools.partial(claimed, owner), units)).count(True) == 1
            owner.give_up()


def test_a_second_claim_of_the_owner_changes_nothing(machine, owner):
    mine = unit(machine, "worker/0")
    assert owner.take(mine) is None
    record = owner.path.stat()
    assert owner.take(mine) is None
    # Reading it may have changed the time of access.
    assert owner.path.stat().st_ctime_ns == record.st_ctime_ns


def test_the_record_outlives_all_that_else_is_remembered(machine, records, owner, monkeypatch):
    owner.take(unit(machine, "worker/0"))
    records.unit.set_leaving()
    removed = []
    absent = files.ensure_absent
    monkeypatch.setattr(files, "ensure_absent", lambda path: removed.append(path.name))
    owner.give_up()
    assert removed == ["leaving", "owner.json", ".lock"]
    monkeypatch.setattr(files, "ensure_absent", absent)
    owner.give_up()
    assert not owner.folder.exists()


def test_an_agent_that_can_not_be_looked_for_is_none_that_is_gone(machine, owner):
    # A name that no file can have: the kernel refuses to look for it, to root too.
    owner.take(UnitId("worker/0", "ci", "uuid-of-ci", f"{machine}/{'x' * 256}"))
    with pytest.raises(OSError, match="File name too long"):
        owner.take(unit(machine, "web/0"))


def test_an_owner_of_another_model_is_gone_where_its_agents_folder_is_this_units(machine, owner):
    former = gone(machine, "worker/0", model="old")
    owner.take(former)
    assert owner.take(unit(machine, "worker/0")) == former


def test_an_empty_machine_is_the_first_units(machine, take):
    unit(machine, "worker/1")
    assert take(unit(machine, "worker/0"), new=True) == []


def test_the_worker_of_an_earlier_revision_is_the_unit_that_it_is_named_by(
    machine, records, owner, take
):
    (machine / "worker.env").write_text('A=1\nCONCOURSE_NAME="gpu-box-12"\n')
    mine, other = unit(machine, "gpu-box/12"), unit(machine, "worker/1")
    records.unit.set_leaving()
    with pytest.raises(TakenError, match="belongs to gpu-box/12 of model ci"):
        take(other, "all", new=False)
    assert not owner.path.exists()
    assert take(mine, new=False) == []
    assert records.unit.is_leaving()


def test_the_worker_of_an_earlier_revision_whose_unit_is_gone_is_cleared(machine, records, take):
    (machine / "worker.env").write_text('CONCOURSE_NAME="worker-0"\n')
    records.unit.set_leaving()
    cleared = take(unit(machine, "worker/1"), new=True)
    assert cleared == ["worker/0 of model ci"]
    assert not records.unit.is_leaving()


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
    machine, owner, take, mode, new, beside, expected
):
    (machine / "web.env").write_text("X=1\n")
    mine = unit(machine, "ci/0")
    unit(machine, "postgresql/0", charm="name: postgresql\n")
    if beside:
        unit(machine, "other/7")
    if expected == "taken":
        with pytest.raises(TakenError, match="belongs to other/7 of model ci"):
            take(mine, mode, new=new)
        assert not owner.path.exists()
    else:
        assert take(mine, mode, new=new) == expected
