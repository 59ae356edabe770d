# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A hook brings the software that the GPUs need, looks again, and reboots where it may."""

import dataclasses

import ops
import pytest
from ops import testing

from actions import dispatch as actions
from effects import Equip
from gpu_agent.diagnosis import machine as facts
from gpu_agent.model.inventory import Inventory, State
from gpu_agent.model.keep import Keep
from gpu_agent.runtime.settings import GpuPlan
from machine.packages import PackageError
from plan.model import DriverPlan, HostPlan, ToolkitPlan
from tests.unit.host_situations import NEW, OLD, UPGRADED
from tests.unit.situations import Failing, state, tsa

BARE = Inventory(State.NO_DRIVER, detail="0000:01:00.0", vendor="nvidia")


@pytest.fixture
def worker():
    return state(relations=[tsa()], enable_gpu=True)


@pytest.fixture
def bare(rooms):
    """A machine with cards and nothing else, until its software is had."""
    rooms.ready, rooms.inventory = rooms.inventory, BARE
    rooms.machine = dataclasses.replace(rooms.machine, toolkit=None)
    return rooms


def test_a_bare_machine_is_ready_at_the_end_of_the_hook(context, bare, worker):
    good = dataclasses.replace(bare.machine, toolkit=facts.Toolkit("/x", "1.20.0"))

    def bring(wanted, drainer, progress):
        assert wanted.driver == DriverPlan()
        assert isinstance(wanted.toolkit, ToolkitPlan)
        progress("installing NVIDIA driver 580-server (1 of 2)")
        bare.inventory, bare.machine = bare.ready, good
        return True

    bare.hand_in(equip=bring)
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
    context, rooms, worker, error, expected
):
    def fail(*_):
        raise error

    rooms.hand_in(equip=fail)
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
    rooms.ready, rooms.driver = rooms.inventory, UPGRADED
    rooms.inventory = Inventory(State.MISMATCH, detail=NEW, vendor="nvidia")
    return rooms


@pytest.fixture
def asked(monkeypatch):
    """The reboots that Juju was asked for."""
    asked = []
    monkeypatch.setattr(ops.Unit, "reboot", lambda *_, **__: asked.append("reboot"))
    return asked


@pytest.fixture
def allowed():
    return state(relations=[tsa()], enable_gpu=True, auto_reboot="driver")


def test_a_driver_that_needs_a_reboot_gets_one_where_it_may(context, outdated, allowed, asked):
    outdated.pid = 4711
    after = context.run(context.on.update_status(), allowed)
    assert "worker.land" in outdated.calls
    assert asked == []
    assert after.unit_status.name == "maintenance"
    assert after.unit_status.message.endswith("0m of 2h), then reboot for driver 580.65.06")
    outdated.pid = 0
    context.run(context.on.update_status(), allowed)
    assert asked == ["reboot"]
    # A hook that was killed before Juju heard of it: the same boot goes on.
    context.run(context.on.update_status(), allowed)
    assert asked == ["reboot"] * 2
    # A second one would help no more.
    outdated.boot = "second boot"
    after = context.run(context.on.update_status(), allowed)
    assert asked == ["reboot"] * 2
    assert isinstance(after.unit_status, testing.BlockedStatus)
    assert "one reboot by the charm did not help" in after.unit_status.message


def test_after_a_reboot_that_helped_the_same_driver_may_need_another(
    context, outdated, allowed, asked
):
    needed, mismatch = outdated.driver, outdated.inventory
    context.run(context.on.update_status(), allowed)
    outdated.boot, outdated.inventory = "second boot", outdated.ready
    outdated.driver = dataclasses.replace(needed, loaded=needed.version)
    context.run(context.on.start(), allowed)
    assert asked == ["reboot"]
    outdated.driver, outdated.inventory = needed, mismatch
    context.run(context.on.update_status(), allowed)
    assert asked == ["reboot"] * 2


def test_a_reboot_that_left_nouveau_with_the_gpus_has_not_helped(
    context, outdated, allowed, asked
):
    outdated.driver = dataclasses.replace(UPGRADED, loaded=UPGRADED.version)
    outdated.inventory = Inventory(State.NOUVEAU, detail="0000:01:00.0", vendor="nvidia")
    for outdated.boot in ("first boot", "second boot", "second boot"):
        after = context.run(context.on.update_status(), allowed)
    assert asked == ["reboot"]
    assert "one reboot by the charm did not help" in after.unit_status.message


def test_what_an_earlier_revision_kept_of_its_reboot_counts(context, outdated, allowed, asked):
    (outdated.records.unit.folder / "rebooted-for").write_text(UPGRADED.version)
    after = context.run(context.on.update_status(), allowed)
    assert "one reboot by the charm did not help" in after.unit_status.message
    assert asked == []


def test_an_action_reboots_nothing_and_the_next_event_does(
    context, outdated, allowed, asked, monkeypatch
):
    """Juju refuses a reboot within an action, which would leave the worker off."""
    monkeypatch.setitem(actions.ALL, "gpu-selftest", lambda _: {})
    context.run(context.on.action("gpu-selftest"), allowed)
    assert asked == []
    assert "worker.land" not in outdated.calls
    context.run(context.on.update_status(), allowed)
    assert asked == ["reboot"]


def test_a_step_that_begins_while_the_worker_lands_is_not_cut_off(
    context, outdated, allowed, asked
):
    outdated.pid = 4711
    context.run(context.on.update_status(), allowed)
    outdated.pid, outdated.steps = 0, ("4f0c",)
    context.run(context.on.update_status(), allowed)
    assert asked == []
    outdated.steps = ()
    context.run(context.on.update_status(), allowed)
    assert asked == ["reboot"]


def test_it_gets_none_while_a_job_runs_or_without_leave(context, outdated, worker, allowed, asked):
    after = context.run(context.on.update_status(), worker)
    assert after.unit_status.message.startswith(
        f"Reboot needed (driver {NEW} installed, {OLD} loaded)"
    )
    outdated.steps = ("4f0c",)
    after = context.run(context.on.update_status(), allowed)
    assert after.unit_status == testing.MaintenanceStatus(
        "Draining (1 step left, 0m of 2h), then reboot for driver 580.65.06: step 4f0c"
    )
    outdated.hand_in(
        worker=Failing(outdated.concourse.worker, "running", PermissionError("closed"))
    )
    after = context.run(context.on.update_status(), allowed)
    assert "1 step left" in after.unit_status.message
    assert asked == []


@pytest.mark.parametrize(("wanted", "settled"), [(HostPlan(), True), (Keep.AS_IS, False)])
def test_an_upgrade_goes_on_unless_all_is_to_stay_as_it_is(wanted, settled):
    """Such as on a unit that is being removed, whose hooks install nothing any more."""
    went_on = []

    class Upgrade:
        def __init__(self, drainer):
            assert drainer is None

        def settle(self, _):
            went_on.append(True)
            return True

    assert Equip(lambda: False, Upgrade, lambda *_: False)(wanted, None, print) is settled
    assert bool(went_on) is settled


def test_why_an_upgrade_was_taken_back_is_said(context, rooms, worker):
    rooms.upgrade = "driver upgrade taken back: lease failed"
    after = context.run(context.on.update_status(), worker)
    assert after.unit_status.message.endswith("; driver upgrade taken back: lease failed)")
