# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A driver's upgrade drains the worker first: the action ends, later hooks go on with it."""

import pytest

from actions import driver_upgrade as action
from actions.driver_upgrade import UpgradeError
from lifecycle.driver_upgrade import record as driver_record
from lifecycle.driver_upgrade.record import Step
from tests.unit import driver_world
from tests.unit.driver_world import NEW, OLD, is_done, settle, upgrade

HOURS = 7200


@pytest.fixture
def world(tmp_path, monkeypatch):
    return driver_world.make(tmp_path, monkeypatch)


@pytest.fixture
def worker(world):
    """A worker that runs as process 4711, with a step of a build."""
    rooms = world.rooms
    rooms.worker_name, rooms.pid, rooms.steps = "ci-worker-0", 4711, ("4f0c",)
    return rooms


@pytest.mark.usefixtures("worker")
def test_the_action_ends_while_builds_run_and_says_how_it_goes_on(world):
    shown = upgrade(world, wait=0, timeout=HOURS)
    assert shown["state"] == "waiting for builds that use this worker"
    assert shown["next"].startswith(
        "the upgrade continues when no build is left, or after drain-timeout (2h)"
    )
    assert world.steps == []
    assert driver_record.read().step is Step.WAIT
    assert len(world.quarantined()) == 2
    assert settle(world) is False, "the next hook finds builds still"
    assert any(line.startswith("Draining (1 step left, 0m of 2h)") for line in world.said)
    with pytest.raises(UpgradeError, match="It continues at the charm's next event"):
        action.preview(driver_world.REQUEST, world)


def test_a_hook_goes_on_when_the_worker_has_landed(world, worker):
    upgrade(world, wait=0, timeout=HOURS)
    worker.pid, worker.steps = 0, ()
    assert settle(world) is True
    assert is_done(world, NEW)
    assert driver_record.read() is None
    assert not world.drainer.keeps_down()


def test_it_goes_on_without_the_builds_after_the_time_out(world, worker):
    upgrade(world, wait=0, timeout=HOURS)
    worker.now += HOURS
    assert settle(world) is True
    assert is_done(world, NEW)
    assert any(
        "goes on after 2h and interrupts these builds: step 4f0c" in line for line in world.said
    )
    assert "worker.halt" in worker.calls


def test_resume_gives_it_up(world, worker):
    upgrade(world, wait=0, timeout=HOURS)
    assert "cancelled" in world.drainer.resume("worker/0")["state"]
    assert "worker.take_up" in worker.calls
    assert settle(world) is True
    assert is_done(world, OLD)
    assert driver_record.read() is None


def test_a_reboot_meanwhile_does_not_end_it(world, worker):
    upgrade(world, wait=0, timeout=HOURS)
    worker.pid, worker.steps, worker.boot = 0, (), "second boot"
    assert settle(world) is True
    assert is_done(world, NEW)


def test_an_idle_worker_that_no_web_sees_needs_no_drain(world, worker):
    worker.steps, worker.connected = (), False
    assert upgrade(world, wait=0, timeout=HOURS)["state"].startswith("self-test passed")
    assert "worker.land" not in worker.calls
