# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What runs in a container on cgroup v1 in a user namespace, as in LXD's unprivileged containers.

There a process that runc executes into a container comes into the container's group in v2's
hierarchy alone, or without that hierarchy into none; its other groups are the worker's.
"""

import errno
import shutil

import pytest

from gpu_runtime import lease_scheduler as leases
from gpu_runtime import proc
from gpu_runtime.lease_table import Table
from tests.unit.recorded_trees import SHELL, Tree

OWN = "pid:[4026531836]"
ITS = "pid:[4026532300]"
WORKERS = """\
5:devices:/system.slice/concourse-worker.service
1:name=systemd:/system.slice/concourse-worker.service
0::{}
"""


class Nested(Tree):
    """The recorded tree of cgroup v1 with the step of `running` where it is in such a machine."""

    def __init__(self, folder, *, unified):
        super().__init__(folder, "v1")
        self.init, self.step = self.pid("running"), self.pid("running", "task")
        self.unified = unified
        namespace(self, "self", OWN)
        namespace(self, SHELL, OWN)
        namespace(self, self.init, ITS, 1)
        self.put(self.step)
        other = self.pid("finished")
        namespace(self, other, "pid:[4026532400]", 1)

    def put(self, pid):
        """Have a process where a step is."""
        self.take_out(pid)
        self.write(
            f"/proc/{pid}/cgroup",
            WORKERS.format("/garden/running" if self.unified else "/"),
        )
        if self.unified:
            with self.path("/sys/fs/cgroup/unified/garden/running/cgroup.procs").open("a") as file:
                file.write(f"{pid}\n")
        namespace(self, pid, ITS, 7)

    def take_out(self, pid):
        for file in self.root.rglob("cgroup.procs"):
            left = [line for line in file.read_text().split() if int(line) != pid]
            file.write_text("".join(f"{line}\n" for line in left))


def namespace(tree, pid, link, number=None):
    path = tree.path(f"/proc/{pid}/ns/pid")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(link)
    numbers = f"{pid}\t{number}" if number else f"{pid}"
    tree.write(f"/proc/{pid}/status", f"Name:\tsh\nTgid:\t{pid}\nNSpid:\t{numbers}\nThreads:\t1\n")


@pytest.fixture(params=[True, False], ids=["in-v2-alone", "in-none"])
def nested(request, tmp_path):
    return Nested(tmp_path, unified=request.param)


def test_a_step_that_is_in_few_of_its_containers_groups_is_use(nested):
    holder = nested.holder("running")
    assert nested.host.in_use("running", holder)
    assert nested.host.processes("running", holder) == ["task"]
    assert nested.host.steps("running", nested.bundle("running")) == [nested.step]
    assert nested.host.is_in(nested.step, "running", nested.bundle("running"))
    assert nested.host.has_leftovers("running", holder)
    assert not nested.host.is_in(SHELL, "running", nested.bundle("running"))
    assert not leases.release(table_of("running", holder), "running", nested.host)
    assert not nested.killed


def test_it_ends_with_its_container(nested):
    """The kernel, which does so for the PID namespace, does nothing in this tree."""
    holder = nested.holder("running")
    assert nested.host.clear("running", holder)
    assert {*nested.killed} >= {nested.init} | ({nested.step} if nested.unified else set())
    assert nested.host.is_gone("running", holder)


def test_what_a_step_left_there_goes_too(nested):
    nested.path(f"{nested.bundle('running')}/task.pid").unlink()
    holder = nested.holder("running")
    assert not nested.host.in_use("running", holder)
    assert nested.host.has_leftovers("running", holder)
    assert not nested.host.is_gone("running", holder)
    assert leases.release(table_of("running", holder), "running", nested.host)
    assert nested.host.is_gone("running", holder)


def test_while_the_first_process_ends_the_others_count(nested):
    """It waits for them in the kernel: no control group lists it any more."""
    nested.take_out(nested.init)
    nested.undying = {nested.init}
    assert nested.host.clear("running", nested.holder("running"))
    assert nested.step in nested.killed


def test_a_job_without_a_use_is_ended_there_and_its_container_left(nested):
    nested.host.end_steps("running", nested.bundle("running"))
    assert nested.killed == [nested.step]


def test_without_its_bundle_the_noted_groups_tell(nested):
    holder = nested.holder("running")
    nested.host.note_groups("running", holder)
    assert holder.unified == "/garden/running"
    shutil.rmtree(nested.path(holder.bundle))
    assert nested.host.clear("running", holder)
    assert nested.init in nested.killed
    assert (nested.step in nested.killed) is nested.unified


@pytest.mark.parametrize("shared", [OWN, "pid:[4026532999]"])
def test_a_namespace_that_others_have_too_tells_nothing(nested, shared):
    """As with --pid=host, or --pid=container:ID, whose first process is another container's."""
    nested.take_out(nested.step)
    nested.write(f"/proc/{nested.step}/cgroup", WORKERS.format("/"))
    number = None if shared == OWN else 2
    namespace(nested, nested.init, shared, number)
    namespace(nested, nested.step, shared, number)
    assert not nested.host.is_in(nested.step, "running", nested.bundle("running"))
    assert nested.host.clear("running", nested.holder("running"))
    assert nested.step not in nested.killed


