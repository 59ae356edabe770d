# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Leases in a user namespace with cgroup v1.

runc puts a task's process in v2's hierarchy alone, and in v1's root may move only its own.
"""

import json
import os
import pathlib
import shutil
import sys

import pytest

from gpu_runtime import cgroups as groups
from tests.functional import nested_scope, nested_task, user_namespace

ROOT = pathlib.Path(__file__).resolve().parents[2]
MISSING = [name for name in ("runc", "busybox") if not shutil.which(name)]

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces with many users need root"),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
    pytest.mark.skipif(bool(user_namespace.missing()), reason=user_namespace.missing()),
]


def ran(program):
    path = f"PYTHONPATH={ROOT}/src:{ROOT}/lib:{ROOT}"
    argv = ["/usr/bin/env", path, "PYTHONDONTWRITEBYTECODE=1", sys.executable]
    argv += ["-m", program.__name__]
    said = user_namespace.run(argv, 60)
    try:
        return json.loads(said.splitlines()[-1])
    except (ValueError, IndexError):
        pytest.fail(said)


@pytest.fixture(scope="module")
def found():
    return ran(nested_task)


def test_this_is_the_arrangement(found):
    """Its first process is in all groups of the container, its step in v2's alone."""
    name = nested_task.NAME
    assert found["init"][groups.DEVICES].endswith(f"/garden/{name}")
    assert found["step"][groups.UNIFIED].endswith(f"/garden/{name}")
    own = {path for key, path in found["step"].items() if key != groups.UNIFIED}
    assert not any(name in path for path in own)


def test_a_lease_lasts_for_as_long_as_the_step(found):
    assert found["while"] == {
        "in_use": True,
        "processes": ["task"],
        "steps": 1,
        "running": [nested_task.NAME],
        "leftovers": True,
    }


def test_its_step_can_be_frozen(found):
    assert found["switch"] == "cgroup.freeze"


def test_it_can_be_though_its_containers_first_process_has_moved_itself_down(found):
    assert found["inner"] == "cgroup.freeze"


def test_what_it_leaves_is_seen_and_ended_wholly(found):
    assert not found["left"]["in_use"]
    assert found["left"]["leftovers"]
    assert found["cleared"]
    assert found["gone"]
    assert found["alive"] == []
    assert found["took"] < 1


def test_gpu_run_moves_its_caller_into_its_scope():
    """Act: root there moves another user's process. Assert: it is in all groups, and lives."""
    moved = ran(nested_scope)
    assert moved["alive"]
    assert moved["user"] == 0
    scope = f"/{nested_scope.UNIT}"
    assert moved["groups"][groups.DEVICES] == moved["groups"][groups.UNIFIED] == scope
