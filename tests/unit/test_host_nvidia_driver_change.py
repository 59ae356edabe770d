# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Drivers as packages: which is newer, what is lost, what goes; and who has the modules in use."""

import os
import stat

import pytest

from gpu_agent import paths
from gpu_agent.gpu.vendors.nvidia import driver_packages
from host import nvidia_driver_change as driver_change
from host.nvidia_driver_change import Choice
from lifecycle.driver_upgrade import record as driver_record
from lifecycle.driver_upgrade.record import Record, Step
from machine import apt

OLD = Choice("580-server", "580.9.1", {"nvidia-utils-580-server": "580.9.1-0ubuntu1"})
NEW = Choice("580-server", "580.10.1", {"nvidia-utils-580-server": "580.10.1-0ubuntu1"})
OTHER = Choice("595-server", "595.71.05", {"nvidia-utils-595-server": "595.71.05-0ubuntu1"})


@pytest.mark.parametrize(
    ("one", "other", "newer"),
    [(NEW, OLD, True), (OLD, NEW, False), (OLD, OLD, False), (OTHER, NEW, True)],
)
def test_versions_are_compared_by_their_numbers(one, other, newer):
    assert driver_change.is_newer(one, other) is newer


def test_a_version_that_the_archives_have_no_more_is_named():
    def available(name):
        return {name: ("580.10.1-0ubuntu1",)}

    assert driver_change.lost(NEW, available) == ""
    assert driver_change.lost(OLD, available) == "nvidia-utils-580-server 580.9.1-0ubuntu1"


def test_a_preview_has_what_changes_comes_and_goes():
    asked = []

    def simulate(*wanted):
        asked.append(wanted)
        return apt.Simulated(("b", "a"), {"c": "1"}, frozenset(), {})

    assert driver_change.preview(NEW, simulate) == "changes: c; comes: a, b"
    assert asked == [("nvidia-utils-580-server=580.10.1-0ubuntu1",)]


class Packages:
    """What the machine's packages are asked for; they have all that was installed."""

    def __init__(self):
        self.calls, self.came = [], {}

    def ensure(self, owner, versions, _):
        assert owner == driver_packages.OWNER
        self.calls.append(("ensure", *versions))
        self.came.update(versions)
        return True

    def owned(self, _):
        return {**self.came}

    def remove_installed(self, *names):
        self.calls.append(("remove", *names))
        return True


@pytest.fixture
def room():
    """The packages of a machine with the old driver."""
    room = Packages()
    driver_change.install(OLD, NEW, print, room)
    room.calls.clear()
    return room


def test_a_newer_version_takes_the_place_of_the_older_one(room):
    assert driver_change.install(NEW, OLD, print, room) is True
    assert room.calls == [("ensure", *NEW.packages)]


def test_what_another_branch_has_left_goes_and_what_stays_is_held_again(room):
    assert driver_change.install(OTHER, OLD, print, room) is True
    ensure = ("ensure", *OTHER.packages)
    assert room.calls == [ensure, ("remove", *OLD.packages), ensure]


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")
def test_processes_with_a_node_open_are_named_but_not_those_that_a_reload_stops(tmp_path):
    (tmp_path / "dev").mkdir()
    # Of numbers that no driver has.
    for name, minor in (("nvidia0", 0), ("nvidiactl", 255), ("null", 3)):
        os.mknod(tmp_path / "dev" / name, 0o600 | stat.S_IFCHR, os.makedev(240, minor))
    for pid, name, node in (
        (7, "python3", "nvidia0"),
        (8, "nvidia-persiste", "nvidiactl"),
        (9, "bash", "null"),
        (10, "a\nb", "nvidiactl"),
    ):
        folder = tmp_path / f"proc/{pid}/fd"
        folder.mkdir(parents=True)
        (folder / "3").symlink_to(tmp_path / "dev" / node)
        (tmp_path / f"proc/{pid}/task/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/maps").write_text("")
        (tmp_path / f"proc/{pid}/comm").write_text(f"{name}\n")
    assert driver_change.users(tmp_path) == ("pid 7 (python3)", "pid 10 (a?b)")


@pytest.mark.parametrize("step", Step)
def test_a_record_is_read_as_it_was_written(monkeypatch, tmp_path, step):
    monkeypatch.setattr(paths, "STATE", tmp_path / "state")
    assert driver_record.read() is None
    record = Record(
        OLD, NEW, step, back=True, failed=frozenset({"GPU-1", "GPU-0"}), why="x", seen="1"
    )
    driver_record.write(record)
    assert driver_record.read() == record
    assert (record.target, record.other) == (OLD, NEW)
    assert driver_record.remove() is True
    assert (driver_record.remove(), driver_record.read()) == (False, None)
