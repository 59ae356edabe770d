# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A hook has a sick GPU mended before it is tested, and reboots for one when no job runs."""

import ops
import pytest

from actions import dispatch as actions
from plan.gpu_remediation import Step
from tests.unit.situations import state, tsa

SICK = ("GPU-0",)


@pytest.fixture
def asked(monkeypatch):
    """The reboots that Juju was asked for."""
    asked = []
    monkeypatch.setattr(ops.Unit, "reboot", lambda *_, **__: asked.append("reboot"))
    return asked


@pytest.fixture
def sick(rooms):
    """A worker with a GPU that a reboot would help."""
    rooms.hand_in(remedy=rooms.note("recovery.ensure", SICK))
    return rooms


@pytest.fixture
def worker():
    return state(relations=[tsa()], enable_gpu=True, gpu_recovery="reset", auto_reboot="gpu")


def made(rooms):
    return [(one.step, one.uuids) for one in rooms.records.remediation.read().made]


def test_it_is_mended_before_it_is_tested_and_the_reboot_comes_last(context, sick, worker, asked):
    sick.pid = 4711
    context.run(context.on.update_status(), worker)
    assert asked == []
    sick.pid = 0
    context.run(context.on.update_status(), worker)
    assert asked == ["reboot"]
    assert made(sick) == [(Step.REBOOT, SICK)]
    order = [name for name in sick.calls if name in ("recovery.ensure", "worker.land")]
    assert order[:2] == ["recovery.ensure", "worker.land"]
    assert sick.records.unit.rebooted_for() == "", "a driver may need its own"


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


def test_what_can_not_be_noted_is_no_reason_to_be_off(context, sick, worker, asked):
    sick.pid = 4711
    context.run(context.on.update_status(), worker)
    sick.pid = 0
    sick.records.remediation.path.mkdir()
    after = context.run(context.on.update_status(), worker)
    assert asked == []
    assert sick.calls[-1] == "worker.take_up"
    assert "the reboot cannot be noted" in after.unit_status.message
