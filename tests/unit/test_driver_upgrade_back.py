# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The way from one NVIDIA driver to another: where the new one fails, and what a kill leaves."""

import dataclasses
import datetime

import pytest

from actions import driver_upgrade as action
from actions.driver_upgrade import UpgradeError
from gpu_agent.availability import quarantine
from gpu_agent.model import errors
from gpu_selftest.check import Level, Outcome
from lifecycle.driver_upgrade import gpu_pool as pool
from lifecycle.driver_upgrade import record as driver_record
from lifecycle.driver_upgrade import steps as walk
from machine.packages import PackageError
from tests.unit import driver_world
from tests.unit.driver_world import KEPT, NEW, OLD, REQUEST, Killed, is_done, settle, upgrade
from tests.unit.situations import GPUS


@pytest.fixture
def world(tmp_path, monkeypatch):
    return driver_world.make(tmp_path, monkeypatch)


BAD = {GPUS[0].uuid: Outcome.FAILED}


def test_a_driver_that_fails_is_taken_back(world):
    world.fails = {NEW.version: BAD}
    with pytest.raises(UpgradeError) as failed:
        upgrade(world)
    assert str(failed.value) == (
        "The new driver, 580.95.05 of 580-server, failed: grant failed: failed with 580.95.05. "
        "Rolled back to 580.65.06 of 580-server, which passed the self-test; "
        "the GPUs are available"
    )
    assert failed.value.results["state"].startswith("self-test passed")
    assert is_done(world, OLD)
    assert "rolled back: grant failed: failed with 580.95.05" in walk.said()
    assert action.preview(REQUEST, world)["last"] == walk.said()
    world.fails = {}
    upgrade(world)
    assert is_done(world, NEW)
    assert walk.said() == ""


@pytest.mark.parametrize("known", ["report", "quarantine"])
def test_a_gpu_that_has_failed_before_is_not_the_new_drivers_fault(world, known):
    world.fails = {OLD.version: BAD, NEW.version: BAD}
    if known == "report":
        world.test()
        quarantine.lift(GPUS[0].uuid)
    else:
        quarantine.put(GPUS[0].uuid, "Xid 79", "xid", "quick", "reboot")
    assert upgrade(world)["state"].startswith("self-test passed")
    assert (world.installed, world.quarantined()) == (NEW, {GPUS[0].uuid: "grant"})
    assert driver_record.read() is None


def test_a_gpu_that_an_operator_took_out_speaks_against_the_new_driver(world):
    quarantine.cordon(GPUS[0].uuid, "swapping the fan")
    world.fails = {NEW.version: BAD}
    with pytest.raises(UpgradeError, match=r"Rolled back .* passed"):
        upgrade(world)


@pytest.mark.parametrize("passes", [False, True])
def test_packages_that_do_not_come_leave_the_old_driver(world, passes):
    world.install_errors = {NEW.version: PackageError("no space left", passes=passes)}
    with pytest.raises(UpgradeError, match=r"failed: no space left. Rolled back to 580.65.06 of"):
        upgrade(world)
    assert is_done(world, OLD)
    assert "reload" not in world.steps


def test_modules_that_can_not_be_loaded_bring_the_old_driver_back(world):
    world.load_errors = {NEW.version: PackageError("Key was rejected by service")}
    with pytest.raises(UpgradeError, match=r"Key was rejected by service.* Rolled back .* passed"):
        upgrade(world)
    assert is_done(world, OLD)


def test_without_a_release_of_concourse_the_new_driver_waits_for_its_test(world, tmp_path):
    world.kept = dataclasses.replace(KEPT, runc=str(tmp_path / "runc"))
    shown = upgrade(world)
    why = f"the self-test needs {tmp_path}/runc, which is not there yet"
    assert shown["state"] == f"self-test incomplete: {why}"
    assert shown["next"].endswith("gpu-selftest level=isolation")
    assert world.installed == NEW
    assert walk.said().endswith(driver_record.Step.TEST.value)
    world.kept = KEPT
    settle(world)
    assert (world.installed, walk.said()) == (NEW, "")


def test_a_self_test_that_ends_without_a_verdict_brings_the_old_driver_back(world):
    world.hangs_with = NEW.version
    with pytest.raises(UpgradeError, match=r"out of time.* Rolled back .* passed"):
        upgrade(world)
    assert is_done(world, OLD)


def test_where_both_fail_it_says_so_and_ends(world):
    world.fails = {NEW.version: BAD, OLD.version: BAD}
    with pytest.raises(UpgradeError, match=r"The rollback failed too: with 580.65.06 .*, grant"):
        upgrade(world)
    assert world.installed == OLD
    assert world.quarantined() == {GPUS[0].uuid: "grant"}
    assert settle(world) is False


def test_where_the_old_packages_are_gone_the_new_ones_stay_and_gpus_are_out(world):
    world.fails = {NEW.version: BAD}
    gone = PackageError("the archives have no nvidia-utils-580-server 580.65.06")
    world.install_errors = {OLD.version: gone}
    with pytest.raises(UpgradeError, match=r"The rollback failed too: .*the archives have no"):
        upgrade(world)
    assert settle(world) is False
    assert GPUS[0].uuid in world.quarantined()


