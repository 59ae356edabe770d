# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A worker that is paused, drained for an upgrade, and removed, each under a build."""

import tarfile
import time

import pytest

from tests.lab import concourse
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
    tarball, _ = concourse.choose(site.lab)
    with tarfile.open(tarball) as old, tarfile.open(path, "w:gz", compresslevel=1) as new:
        for member in old:
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
        member = tarfile.TarInfo(f"{old.getnames()[0].split('/')[0]}/another")
        new.addfile(member)
    site.lab.model.attach_resource("worker", "concourse", path)
    yield had
    site.lab.model.attach_resource("worker", "concourse", tarball)
    site.lab.settle()


def test_an_upgrade_waits_for_the_build(site, another_release):
    """The fixture has attached it; the build is there before a hook hears of it."""
    running = site.start_task(BUILD)
    site.lab.settle()
    kind, message = site.status()
    assert kind == "maintenance"
    assert message.startswith("Draining (1 step left, 0m of 2h), then Concourse "), message
    assert site.sh("readlink /opt/concourse/current").strip() == another_release
    end_build(site)
    output, _ = running.communicate(timeout=90)
    assert running.returncode == 0, output
    site.await_status(READY[1])
    assert site.sh("readlink /opt/concourse/current").strip() != another_release
    site.worker("lab-worker-0", 60)
    assert site.task(PROBE).returncode == 0


def test_a_unit_that_goes_under_a_build_leaves_the_list_of_workers(site):
    units = site.lab.model.add_units("worker", 2)
    site.lab.settle()
    names = [f"lab-{unit.replace('/', '-')}" for unit in units]
    for name in names:
        site.worker(name, 60)
    act(site, "pause", unit=units[0], reason="it goes")
    until_state(site, "landed", names[0])
    for unit in units:
        site.lab.model.remove_unit(unit)
    site.lab.settle()
    # Web takes out a worker that had landed when it next clears up, every 30 s.
    deadline = time.monotonic() + 150
    while [*states(site)] != ["lab-worker-0"]:
        assert time.monotonic() < deadline, states(site)
        time.sleep(1)
