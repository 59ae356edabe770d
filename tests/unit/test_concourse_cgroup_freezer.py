# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Control groups that stand still, on trees of cgroup v1 and v2; the guard's script is real."""

import errno
import os
import subprocess

import pytest

from ci.concourse.restart import cgroup_freezer as freezer
from machine import process

V1 = """\
9:name=systemd:/system.slice/concourse-worker.service/garden/4f0c
6:freezer:/garden/4f0c
0::/garden/4f0c
"""
V2 = "0::/system.slice/garden/4f0c\n"
PRIVILEGED = "6:cpu,freezer:/4f0c\n"
# In a user namespace with cgroup v1: a step's other groups are the worker's there.
NESTED = """\
9:name=systemd:/system.slice/concourse-worker.service
6:freezer:/
0::/garden/4f0c
"""
MOUNTS = {
    "v1": "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    "v2": "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
}


class Systemd:
    """systemd, as far as a guard goes."""

    def __init__(self, folder):
        self.calls, self.argv, self.list = [], [], folder / "run/frozen"

    def start(self, name, argv, **_):
        self.calls.append("start")
        self.argv = argv

    def stop(self, name):
        self.calls.append("stop")

    def freezer(self, held=19):
        return freezer.Freezer(held, freezer.Guard(self.list, self.start, self.stop))


@pytest.fixture
def guard(tmp_path):
    return Systemd(tmp_path)


def make(root, cgroup, *switches, step=""):
    for pid, told in ((100, cgroup), (200, step or cgroup)):
        (root / f"proc/{pid}").mkdir(parents=True)
        (root / f"proc/{pid}/cgroup").write_text(told)
    is_v1 = any("/unified/" in path or "/freezer/" in path for path in switches)
    (root / "proc/self").mkdir()
    (root / "proc/self/mountinfo").write_text(MOUNTS["v1" if is_v1 else "v2"])
    for point in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
        (root / point).mkdir(parents=True, exist_ok=True)
        (root / point / "cgroup.procs").write_text("")
    for path in switches:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("")


@pytest.mark.parametrize(
    ("cgroup", "switch"),
    [
        (V1, "sys/fs/cgroup/freezer/garden/4f0c/freezer.state"),
        (PRIVILEGED, "sys/fs/cgroup/freezer/4f0c/freezer.state"),
        (V2, "sys/fs/cgroup/system.slice/garden/4f0c/cgroup.freeze"),
    ],
)
def test_the_switch_of_a_container_is_told_by_its_process(tmp_path, cgroup, switch):
    make(tmp_path, cgroup, switch)
    assert freezer.switch(100, 200, "4f0c", tmp_path) == tmp_path / switch


@pytest.mark.parametrize("inner", ["inner", "4f0c", "inner/4f0c/deeper"])
@pytest.mark.parametrize(
    ("cgroup", "switch"),
    [
        ("6:freezer:/garden/4f0c{}\n0::/\n", "sys/fs/cgroup/freezer/garden/4f0c/freezer.state"),
        (
            "0::/system.slice/garden/4f0c{}\n",
            "sys/fs/cgroup/system.slice/garden/4f0c/cgroup.freeze",
        ),
    ],
    ids=["v1", "v2"],
)
def test_a_first_process_that_has_moved_itself_down_is_frozen_with_all_of_its_container(
    tmp_path, cgroup, switch, inner
):
    make(tmp_path, cgroup.format(f"/{inner}"), switch, step=cgroup.format(""))
    assert freezer.switch(100, 200, "4f0c", tmp_path) == tmp_path / switch
    assert freezer.switch(200, 100, "4f0c", tmp_path) == tmp_path / switch


def test_a_step_that_is_in_v2s_group_alone_is_frozen_by_that(tmp_path):
    path = "sys/fs/cgroup/unified/garden/4f0c/cgroup.freeze"
    make(tmp_path, V1, "sys/fs/cgroup/freezer/garden/4f0c/freezer.state", path, step=NESTED)
    assert freezer.switch(100, 200, "4f0c", tmp_path) == tmp_path / path


