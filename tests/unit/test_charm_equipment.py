# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A hook brings the software that the GPUs need, looks again, and reboots where it may."""

import dataclasses

import ops
import pytest
from ops import testing

import charm
import equipment
import reboot
from gpu.inventory import Inventory, State
from machine.packages import PackageError
from plan.parts import DriverPlan, GpuPlan, HostPlan, Keep, ToolkitPlan
from plan.state import Driver
from tests.unit.situations import state, tsa

KERNEL = "6.8.0-60-generic"
BARE = Inventory(State.NO_DRIVER, detail="0000:01:00.0")
OLD_LOADED = Driver(
    kernel=KERNEL,
    next_kernel=KERNEL,
    modules=((KERNEL, "580.95.05"),),
    loaded="580.65.06",
    library="580.95.05",
    branch="580-server",
    version="580.95.05",
    ours=True,
)


@pytest.fixture
def worker():
    return state(relations=[tsa()], enable_gpu=True)


@pytest.fixture
def bare(rooms):
    """A machine with cards and nothing else, until its software is had."""
    rooms.ready, rooms.inventory = rooms.inventory, BARE
    rooms.machine = dataclasses.replace(rooms.machine, toolkit=None)
    return rooms


def test_a_bare_machine_is_ready_at_the_end_of_the_hook(context, bare, worker, monkeypatch):
    good = dataclasses.replace(bare.machine, toolkit=charm.look.facts.Toolkit("/x", "1.20.0"))

    def bring(wanted, progress):
        assert wanted.driver == DriverPlan()
        assert isinstance(wanted.toolkit, ToolkitPlan)
        progress("installing NVIDIA driver 580-server (1 of 2)")
        bare.inventory, bare.machine = bare.ready, good
        return True

    monkeypatch.setattr(charm.equipment, "ensure", bring)
    after = context.run(context.on.config_changed(), worker)
    assert after.unit_status == testing.ActiveStatus("Worker ready (GPU: 2x NVIDIA)")
    told = [status.message for status in context.unit_status_history]
    assert "installing NVIDIA driver 580-server (1 of 2)" in told
    assert isinstance(bare.gpu, GpuPlan)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PackageError("no such package: do this"), testing.BlockedStatus),
        (PackageError("apt is locked", passes=True), testing.WaitingStatus),
    ],
)
def test_what_can_not_be_had_is_told_and_stops_nothing_else(
    context, rooms, worker, monkeypatch, error, expected
):
    def fail(*_):
        raise error

    monkeypatch.setattr(charm.equipment, "ensure", fail)
    after = context.run(context.on.config_changed(), worker)
    assert after.unit_status == expected(str(error))
    assert rooms.worker
    assert isinstance(rooms.gpu, GpuPlan)


def test_without_gpus_what_was_brought_is_given_up(context, rooms):
    context.run(context.on.config_changed(), state(relations=[tsa()]))
    assert rooms.host == HostPlan()
    context.run(context.on.config_changed(), state("wrk"))
    assert rooms.host is Keep.AS_IS


@pytest.fixture
def outdated(rooms, monkeypatch):
    """A machine whose driver on the disk is another than the loaded one."""
    rooms.driver, rooms.inventory = OLD_LOADED, Inventory(State.MISMATCH, detail="580.95.05")
    monkeypatch.setattr(reboot.steps, "running", lambda: ())
    return rooms


def test_a_driver_that_needs_a_reboot_gets_one_where_it_may(context, outdated, monkeypatch):
    asked = []
    monkeypatch.setattr(ops.Unit, "reboot", lambda *_, **__: asked.append("reboot"))
    allowed = state(relations=[tsa()], enable_gpu=True, auto_reboot=True)
    context.run(context.on.update_status(), allowed)
    assert asked == ["reboot"]
    assert "worker.retire" in outdated.calls
    # A second one would help no more.
    after = context.run(context.on.update_status(), allowed)
    assert asked == ["reboot"]
    assert isinstance(after.unit_status, testing.BlockedStatus)


def test_it_gets_none_while_a_job_runs_or_without_leave(context, outdated, worker, monkeypatch):
    asked = []
    monkeypatch.setattr(ops.Unit, "reboot", lambda *_, **__: asked.append("reboot"))
    after = context.run(context.on.update_status(), worker)
    assert after.unit_status.message.startswith(
        "reboot needed (driver 580.95.05 installed, 580.65.06 loaded)"
    )
    monkeypatch.setattr(reboot.steps, "running", lambda: ("4f0c",))
    allowed = state(relations=[tsa()], enable_gpu=True, auto_reboot=True)
    after = context.run(context.on.update_status(), allowed)
    assert isinstance(after.unit_status, testing.WaitingStatus)

    def unknown():
        raise PermissionError

    monkeypatch.setattr(reboot.steps, "running", unknown)
    context.run(context.on.update_status(), allowed)
    assert asked == []


@pytest.mark.parametrize(("wanted", "settled"), [(HostPlan(), True), (Keep.AS_IS, False)])
def test_an_upgrade_goes_on_unless_all_is_to_stay_as_it_is(monkeypatch, wanted, settled):
    """Such as on a unit that is being removed, whose hooks install nothing any more."""
    went_on = []
    monkeypatch.setattr(equipment.walk, "settle", lambda _: went_on.append(True) or True)
    monkeypatch.setattr(equipment.software, "ensure", lambda *_: False)
    assert equipment.ensure(wanted, print) is settled
    assert bool(went_on) is settled


def test_why_an_upgrade_was_taken_back_is_said(context, rooms, worker, monkeypatch):
    monkeypatch.setattr(charm.look.walk, "said", lambda: "driver upgrade taken back: lease failed")
    after = context.run(context.on.update_status(), worker)
    assert after.unit_status.message.endswith("; driver upgrade taken back: lease failed)")