def test_who_has_the_number_of_the_first_process_by_now_tells_nothing(nested):
    nested.write(f"{nested.bundle('running')}/init.pid", str(nested.pid("finished")))
    assert not nested.host.is_in(nested.step, "running", nested.bundle("running"))
    assert not nested.host.in_use("running", nested.holder("running"))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE])
def test_a_namespace_that_can_not_be_told_is_no_absence(nested, number):
    def refuse(path):
        raise OSError(number, "no", path)

    nested.write(f"/proc/{nested.step}/cgroup", WORKERS.format("/"))
    nested.files.link = refuse
    with pytest.raises(OSError, match="no"):
        nested.in_use("running")
    assert not nested.killed


def test_a_process_of_the_machine_around_hides_its_namespace_and_is_in_none(nested):
    """A root of LXD's host that has entered the machine: its namespace can't be read there."""

    def refuse(path):
        if f"/{SHELL}/" in path:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return proc.link(path)

    nested.files.link = refuse
    nested.write(f"/proc/{SHELL}/stat", nested.read(f"/proc/{nested.step}/stat"))
    assert nested.host.clear("running", nested.holder("running"))
    assert SHELL not in nested.killed


def test_a_living_thread_tells_the_namespace_where_the_first_has_ended(nested):
    nested.take_out(nested.step)
    nested.write(f"/proc/{nested.step}/cgroup", WORKERS.format("/"))

    def refuse(path):
        if path.endswith(f"/proc/{nested.step}/ns/pid"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return proc.link(path)

    nested.write(f"/proc/{nested.step}/task/1/cgroup", WORKERS.format("/"))
    nested.path(f"/proc/{nested.step}/task/1/ns").mkdir()
    nested.path(f"/proc/{nested.step}/task/1/ns/pid").symlink_to(ITS)
    nested.files.link = refuse
    assert nested.in_use("running")
    nested.path(f"/proc/{nested.step}/task/1/ns/pid").unlink()
    with pytest.raises(PermissionError):
        nested.in_use("running")


@pytest.mark.parametrize("dead", [True, False], ids=["dead", "deeper"])
def test_a_namespace_that_is_not_told_of_another_containers_process_holds_up_nothing(nested, dead):
    other = nested.pid("finished")

    def refuse(path):
        if f"/{other}/" in path:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return proc.link(path)

    fields = nested.read(f"/proc/{nested.step}/stat").rpartition(")")[2].split()
    fields[0] = "Z" if dead else "S"
    nested.write(f"/proc/{other}/stat", f"{other} (sh) {' '.join(fields)}")
    numbers = f"{other}\t7" if dead else f"{other}\t7\t1"
    nested.write(f"/proc/{other}/status", f"Name:\tsh\nTgid:\t{other}\nNSpid:\t{numbers}\n")
    nested.files.link = refuse
    assert nested.host.has_leftovers("running", nested.holder("running"))


@pytest.mark.parametrize("place", ["below", "itself"])
def test_a_threaded_group_tells_its_processes_by_their_threads(tmp_path, place):
    """cgroup.procs can't be read there (EOPNOTSUPP), as in the kernel's docs of cgroup v2."""
    tree = Tree(tmp_path, "v2")
    (child,) = tree.its("left-behind") - {tree.pid("left-behind")}
    folder = tree.host_folder("left-behind") + ("/inner" if place == "below" else "")
    living = {child} if place == "below" else tree.its("left-behind")
    for pid in living:
        tree.write(f"/proc/{pid}/status", f"Name:\tsh\nTgid:\t{pid}\nNSpid:\t{pid}\n")
    tree.write(f"{folder}/cgroup.threads", "".join(f"{pid}\n" for pid in living))

    def read(path):
        if path == f"{tree.root}{folder}/cgroup.procs":
            raise OSError(errno.EOPNOTSUPP, "Operation not supported", path)
        if path == f"{tree.root}{folder}/cgroup.threads":
            return "".join(f"{pid}\n" for pid in living if pid not in tree.killed)
        return proc.read(path)

    tree.files.read = read
    holder = tree.holder("left-behind")
    assert tree.host.has_leftovers("left-behind", holder)
    assert tree.host.clear("left-behind", holder)
    assert child in tree.killed


def table_of(name, holder):
    found = Table({})
    found.holders[name] = holder
    return found
