# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Workers that are paused, drained for an upgrade, added and removed, each under builds."""

import contextlib
import time

import pytest

from tests.lab import concourse
from tests.lab.errors import WrongUse
from tests.lab.site import PROBE, READY

# A build that ends when the test says so, from outside.
BUILD = "sleep 31416 || :; echo finished"


def end_build(site, unit="worker/0"):
    site.sh("pkill -xf 'sleep 31416'", unit)


def act(site, name, unit="worker/0", **params):
    action = site.lab.model.run_action(unit, name, params)
    site.lab.settle()
    return action


def states(site):
    return {worker["name"]: worker["state"] for worker in site.fly.workers()}


def until_state(site, state, name="lab-worker-0"):
    deadline = time.monotonic() + 150
    while states(site).get(name) != state:
        assert time.monotonic() < deadline, states(site)
        time.sleep(0.3)


def test_a_pause_lets_the_build_end_and_no_other_begin(site):
    running = site.start_task(BUILD)
    act(site, "pause", reason="new fans")
    kind, message = site.status()
    assert kind == "maintenance"
    assert message == "Paused: new fans (1 step left)"
    until_state(site, "landing")
    site.lab.controller.fire("worker/0", "config-changed")
    assert site.status()[1] == message
    end_build(site)
    output, _ = running.communicate(timeout=90)
    assert running.returncode == 0, output
    assert "finished" in output
    # Nothing but the worker's end wakes the charm.
    site.await_status("Paused: new fans (no build left)")
    until_state(site, "landed")
    assert site.sh("systemctl is-enabled concourse-worker; true").strip() == "disabled"


def test_it_outlives_a_reboot_and_resume_ends_it(site):
    site.machine().reboot()
    site.lab.controller.fire("worker/0", "start")
    assert site.status()[1] == "Paused: new fans (no build left)"
    assert site.sh("systemctl is-active concourse-worker; true").strip() == "inactive"
    # Web tells that it sees a worker that has landed, and has no other event until that resumes.
    site.lab.controller.fire("web/0", "update-status")
    act(site, "resume")
    assert site.status() == READY
    site.worker("lab-worker-0", 60)
    assert site.task(PROBE).returncode == 0
    assert site.sh("systemctl is-enabled concourse-worker").strip() == "enabled"


def test_resume_under_the_build_loses_it_not(site):
    running = site.start_task(BUILD)
    act(site, "pause", reason="dust")
    until_state(site, "landing")
    act(site, "resume")
    until_state(site, "running")
    end_build(site)
    output, _ = running.communicate(timeout=90)
    assert running.returncode == 0, output
    assert site.status() == READY


@pytest.fixture
def another_release(site, tmp_path):
    """The same Concourse in another tarball, as an upgrade brings it."""
    path = tmp_path / "concourse-other.tgz"
    had = site.sh("readlink /opt/concourse/current").strip()
    concourse.another(site.lab, path)
    site.lab.model.attach_resource("worker", "concourse", path)
    yield had
    site.lab.model.attach_resource("worker", "concourse", concourse.choose(site.lab)[0])
    site.lab.settle()


@pytest.fixture(scope="module")
def second(site):
    """A second worker, which comes while a build runs; the last test has it go."""
    running = site.start_task(BUILD)
    (unit,) = site.lab.model.add_units("worker")
    site.lab.settle()
    site.worker(called(unit), 60)
    end_build(site)
    succeeded(running)
    yield unit
    with contextlib.suppress(WrongUse):
        site.lab.model.remove_unit(unit)
        site.lab.settle()


def called(unit):
    return f"lab-{unit.replace('/', '-')}"


def succeeded(running):
    output, _ = running.communicate(timeout=150)
    assert running.returncode == 0, output
    assert "finished" in output


def until_said(site, unit, beginning):
    """What a unit's status says once it begins so, with no event but what machines ask for."""
    site.lab.controller.settle(lambda: site.status(unit)[1].startswith(beginning), 180)
    said = site.status(unit)[1]
    assert said.startswith(beginning)
    return said


def release_of(site, unit):
    return site.sh("readlink /opt/concourse/current", unit).strip()


def test_units_are_upgraded_one_after_another_each_once_its_build_has_ended(
    site, second, another_release
):
    """The fixture has attached it; the builds are there before a hook hears of it."""
    # Web gives a worker no more of these than it has GPUs.
    builds = [site.start_task(BUILD) for _ in range(4)]
    site.lab.settle()
    first = until_said(site, "worker/0", "Draining ")
    assert first.startswith("Draining (2 steps left, 0m of 2h), then Concourse "), first
    assert site.status()[0] == "maintenance"
    kind, waits = site.status(second)
    assert kind == "waiting"
    assert waits.startswith("Queued for Concourse "), waits
    assert states(site) == {called("worker/0"): "landing", called(second): "running"}
    for unit, other in (("worker/0", second), (second, "")):
        until_said(site, unit, "Draining (2 steps left, ")
        assert {release_of(site, one) for one in (unit, other) if one} == {another_release}
        end_build(site, unit)
        until_said(site, unit, READY[1])
        assert release_of(site, unit) != another_release
        site.worker(called(unit), 60)
    for running in builds:
        succeeded(running)
    assert site.task(PROBE).returncode == 0


def test_units_that_go_leave_the_list_of_workers_and_lose_no_build(site, second):
    """One that is paused, and one whose build goes on for some seconds more."""
    (paused,) = site.lab.model.add_units("worker")
    site.lab.settle()
    site.worker(called(paused), 60)
    for unit in (paused, "worker/0"):
        act(site, "pause", unit=unit, reason="it goes")
        until_state(site, "landed", called(unit))
    running = site.start_task("sleep 15; echo finished")
    for unit in (paused, second):
        site.lab.model.remove_unit(unit)
    site.lab.settle()
    succeeded(running)
    # Web takes out a worker that had landed when it next clears up, every 30 s.
    deadline = time.monotonic() + 150
    while [*states(site)] != [called("worker/0")]:
        assert time.monotonic() < deadline, states(site)
        time.sleep(1)
    act(site, "resume")
    site.worker(called("worker/0"), 60)
    # Web publishes the workers' state with its next event.
    for unit in ("web/0", "worker/0"):
        site.lab.controller.fire(unit, "update-status")
    assert site.status() == READY
