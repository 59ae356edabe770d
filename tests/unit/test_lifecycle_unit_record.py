# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a unit must not forget between two hooks: what GPU indexes mean, and that it leaves."""

import pytest

from gpu_agent import paths
from lifecycle import unit_record
from plan.state import RememberedIds


@pytest.fixture
def state(tmp_path, monkeypatch):
    folder = tmp_path / "gpu-ci"
    monkeypatch.setattr(paths, "STATE", folder)
    monkeypatch.setattr(unit_record, "_IDS", folder / "gpu-ids.json")
    monkeypatch.setattr(unit_record, "_LEAVING", folder / "leaving")
    return folder


def test_ids_are_remembered_and_forgotten(state):
    ids = RememberedIds(("1", "0"), (("1", "GPU-b"), ("0", "GPU-a")), (1, 0))
    assert unit_record.remembered_ids() == RememberedIds()
    assert unit_record.remember_ids(ids)
    assert unit_record.remembered_ids() == ids
    assert not unit_record.remember_ids(ids)
    assert unit_record.remember_ids(RememberedIds())
    assert unit_record.remembered_ids() == RememberedIds()
    assert not unit_record.remember_ids(RememberedIds())


def test_leaving_is_for_good(state):
    assert not unit_record.is_leaving()
    unit_record.set_leaving()
    unit_record.set_leaving()
    assert unit_record.is_leaving()