def test_a_step_that_is_in_no_group_of_its_containers_can_not_be_frozen(tmp_path):
    outside = NESTED.replace("0::/garden/4f0c", "0::/")
    make(tmp_path, V1, "sys/fs/cgroup/freezer/garden/4f0c/freezer.state", step=outside)
    assert freezer.switch(100, 200, "4f0c", tmp_path) is None


@pytest.mark.parametrize(
    "cgroup",
    [
        "0::/system.slice/ssh.service\n",  # its number is another's by now
        "6:freezer:/\n0::/\n",
        "6:devices:/garden/4f0c\n0::/\n",  # no freezer
    ],
)
def test_what_is_not_the_containers_is_never_frozen(tmp_path, cgroup):
    make(tmp_path, cgroup, "sys/fs/cgroup/cgroup.freeze")
    assert freezer.switch(100, 200, "4f0c", tmp_path) is None
    assert freezer.switch(101, 200, "4f0c", tmp_path) is None
    assert freezer.switch(100, 201, "4f0c", tmp_path) is None


def test_what_stands_still_is_written_down_until_the_end(guard, tmp_path):
    path = tmp_path / "freezer.state"
    path.write_text("")
    frozen = guard.freezer()
    frozen.begin()
    assert frozen.freeze(path)
    assert guard.list.read_text() == f"{path}\n"
    assert path.read_text() == "FROZEN"
    frozen.end()
    assert path.read_text() == "THAWED"
    assert guard.calls == ["stop", "start", "stop"]
    assert not guard.list.exists()


def test_it_is_written_down_before_it_stands_still(guard, tmp_path):
    """A switch that refuses the word stands on the list all the same."""
    path = tmp_path / "freezer.state"
    path.mkdir()
    frozen = guard.freezer()
    frozen.begin()
    assert not frozen.freeze(path)
    assert guard.list.read_text() == f"{path}\n"


def test_what_goes_meanwhile_is_left_alone(guard, tmp_path):
    frozen = guard.freezer()
    frozen.begin()
    gone = tmp_path / "gone/cgroup.freeze"
    frozen.freeze(gone)
    frozen.thaw(gone)
    frozen.freeze(gone)
    frozen.end()
    assert not gone.exists()


@pytest.mark.parametrize("number", [errno.ENODEV, errno.EPERM])
def test_what_can_not_be_frozen_stops_nothing(guard, tmp_path, monkeypatch, caplog, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    frozen = guard.freezer()
    frozen.begin()
    monkeypatch.setattr(freezer.os, "open", refuse)
    for _ in range(3):
        assert frozen.freeze(tmp_path / "cgroup.freeze") == (number == errno.ENODEV)
    assert len(caplog.messages) == (number != errno.ENODEV)


def test_without_a_guard_nothing_is_frozen(guard):
    def fail(*_, **__):
        raise process.CommandError(["systemd-run"], 1, "")

    guard.start = fail
    with pytest.raises(process.CommandError):
        guard.freezer().begin()


def test_the_next_one_thaws_what_a_killed_one_has_left(guard, tmp_path):
    path = tmp_path / "cgroup.freeze"
    path.write_text("")
    killed = guard.freezer()
    killed.begin()
    killed.freeze(path)
    guard.freezer().begin()
    assert path.read_text() == "0"
    assert guard.list.read_text() == ""


@pytest.mark.parametrize("held", [0.0, -0.05, -4.1])
def test_the_guard_of_steps_that_have_no_time_left_is_still_there(guard, tmp_path, held):
    """As where web did not attach to them in time, and the worker is restarted after web."""
    guard.freezer(held).begin()
    assert guard.argv[-2] == "5.0"


def test_the_guard_thaws_what_is_frozen_when_its_time_is_over(guard, tmp_path):
    paths = [tmp_path / name / word for name in "ab" for word in freezer._WORDS]
    frozen = guard.freezer()
    frozen.begin()
    for path in (*paths, tmp_path / "gone/freezer.state"):
        if path in paths:
            path.parent.mkdir(exist_ok=True)
            path.write_text("")
        frozen.freeze(path)
    *command, held, listed = guard.argv
    assert held == "19.0"
    subprocess.run([*command, "0", listed], check=True, timeout=30)
    words = {path.name: path.read_text().strip() for path in paths}
    assert words == {"freezer.state": "THAWED", "cgroup.freeze": "0"}
    assert not (tmp_path / "gone").exists()
