# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a unit must not forget between two hooks: what GPU indexes mean, and that it leaves."""

import pytest

from lifecycle.clock import Clock
from lifecycle.unit_record import UnitRecord
from plan.state import RememberedIds


@pytest.fixture
def unit_record(tmp_path):
    return UnitRecord(tmp_path / "gpu-ci", Clock())


def test_ids_are_remembered_and_forgotten(unit_record):
    ids = RememberedIds(("1", "0"), (("1", "GPU-b"), ("0", "GPU-a")), (1, 0))
    assert unit_record.remembered_ids() == RememberedIds()
    assert unit_record.remember_ids(ids)
    assert unit_record.remembered_ids() == ids
    assert not unit_record.remember_ids(ids)
    assert unit_record.remember_ids(RememberedIds())
    assert unit_record.remembered_ids() == RememberedIds()
    assert not unit_record.remember_ids(RememberedIds())


def test_leaving_is_for_good(unit_record):
    assert not unit_record.is_leaving()
    unit_record.set_leaving()
    unit_record.set_leaving()
    assert unit_record.is_leaving()
