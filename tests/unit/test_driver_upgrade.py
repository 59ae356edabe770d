# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The way from one NVIDIA driver to another: what is refused, and what delays it."""

import dataclasses
import errno
import types

import pytest

from actions import driver_upgrade as action
from actions.driver_upgrade import UpgradeError
from gpu_agent import paths as wrapper
from gpu_agent.availability import quarantine
from gpu_agent.model.host import Driver
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import Holder
from host.nvidia_driver_change import Choice
from lifecycle.driver_upgrade import gpu_pool as pool
from lifecycle.driver_upgrade import record as driver_record
from lifecycle.driver_upgrade import steps as walk
from tests.unit import driver_world
from tests.unit.driver_world import NEW, OLD, OTHER, REQUEST, Killed, is_done, settle, upgrade
from tests.unit.situations import GPUS


@pytest.fixture
def world(tmp_path, monkeypatch):
    return driver_world.make(tmp_path, monkeypatch)


def test_a_new_driver_comes_while_no_gpu_is_in_use(world):
    assert upgrade(world) == {
        "from": "580.65.06 of 580-server",
        "to": "580.95.05 of 580-server",
        "state": "self-test passed, the GPUs are available",
    }
    assert is_done(world, NEW)
    assert driver_record.read() is None
    assert world.steps == ["install", "reload", "start", "follow"]
    assert world.outs == [[gpu.uuid for gpu in GPUS]] * 4
    assert world.said == [
        "1 of 6: taking 2 GPUs out of use",
        "2 of 6: waiting for builds, up to 10m",
        "3 of 6: installing NVIDIA driver 580.95.05 of 580-server",
        "5 of 6: self-test of 580.95.05 of 580-server",
        "5 of 6: Checking the machine and its GPUs",
        "6 of 6: the GPUs that passed are available",
    ]


@pytest.mark.parametrize(
    ("wish", "to"),
    [
        ({}, NEW),
        ({"branch": "595-server"}, OTHER),
        ({"option": "595-server"}, OTHER),
        ({"option": "595-server", "branch": "580-server"}, NEW),
    ],
)
def test_the_branch_is_the_wished_one_then_the_options_then_the_present(world, wish, to):
    shown = upgrade(world, **wish)
    assert is_done(world, to)
    told = shown.get("next", "")
    assert (f"juju config worker gpu-driver={to.branch}" in told) == (len(wish) == 2)


