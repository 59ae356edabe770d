# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a reboot would end: steps that run, not containers that are only kept."""

import contextlib
import math
import os
import pathlib
import shutil
import time

import pytest

from ci.concourse.restart import running_steps as steps


@pytest.fixture
def container(tmp_path):
    """A container of a step that ended long ago, and its machine's root."""
    folder = tmp_path / str(steps.TASKS).lstrip("/") / "4f0c"
    folder.mkdir(parents=True)
    (folder / "init.pid").write_text("100")
    process(tmp_path, 100, "/garden/4f0c")
    age(folder, 3600)
    return folder


def age(container, seconds):
    then = time.time() - seconds
    os.utime(container / "init.pid", (then, then))
    started(container.parents[4], 100, seconds)


def process(root, pid, cgroup):
    (root / f"proc/{pid}").mkdir(parents=True, exist_ok=True)
    (root / f"proc/{pid}/cgroup").write_text(f"5:devices:{cgroup}\n0::/x\n")
    started(root, pid, 1)


def shim(root, seconds):
    """Have containerd have started a shim for the container so many seconds ago."""
    process(root, 90, "/x")
    started(root, 90, seconds)
    argv = ("/opt/concourse/bin/containerd-shim-runc-v2", "-namespace", "c", "-id", "4f0c", "")
    (root / "proc/90/cmdline").write_text("\0".join(argv))


def started(root, pid, seconds, parent=1):
    """Have a process be started so many seconds ago."""
    ticks = (time.clock_gettime(time.CLOCK_BOOTTIME) - seconds) * os.sysconf("SC_CLK_TCK")
    (root / f"proc/{pid}/stat").write_text(f"{pid} (sh) S {parent} {'1 ' * 17}{ticks:.0f} 0")


def test_a_machine_without_containers_runs_none(tmp_path):
    assert steps.running(tmp_path) == ()


def test_a_container_that_is_only_kept_is_no_step(container, tmp_path):
    assert steps.running(tmp_path) == ()
    (container / "task.pid").write_text("200")  # it has ended
    age(container, 3600)
    assert steps.running(tmp_path) == ()


def test_a_step_and_a_session_count(container, tmp_path):
    (container / "7d3f1c5e.pid").write_text("200")
    age(container, 3600)
    process(tmp_path, 200, "/garden/4f0c")
    assert steps.running(tmp_path) == ("4f0c",)


def test_a_number_that_another_process_has_by_now_does_not(container, tmp_path):
    (container / "task.pid").write_text("200")
    age(container, 3600)
    process(tmp_path, 200, "/system.slice/ssh.service")
    assert steps.running(tmp_path) == ()


@pytest.mark.parametrize("has_process", [True, False])
def test_a_container_that_was_just_made_counts(container, tmp_path, has_process):
    age(container, 5)
    if not has_process:
        (container / "init.pid").unlink()
    made = time.time() - 5
    os.utime(container, (made, made))
    assert steps.running(tmp_path) == ("4f0c",)


def test_one_whose_step_has_ended_is_no_new_one(container, tmp_path):
    age(container, 5)
    (container / "task.pid").touch()
    (container / "task.pid").unlink()
    assert steps.running(tmp_path) == ()


def test_a_container_that_is_used_again_and_again_is_at_rest_between(container, tmp_path):
    """As by Concourse's checks, each of which adds and removes a file of its process."""
    (container / "check.pid").write_text("200")
    (container / "check.pid").unlink()
    assert steps.running(tmp_path) == ()


def test_what_can_not_be_read_is_not_taken_for_rest(container, tmp_path):
    (container / "task.pid").write_text("200")
    age(container, 3600)
    (tmp_path / "proc/200/cgroup").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        steps.running(tmp_path)


@pytest.mark.parametrize("closed", ["concourse", "4f0c"])
def test_a_folder_that_can_not_be_read_is_not_taken_for_rest(container, tmp_path, closed):
    folder = container if closed == container.name else container.parent
    shutil.rmtree(folder)
    folder.symlink_to(folder)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        steps.running(tmp_path)


