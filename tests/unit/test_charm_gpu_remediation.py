# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A hook has a sick GPU mended before it is tested, and reboots for one when no job runs."""

import json

import ops
import pytest

from actions import dispatch as actions
from gpu_agent import paths
from lifecycle import gpu_remediation as recovery
from lifecycle import remediation_record as recovery_record
from lifecycle import unit_record as memory
from tests.unit.situations import state, tsa

SICK = ("GPU-0",)


@pytest.fixture
def asked(monkeypatch):
    """The reboots that Juju was asked for."""
    asked = []
    monkeypatch.setattr(ops.Unit, "reboot", lambda *_, **__: asked.append("reboot"))
    return asked


@pytest.fixture
def sick(rooms, monkeypatch):
    """A worker with a GPU that a reboot would help."""
    monkeypatch.setattr(recovery, "ensure", rooms.note("recovery.ensure", SICK))
    return rooms


@pytest.fixture
def worker():
    return state(relations=[tsa()], enable_gpu=True, gpu_recovery="reset", auto_reboot="gpu")


def made():
    record = json.loads((paths.STATE / "gpu-recovery.json").read_text())
    return [(one["step"], one["uuids"]) for one in record["made"]]


def test_it_is_mended_before_it_is_tested_and_the_reboot_comes_last(context, sick, worker, asked):
    sick.pid = 4711
    context.run(context.on.update_status(), worker)
    assert asked == []
    sick.pid = 0
    context.run(context.on.update_status(), worker)
    assert asked == ["reboot"]
    assert made() == [("reboot", ["GPU-0"])]
    order = [name for name in sick.calls if name in ("recovery.ensure", "worker.land")]
    assert order[:2] == ["recovery.ensure", "worker.land"]
    assert memory.rebooted_for() == "", "a driver may need its own"


def test_none_under_a_job_and_none_within_an_action(context, sick, worker, asked, monkeypatch):
    monkeypatch.setitem(actions.ALL, "gpu-selftest", lambda _: {})
    context.run(context.on.action("gpu-selftest"), worker)
    assert "worker.land" not in sick.calls
    sick.steps = ("4f0c",)
    context.run(context.on.update_status(), worker)
    assert asked == []
    assert "worker.land" not in sick.calls, "the other GPUs are kept from no job"


def test_a_job_that_came_while_the_worker_landed_ends_before_it(context, sick, worker, asked):
    sick.pid = 4711
    context.run(context.on.update_status(), worker)
    assert "worker.land" in sick.calls
    sick.pid, sick.steps = 0, ("4f0c",)
    context.run(context.on.update_status(), worker)
    assert (asked, sick.calls[-1]) == ([], "worker.take_up")


def test_what_can_not_be_noted_is_no_reason_to_be_off(context, sick, worker, asked, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recovery_record, "begin", full)
    sick.pid = 4711
    context.run(context.on.update_status(), worker)
    sick.pid = 0
    after = context.run(context.on.update_status(), worker)
    assert asked == []
    assert sick.calls[-1] == "worker.take_up"
    assert "the reboot cannot be noted" in after.unit_status.message