REFUSED = {
    "container": (
        {"found": {"container": True}},
        {},
        "in a container and uses the driver of its LXD host",
    ),
    "another's": (
        {"found": {"ours": False}},
        {},
        "did not install NVIDIA driver 580.65.06 and never replaces it",
    ),
    "none": ({}, {"option": "none"}, "juju config worker gpu-driver=auto"),
    "newest": (
        {"offered": {"580-server": OLD}},
        {},
        "580.65.06 of 580-server is the newest driver: nothing was changed",
    ),
    "older": (
        {"installed": NEW, "offered": {"580-server": OLD}},
        {},
        "580.95.05 of 580-server is",
    ),
    "unknown": (
        {},
        {"branch": "600-server"},
        "600-server is none of 580-server, 595-server",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("way", [action.upgrade, action.preview])
def test_refused_in_words_and_nothing_changed(world, case, way):
    about, wish, words = REFUSED[case]
    for name, value in about.items():
        old = getattr(world, name)
        setattr(world, name, dataclasses.replace(old, **value) if name == "found" else value)
    rest = [None, world.said.append] if way is action.upgrade else []
    with pytest.raises(UpgradeError) as refused:
        way(dataclasses.replace(REQUEST, **wish), *rest, world)
    assert words in str(refused.value)
    assert (world.steps, world.quarantined(), driver_record.read()) == ([], {}, None)


def test_no_driver_is_nothing_to_upgrade(world):
    world.found, world.installed, world.loaded = Driver(), Choice("", "", {}), ""
    with pytest.raises(UpgradeError, match="This machine has no NVIDIA driver"):
        upgrade(world)


def test_refused_where_tasks_get_no_gpu(world):
    world.kept = None
    with pytest.raises(UpgradeError, match="juju config worker enable-gpu=true"):
        upgrade(world)


def test_refused_while_a_self_test_runs(world):
    world.others = "pid 7, level burn-in"
    with pytest.raises(UpgradeError, match=r"A self-test runs \(pid 7, level burn-in\)"):
        upgrade(world)
    assert world.quarantined() == {}


def test_refused_while_another_is_half_way(world):
    world.used_by = ("pid 4711 (python3)",)
    upgrade(world)
    with pytest.raises(UpgradeError, match=r"not finished: driver upgrade .*: loading"):
        upgrade(world)


def test_a_dry_run_says_what_would_be_done_and_does_nothing(world):
    world.used_by = ("pid 4711 (python3)",)
    assert action.preview(REQUEST, world) == {
        "from": "580.65.06 of 580-server",
        "to": "580.95.05 of 580-server",
        "packages": "changes: ['nvidia-utils-580-server']",
        "jobs": "none",
        "modules": "in use by pid 4711 (python3): a reboot is needed unless they end",
        "way-back": "the archives have the installed packages",
    }
    assert (world.steps, world.quarantined(), driver_record.read()) == ([], {}, None)


def test_a_dry_run_says_that_there_is_no_way_back(world):
    world.gone = "nvidia-utils-580-server 580.65.06-0"
    shown = action.preview(REQUEST, world)["way-back"]
    assert shown == "none: the archives no longer have nvidia-utils-580-server 580.65.06-0"


@pytest.mark.parametrize(
    ("room", "name"), [(driver_record, "write"), (pool, "take_out"), (pool, "wait")]
)
def test_an_error_before_anything_is_changed_says_so(world, monkeypatch, room, name):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(room, name, fail)
    with pytest.raises(UpgradeError) as failed:
        upgrade(world)
    assert str(failed.value) == (
        "[Errno 28] No space left on device: nothing was changed, and the GPUs are available "
        "after the charm's next event"
    )


@pytest.fixture
def job(world, monkeypatch):
    """A task that has the first GPU; it uses it as often as `looks` says."""
    job = types.SimpleNamespace(looks=10**9)

    def in_use(*_):
        job.looks -= 1
        return job.looks > 0

    monkeypatch.setattr(Host, "in_use", in_use)
    with Store(str(wrapper.STORE)) as table:
        table.holders["abc"] = Holder("", [GPUS[0].uuid], [], exclusive=True, since=0)
    return job


def test_jobs_are_waited_for(world, job):
    job.looks = 6
    upgrade(world)
    assert [line for line in world.said if "waiting for container abc" in line] != []
    assert sum("waiting for container" in line for line in world.said) == 1
    assert Store(str(wrapper.STORE)).read().holders == {}, "what it left ends as for the next task"
    assert is_done(world, NEW)


def test_after_the_wait_the_gpus_are_back_and_the_job_is_named(world, job):
    with pytest.raises(UpgradeError, match="did not end within 0m: container abc") as late:
        upgrade(world, wait=0)
    assert "Nothing was changed" in str(late.value)
    assert "juju run worker/0 gpu-reclaim" in str(late.value)
    assert world.steps == []
    assert is_done(world, OLD)
    assert driver_record.read() is None


def test_leases_that_can_not_be_read_are_not_taken_for_none(world):
    wrapper.STORE.mkdir()
    (wrapper.STORE / "leases.json").write_text("{")
    assert "cannot be read" in action.preview(REQUEST, world)["jobs"]
    with pytest.raises(UpgradeError, match="unknown holders, since the leases cannot be read"):
        upgrade(world, wait=0)
    assert is_done(world, OLD)


def test_what_else_keeps_a_gpu_out_of_use_stays(world):
    quarantine.cordon(GPUS[0].uuid, "swapping the fan")
    quarantine.put(GPUS[1].uuid, "Xid 79", "xid", "burn-in", "reboot")
    before = quarantine.read()
    assert upgrade(world)["state"].startswith("self-test passed")
    assert quarantine.read() == before


def test_a_module_in_use_needs_a_reboot_which_ends_the_upgrade(world):
    world.used_by = ("pid 4711 (python3)",)
    shown = upgrade(world)
    assert shown["state"] == ("reboot needed: driver 580.95.05 is installed, 580.65.06 is loaded")
    assert shown["in-use-by"] == "pid 4711 (python3)"
    assert world.quarantined() == dict.fromkeys((gpu.uuid for gpu in GPUS), pool.CHECK)
    assert settle(world) is False
    assert world.steps == ["install"], "as long as it is in use no service is stopped for nothing"
    assert walk.said().endswith(": loading")

    world.used_by, world.loaded = (), NEW.version
    assert settle(world) is True
    assert is_done(world, NEW)
    assert world.steps == ["install", "start", "follow"]


def test_a_module_that_nobody_has_in_use_any_more_is_loaded_without_a_reboot(world):
    world.holds = True
    assert "reboot needed" in upgrade(world)["state"]
    world.holds = False
    assert settle(world) is True
    assert is_done(world, NEW)


@pytest.mark.usefixtures("job")
def test_killed_while_it_waits_the_next_hook_brings_the_gpus_back(world):
    def say(line):
        if "waiting for container abc" in line:
            raise Killed

    with pytest.raises(Killed):
        action.upgrade(REQUEST, world.drainer, say, world)
    assert len(world.quarantined()) == 2
    assert settle(world) is True
    assert is_done(world, OLD)
    assert driver_record.read() is None
