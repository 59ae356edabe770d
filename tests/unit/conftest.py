# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm with rooms that only note what they were asked for, and the wrapper with one GPU."""

import pytest

from tests.unit import recorded_trees
from tests.unit.situations import Rooms
from tests.unit.wrapper_caller import Caller
from tests.unit.wrapper_rig import GPUS, Rig


@pytest.fixture
def rooms(tmp_path):
    rooms = Rooms(machine_folder=tmp_path)
    rooms.own("unit/0")
    return rooms


@pytest.fixture
def context(rooms):
    return rooms.context()


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path, back_end=False)
    rig.policy(gpus=GPUS[:1])
    return rig


@pytest.fixture
def caller(rig):
    return Caller(rig)


@pytest.fixture(params=["v1", "v2"])
def tree(tmp_path, request):
    """A recorded tree of cgroup v1 or v2, in which a process that is killed is gone."""
    return recorded_trees.Tree(tmp_path, request.param)