def test_a_way_back_that_is_closed_for_now_is_gone_at_the_next_event(world):
    world.fails = {NEW.version: BAD}
    world.install_errors = {OLD.version: PackageError("apt is locked", passes=True)}
    with pytest.raises(
        UpgradeError, match=r"apt is locked: .*rolling back: installing continues at"
    ):
        upgrade(world)
    with pytest.raises(PackageError):
        settle(world)
    world.install_errors = {}
    assert settle(world) is True
    assert is_done(world, OLD)
    assert "rolled back" in walk.said()


@pytest.mark.parametrize("goes_back", [False, True])
def test_modules_that_can_not_be_loaded_for_now_are_at_the_next_event(world, goes_back):
    target = OLD if goes_back else NEW
    world.fails = {NEW.version: BAD} if goes_back else {}
    error = PackageError("modprobe -r nvidia ran out of time", passes=True)
    world.load_errors = {target.version: error}
    with pytest.raises(
        UpgradeError, match=r"out of time: .*: loading continues at the charm's next"
    ):
        upgrade(world)
    with pytest.raises(PackageError):
        settle(world)
    world.load_errors = {}
    assert settle(world) is True
    assert is_done(world, target)


def test_a_gpu_that_is_no_longer_chosen_delays_nothing(world):
    world.used_by = ("pid 4711 (python3)",)
    upgrade(world)
    world.used_by, world.loaded = (), NEW.version
    world.kept = dataclasses.replace(KEPT, gpus=GPUS[:1])
    assert settle(world) is True
    assert driver_record.read() is None
    assert world.quarantined() == {GPUS[1].uuid: pool.CHECK}, "it has not been tested"


def test_a_worker_that_fails_as_a_whole_speaks_against_the_driver_without_gpus_too(world):
    """As where the settings were written while no GPU could be used."""
    world.kept = dataclasses.replace(KEPT, gpus=())
    world.fails = {NEW.version: {"": Outcome.FAILED}}
    with pytest.raises(UpgradeError, match="grant failed"):
        upgrade(world)


def test_a_gpu_that_could_not_be_tested_stays_out_until_a_test_passes(world):
    world.prevented = Outcome.NOT_RUN
    shown = upgrade(world)
    assert shown["state"] == "self-test incomplete: not-run with 580.95.05"
    assert "juju run worker/0 gpu-selftest" in shown["next"]
    assert settle(world) is False
    assert len(world.quarantined()) == 2
    world.prevented = Outcome.PASSED
    world.test(level=Level.QUICK)
    assert settle(world) is True, "a quick one proves nothing, so one of isolation is made"
    assert is_done(world, NEW)
    assert driver_record.read() is None


def test_another_self_test_is_waited_for_and_proves_nothing(world):
    """It may have begun before the driver was loaded."""
    world.joins = "pid 7"
    assert upgrade(world)["state"] == "self-test incomplete: a self-test still runs"
    assert settle(world) is False
    world.others = ""
    world.test()
    assert settle(world) is True
    assert world.steps == ["install", "reload", "start", "follow"]
    assert is_done(world, NEW)


def test_a_clock_that_is_set_back_keeps_no_verdict_from_an_upgrade(world):
    world.dies_in = "follow"
    with pytest.raises(Killed):
        upgrade(world)
    world.set_back = datetime.timedelta(hours=1)
    world.test()
    assert settle(world) is True
    assert world.steps == ["install", "reload", "start"], "no second self-test"
    assert is_done(world, NEW)


@pytest.mark.parametrize("step", ["install", "reload", "start", "follow"])
@pytest.mark.parametrize("reboots", [False, True])
def test_killed_at_any_step_the_next_hook_ends_it(world, step, reboots):
    world.dies_in = step
    with pytest.raises(Killed):
        upgrade(world)
    assert len(world.quarantined()) == 2
    if reboots:
        world.loaded = world.installed.version
    assert settle(world) is True
    assert is_done(world, NEW)
    assert driver_record.read() is None


@pytest.mark.parametrize("step", ["install", "reload", "start", "follow"])
def test_killed_at_any_step_back_the_next_hook_ends_it(world, step):
    world.fails = {NEW.version: BAD}
    world.install_errors = {OLD.version: PackageError("apt is locked", passes=True)}
    with pytest.raises(UpgradeError):
        upgrade(world)
    world.install_errors, world.dies_in = {}, step
    with pytest.raises(Killed):
        settle(world)
    assert settle(world) is True
    assert is_done(world, OLD)


def test_where_tasks_get_no_gpu_any_more_nothing_is_tested(world):
    world.dies_in = "install"
    with pytest.raises(Killed):
        upgrade(world)
    world.kept = None
    assert settle(world) is True
    assert (world.installed, driver_record.read()) == (NEW, None)
    # selftest-on-start=false leaves the rest to the operator.
    (remedy,) = {entry.remedy for entry in quarantine.read()}
    assert remedy.endswith("juju run worker/0 gpu-selftest level=isolation")


def test_without_an_upgrade_there_is_nothing_to_settle_or_say(world):
    assert settle(world) is False
    assert (walk.said(), world.steps) == ("", [])


def test_what_can_not_be_read_is_not_taken_for_no_upgrade(world):
    driver_record.path().mkdir(parents=True)
    with pytest.raises(errors.UnknownError):
        settle(world)
