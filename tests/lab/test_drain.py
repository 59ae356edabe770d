# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Workers that are paused, drained for an upgrade, added and removed, each under builds."""

import contextlib
import json
import os
import time

import pytest

from machine import polling
from tests.lab import concourse, outfit
from tests.lab.errors import WrongUse
from tests.lab.site import LOOK_SECONDS, PROBE
from tests.lab.test_lifecycle import traces_at_teardown

pytestmark = pytest.mark.usefixtures("untested")

# `make soak` takes away a paused unit, too.
SOAK = "GPUCI_SOAK" in os.environ
# What a unit says that no self-test is to come for, whether it was tested or not.
BEGIN = "Worker ready (GPU: 2x NVIDIA"
KEYS = "cat /etc/concourse/keys/authorized_worker_keys"

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


def ready(site, unit="worker/0"):
    kind, message = site.status(unit)
    return kind == "active" and message.startswith(BEGIN)


def until_state(site, state, name="lab-worker-0"):
    deadline = time.monotonic() + 150
    while (seen := states(site)).get(name) != state:
        assert time.monotonic() < deadline, seen
        time.sleep(LOOK_SECONDS)


def test_a_pause_lets_the_build_end_and_no_other_begin_until_it_is_resumed(site):
    """A resume under the build is in test_nested.py."""
    running = site.start_task(BUILD)
    act(site, "pause", reason="new fans")
    kind, message = site.status()
    assert kind == "maintenance"
    assert message == "Paused: new fans (1 step left)"
    until_state(site, "landing")
    end_build(site)
    succeeded(running)
    # Nothing but the worker's end wakes the charm.
    site.await_status("Paused: new fans (no build left)")
    until_state(site, "landed")
    # So it outlives a reboot, after which Juju fires start.
    assert site.sh("systemctl is-enabled concourse-worker; true").strip() == "disabled"
    site.lab.controller.fire("worker/0", "start")
    assert site.status()[1] == "Paused: new fans (no build left)"
    # systemd tries to start a worker that has ended once more, and finds that it is not to run.
    command = "systemctl is-active concourse-worker; true"
    assert polling.until(lambda: site.sh(command).strip() == "inactive", 60)
    # Web tells that it sees a worker that has landed, and has no other event until that resumes.
    site.lab.controller.fire("web/0", "update-status")
    act(site, "resume")
    assert ready(site)
    site.worker("lab-worker-0", 60)
    assert site.task(PROBE).returncode == 0
    assert site.sh("systemctl is-enabled concourse-worker").strip() == "enabled"


@pytest.fixture
def another_release(site, tmp_path):
    """The same Concourse in another tarball, as an upgrade brings it; the workers keep it."""
    path = tmp_path / "concourse-other.tgz"
    had = release_of(site, "worker/0")
    concourse.another(site.lab, path)
    site.lab.model.attach_resource("worker", "concourse", path)
    return had


@pytest.fixture(scope="module")
def second(site):
    """A second worker, which comes while a build runs; the last test has it go."""
    running = site.start_task(BUILD)
    (unit,) = site.lab.model.add_units("worker")
    site.lab.settle()
    assert ready(site, unit)
    site.worker(called(unit), 60)
    assert len(site.sh(KEYS, "web/0").splitlines()) == 2
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
        until_said(site, unit, BEGIN)
        assert release_of(site, unit) != another_release
        site.worker(called(unit), 60)
    for running in builds:
        succeeded(running)
    assert site.task(PROBE).returncode == 0


def test_both_say_that_they_share_a_card(site, second):
    """Card 1 of the one is card 0 of the other, as where LXD passes it to both."""
    card = json.loads(outfit.fakegpu(site.machine(), "status").stdout)["gpus"][0]["uuid"]
    outfit.fakegpu(site.machine(second), "set", "1", f"uuid={card}")
    site.lab.controller.fire(second, "update-status")
    assert "; GPU 1 also given to tasks by worker/0: " in site.status(second)[1]
    assert f"; GPU 0 also given to tasks by {second}: " in site.status()[1]


def test_a_unit_that_goes_leaves_no_trace_and_loses_no_build(site, second, monkeypatch):
    """In `make soak` also one that is paused, beside one whose build goes on for some seconds."""
    going = [second]
    if SOAK:
        going += site.lab.model.add_units("worker")
        site.lab.settle()
        site.worker(called(going[1]), 60)
    for unit in (*going[1:], "worker/0"):
        act(site, "pause", unit=unit, reason="it goes")
        until_state(site, "landed", called(unit))
    running = site.start_task("sleep 15; echo finished")
    there = site.traces(second)
    assert all(there[kind] for kind in ("processes", "cgroups", "units", "files"))
    left = traces_at_teardown(site, monkeypatch)
    for unit in going:
        site.lab.model.remove_unit(unit)
    site.lab.settle()
    succeeded(running)
    assert left == {unit: {} for unit in going}
    # Web takes out a worker that had landed when it next clears up, every 30 s.
    deadline = time.monotonic() + 150
    while [*(seen := states(site))] != [called("worker/0")]:
        assert time.monotonic() < deadline, seen
        time.sleep(LOOK_SECONDS)
    assert len(site.sh(KEYS, "web/0").splitlines()) == 1
    act(site, "resume")
    site.worker(called("worker/0"), 60)
    # Web publishes the workers' state with its next event.
    for unit in ("web/0", "worker/0"):
        site.lab.controller.fire(unit, "update-status")
    assert ready(site)
