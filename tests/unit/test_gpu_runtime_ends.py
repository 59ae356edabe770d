# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How a container ends, and that no error passes for its end, on recorded trees."""

import errno
import os
import re
import shutil
import signal
import subprocess

import pytest

from gpu_runtime import cgroups as groups
from gpu_runtime import lease_scheduler as leases
from gpu_runtime import proc
from gpu_runtime.lease_table import Table
from gpu_runtime.signals import Process
from tests.unit.recorded_trees import DEATHS, SHELL, Tree


@pytest.mark.parametrize("name", ["left-behind", "below", "finished"])
def test_a_container_ends_as_a_whole(tree, name):
    before, its = tree.alive(), tree.its(name)
    holder = tree.holder(name)
    assert not tree.host.is_gone(name, holder)
    assert tree.host.has_leftovers(name, holder) is (name in DEATHS)
    assert tree.host.clear(name, holder)
    assert tree.killed[0] == tree.pid(name), "the kernel ends the others with it"
    assert its <= {*tree.killed}
    assert tree.alive() == before - {*tree.killed}
    assert tree.host.is_gone(name, holder)
    assert not tree.host.has_leftovers(name, holder)


def test_a_call_that_hangs_goes_with_its_container(tree):
    holder = tree.holder("nobody", [(SHELL, tree.started(SHELL)), (SHELL, 17)])
    holder.keeper = (SHELL + 1, 5)
    assert tree.host.clear("nobody", holder)
    assert tree.killed == [SHELL]


def test_a_container_whose_init_is_not_told_is_known_by_the_group_that_it_was_to_have(tree):
    """As where a hook hangs in its create: containerd has no init.pid for it yet."""
    its, before = tree.its("left-behind"), tree.alive()
    holder = tree.holder("left-behind")
    holder.cgroup = tree.cgroup("left-behind")
    tree.path(f"{holder.bundle}/init.pid").unlink()
    assert tree.host.clear("left-behind", holder)
    assert {*tree.killed} == its
    assert tree.alive() == before - its


def test_nothing_is_killed_where_nothing_is(tree):
    assert tree.host.clear("nobody", tree.holder("nobody"))
    assert not tree.killed


def test_a_container_whose_control_group_is_gone_has_nothing_left(tree):
    holder = tree.holder("left-behind")
    holder.cgroup = tree.cgroup("left-behind").replace("left-behind", "gone")
    assert tree.host.clear("gone", tree.holder("gone"))
    holder.bundle = tree.bundle("gone")
    assert tree.host.clear("gone", holder)
    assert not tree.killed


def test_where_the_bundle_is_deleted_the_control_group_is_known_from_the_lease(tree):
    holder = tree.holder("left-behind")
    holder.cgroup = tree.cgroup("left-behind")
    its = tree.its("left-behind")
    shutil.rmtree(tree.path(holder.bundle))
    assert not tree.host.in_use("left-behind", holder)
    assert tree.host.clear("left-behind", holder)
    assert {*tree.killed} == its


def test_what_lives_on_counts_as_stuck_and_is_waited_for_once(tree):
    (child,) = tree.its("left-behind") - {tree.pid("left-behind")}
    tree.undying = {child}
    tree.stat(child, "D", 1)
    holder = tree.holder("left-behind")
    assert not tree.host.clear("left-behind", holder)
    assert 1.4 < tree.patience < 2
    assert tree.host.state("left-behind", holder) == "D"
    holder.stuck, tree.patience = True, 0
    assert not tree.host.clear("left-behind", holder)
    assert tree.patience < 0.1, "nobody waits twice for it"


@pytest.mark.parametrize("process", ["init", "task"])
def test_a_pid_file_that_names_another_process_by_now_names_none(tree, process):
    tree.die(tree.pid("running", "task"))
    tree.write(f"{tree.bundle('running')}/{process}.pid", str(SHELL))
    assert not tree.in_use("running")
    assert tree.host.clear("running", tree.holder("running"))
    assert SHELL not in tree.killed


def test_a_pid_file_that_names_a_process_in_another_container_names_none(tree):
    other = tree.pid("running", "task")
    for process in ("init", "task"):
        tree.write(f"{tree.bundle('finished')}/{process}.pid", str(other))
    assert not tree.in_use("finished", execs=False)
    assert tree.host.clear("finished", tree.holder("finished"))
    assert not tree.killed


@pytest.mark.parametrize("text", ["\n", "-1", "x", "1" * 30, "٣", "12 13"])
def test_a_damaged_pid_file_is_no_absence(tree, text):
    tree.write(f"{tree.bundle('running')}/task.pid", text)
    with pytest.raises(ValueError, match=r"task\.pid"):
        tree.in_use("running")