@contextlib.contextmanager
def as_a_user():
    """Without the right of root to read every folder."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.mark.parametrize("closed", ["concourse", "4f0c"])
def test_a_folder_that_may_not_be_read_is_not_taken_for_rest(
    container, tmp_path, monkeypatch, closed
):
    # A user may not pass the folders above this one.
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    here = pathlib.Path()
    with as_a_user():
        assert steps.running(here) == ()
    (container if closed == container.name else container.parent).chmod(0o111)
    with as_a_user(), pytest.raises(PermissionError):
        steps.running(here)


@pytest.mark.parametrize("what", ["folder", "file", "container"])
def test_what_is_gone_meanwhile_runs_none(container, tmp_path, what):
    if what == "folder":
        shutil.rmtree(container.parent)
    elif what == "file":
        shutil.rmtree(container)
        container.write_text("no container")
        old = time.time() - 3600
        os.utime(container, (old, old))
    else:
        shutil.rmtree(container)
        container.symlink_to("gone")
    assert steps.running(tmp_path) == ()


def test_a_container_that_is_made_has_no_process_yet(container, tmp_path):
    (container / "init.pid").unlink()
    (one,) = steps.containers(tmp_path)
    assert (one.name, one.init, one.step, one.is_new) == ("4f0c", 0, 0, True)


def test_a_container_is_new_until_a_process_begins_in_it(container, tmp_path):
    age(container, 5)
    made = (container / "init.pid").stat().st_mtime
    os.utime(container, (made, made))
    (one,) = steps.containers(tmp_path)
    assert one.is_new
    assert 4 < one.age < 60
    # It began and has ended: the folder has changed since.
    os.utime(container, (made + 1, made + 1))
    (one,) = steps.containers(tmp_path)
    assert not one.is_new
    assert one.step == 0


@pytest.mark.parametrize(
    ("name", "step"), [("task", 200), ("resource", 200), ("init", 0), ("7d3f1c5e", 0)]
)
def test_a_step_is_told_from_a_session(container, tmp_path, name, step):
    if name != "init":
        (container / f"{name}.pid").write_text("200")
    process(tmp_path, 200, "/garden/4f0c")
    (one,) = steps.containers(tmp_path)
    assert (one.init, one.step) == (100, step)


def test_a_container_that_containerd_removes_is_none_that_is_made(container, tmp_path):
    removed = container.rename(container.with_name(f".{container.name}"))
    (removed / "init.pid").unlink(missing_ok=True)
    assert steps.containers(tmp_path) == []
    assert steps.running(tmp_path) == ()


@pytest.mark.parametrize("change", [86400, -86400])
@pytest.mark.parametrize("has_process", [True, False])
def test_no_change_of_the_clock_has_an_old_container_begin(
    container, tmp_path, change, has_process
):
    """Set back by a day it counted as one that begins for that long, and a drain waited for it."""
    age(container, 3600)
    made = (container / "init.pid").stat().st_mtime - change
    os.utime(container / "init.pid", (made, made))
    if not has_process:
        (container / "init.pid").unlink()
    os.utime(container, (made, made))
    assert steps.running(tmp_path) == ()


@pytest.mark.parametrize("change", [86400, 0, -86400])
@pytest.mark.parametrize("has_process", [True, False])
def test_a_container_that_begins_does_so_whatever_the_clock_says(
    container, tmp_path, change, has_process
):
    age(container, 5)
    made = (container / "init.pid").stat().st_mtime - change
    os.utime(container / "init.pid", (made, made))
    if not has_process:
        (container / "init.pid").unlink()
        shim(tmp_path, 5)
    os.utime(container, (made, made))
    assert steps.running(tmp_path) == ("4f0c",)
    (one,) = steps.containers(tmp_path)
    assert 4 < one.age < 60


@pytest.mark.parametrize("makes", [True, False])
def test_a_shim_that_was_left_alone_makes_no_container(container, tmp_path, makes):
    """Seen with a containerd that was killed: the shim stayed, and each restart waited for it."""
    (container / "init.pid").unlink()
    shim(tmp_path, 400)
    if makes:  # a task that waits for its GPU
        process(tmp_path, 91, "/x")
        started(tmp_path, 91, 399, parent=90)
        (tmp_path / "proc/91/cmdline").write_text("runc\0create\0")
    (one,) = steps.containers(tmp_path)
    assert one.is_new
    assert (399 < one.age < 460) if makes else one.age == math.inf
    assert steps.running(tmp_path) == ()


def test_a_folder_that_no_shim_came_for_is_made_no_more(container, tmp_path):
    (container / "init.pid").unlink()
    made = time.time() - 15
    os.utime(container, (made, made))
    assert steps.running(tmp_path) == ()


def test_a_step_that_is_in_v2s_group_alone_counts(container, tmp_path):
    """As in a user namespace with cgroup v1: the others of its groups are the worker's."""
    (container / "task.pid").write_text("200")
    age(container, 3600)
    for pid, devices in ((100, "/garden/4f0c"), (200, "/system.slice/concourse-worker.service")):
        process(tmp_path, pid, "/x")
        (tmp_path / f"proc/{pid}/cgroup").write_text(f"5:devices:{devices}\n0::/garden/4f0c\n")
    assert steps.running(tmp_path) == ("4f0c",)
    (one,) = steps.containers(tmp_path)
    assert one.step == 200


def test_a_container_that_goes_meanwhile_is_none(container, tmp_path):
    container.with_name("0000").symlink_to("gone")
    (one,) = steps.containers(tmp_path)
    assert one.name == "4f0c"