@pytest.mark.parametrize("number", [errno.ENFILE, errno.EMFILE, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("name", ["running", "hijacked", "left-behind"])
def test_an_error_is_never_taken_for_absence(tree, name, number):
    """Wherever one comes between, it is raised; nothing of a running container is killed."""
    calls = Faults(tree.files)
    calls.count()
    used = tree.in_use(name)
    places = calls.counted
    assert places >= 3
    for place in range(places):
        calls.fail(place, number)
        with pytest.raises(OSError, match=r"\[Errno") as caught:
            tree.in_use(name)
        assert caught.value.errno == number
    calls.count()
    assert tree.in_use(name) is used
    holder = tree.holder(name)
    holder.cgroup = tree.cgroup(name)
    for place in range(places):
        calls.fail(place, number)
        with pytest.raises(OSError, match=r"\[Errno"):
            assert leases.release(table_of(name, holder), name, tree.host)
    assert not tree.killed or not used


class Faults:
    """The calls by which a tree asks the kernel: counted, or one of them fails."""

    def __init__(self, files):
        self.counted, self.place, self.number = 0, -1, 0
        for name in ("read", "lines", "names", "folders", "exists"):
            setattr(files, name, self.wrapped(getattr(proc, name)))

    def wrapped(self, call):
        def one(path):
            self.counted += 1
            if self.counted - 1 == self.place:
                raise OSError(self.number, os.strerror(self.number), path)
            return call(path)

        return one

    def count(self):
        self.counted, self.place = 0, -1

    def fail(self, place, number):
        self.counted, self.place, self.number = 0, place, number


@pytest.mark.parametrize("number", [errno.ENFILE, errno.EMFILE, errno.EACCES, errno.EIO])
def test_such_an_error_does_not_say_that_a_file_is_gone(number):
    assert not proc.is_gone(OSError(number, os.strerror(number)))


def test_what_is_not_there_is_gone_and_what_can_not_be_read_is_an_error(tmp_path):
    empty = {"read": "", "lines": [], "names": [], "folders": [], "link": "", "exists": False}
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for name, value in empty.items():
        assert getattr(proc, name)(str(tmp_path / "none")) == value
        with pytest.raises(OSError, match="symbolic links"):
            getattr(proc, name)(str(loop / "x"))


def table_of(name, holder):
    found = Table({})
    found.holders[name] = holder
    return found


def test_a_container_of_containers_sees_its_part_of_the_tree(tmp_path):
    """As in LXD: mounted is what lies below the machine's own group."""
    tree = Tree(tmp_path, "v2")
    text = tree.read("/proc/self/mountinfo")
    seen = re.sub(r" / /sys/fs/cgroup ", " /system.slice /sys/fs/cgroup ", text)
    assert seen != text
    tree.write("/proc/self/mountinfo", seen)
    shutil.copytree(
        tree.path("/sys/fs/cgroup/system.slice"),
        tree.path("/sys/fs/cgroup"),
        dirs_exist_ok=True,
    )
    shutil.rmtree(tree.path("/sys/fs/cgroup/system.slice"))
    cgroup = tree.cgroup("running")
    folder = groups.folder(str(tree.root), cgroup)
    assert folder == str(tree.path("/sys/fs/cgroup/garden/running"))


def test_a_mount_of_another_group_shows_nothing_of_a_container(tree):
    """It stood first in mountinfo, and a container that lived counted as gone."""
    mountinfo = tree.read("/proc/self/mountinfo")
    kind = "cgroup cgroup rw,devices" if tree.version == "v1" else "cgroup2 cgroup2 rw"
    elsewhere = f"9 1 0:28 /user.slice /mnt/elsewhere rw - {kind}\n"
    tree.write("/mnt/elsewhere/cgroup.procs", "")
    tree.write("/proc/self/mountinfo", elsewhere + mountinfo)
    its = tree.its("left-behind")
    assert tree.host.clear("left-behind", tree.holder("left-behind"))
    assert its <= {*tree.killed}


def test_a_group_that_no_mount_shows_is_not_gone(tree):
    kind = "cgroup cgroup rw,devices" if tree.version == "v1" else "cgroup2 cgroup2 rw"
    tree.write("/mnt/elsewhere/cgroup.procs", "")
    tree.write("/proc/self/mountinfo", f"9 1 0:28 /user.slice /mnt/elsewhere rw - {kind}\n")
    with pytest.raises(OSError, match=r"no mount shows the control group /.*left-behind"):
        tree.host.clear("left-behind", tree.holder("left-behind"))


def test_a_mount_that_another_one_hides_shows_nothing(tree):
    mountinfo = tree.read("/proc/self/mountinfo")
    point = "/sys/fs/cgroup/devices" if tree.version == "v1" else "/sys/fs/cgroup"
    hidden = mountinfo.replace(f" {point} ", " /mnt/hidden ")
    assert hidden != mountinfo
    tree.write("/proc/self/mountinfo", hidden + mountinfo)
    its = tree.its("left-behind")
    assert tree.host.clear("left-behind", tree.holder("left-behind"))
    assert its <= {*tree.killed}


def test_a_killed_process_is_that_very_process():
    with subprocess.Popen(["sleep", "1000"]) as process:
        held = Process(process.pid)
        held.kill()
        held.close()
        assert process.wait(10) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        Process(process.pid)
