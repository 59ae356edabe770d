# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What counts as use and what is killed, on recorded trees of cgroup v1 and v2."""

import ast
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest

from gpuci import broker, leases, store, usage
from gpuci.leases import Holder
from gpuci.signals import Process

RECORDED = pathlib.Path(__file__).parent / "recorded"
BUNDLES = "/run/containerd/io.containerd.runtime.v2.task/concourse"
SHELL = 4711  # a process that is in no container
DEATHS = ("left-behind", "below")


class Tree:
    """A copy of a recorded tree: what is killed there is gone from it."""

    def __init__(self, folder, version):
        self.root = folder / version
        shutil.copytree(RECORDED / f"cgroups-{version}", self.root)
        self.host = usage.Host(str(self.root))
        self.killed = []
        self.patience = 0
        self.write(f"/proc/{SHELL}/stat", f"{SHELL} (sh) S {'1 ' * 18}5 0")
        self.write(f"/proc/{SHELL}/cgroup", "5:devices:/user.slice\n0::/user.slice\n")

    def path(self, path):
        return self.root / path[1:]

    def read(self, path):
        return self.path(path).read_text()

    def write(self, path, text):
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path(path).write_text(text)

    def bundle(self, name):
        return f"{BUNDLES}/{name}"

    def pid(self, name, process="init"):
        return int(self.read(f"{self.bundle(name)}/{process}.pid"))

    def holder(self, name, calls=(), *, execs=True):
        holder = Holder(self.bundle(name), ["GPU-0"], [*calls], alone=True, since=0)
        holder.execs = execs
        return holder

    def in_use(self, name, calls=(), *, execs=True):
        return self.host.in_use(name, self.holder(name, calls, execs=execs))

    def started(self, pid):
        return int(self.read(f"/proc/{pid}/stat").rpartition(")")[2].split()[19])

    def stat(self, pid, state, threads):
        name, _, rest = self.read(f"/proc/{pid}/stat").rpartition(")")
        fields = rest.split()
        fields[0], fields[17] = state, str(threads)
        self.write(f"/proc/{pid}/stat", f"{name}) {' '.join(fields)}\n")

    def die(self, pid):
        for file in self.root.rglob("cgroup.procs"):
            left = [line for line in file.read_text().split() if int(line) != pid]
            file.write_text("".join(f"{line}\n" for line in left))
        shutil.rmtree(self.path(f"/proc/{pid}"), ignore_errors=True)

    def alive(self):
        return {int(path.name) for path in self.path("/proc").glob("[0-9]*")}


@pytest.fixture(params=["v1", "v2"])
def tree(tmp_path, request, monkeypatch):
    tree = Tree(tmp_path, request.param)

    class Killable:
        def __init__(self, pid):
            if pid not in tree.alive():
                raise ProcessLookupError
            self.pid = pid

        def kill(self):
            tree.killed.append(self.pid)
            tree.die(self.pid)

        def close(self):
            pass

    uptime = float(tree.read("/proc/uptime").split()[0])
    monkeypatch.setattr(usage, "Process", Killable)
    monkeypatch.setattr(usage.Host, "now", lambda _: uptime + tree.patience)
    return tree


@pytest.mark.parametrize(
    ("name", "used", "processes"),
    [
        ("running", True, ["task"]),
        ("finished", False, []),
        ("left-behind", False, []),
        ("below", False, []),
        ("hijacked", True, ["7d3f1c5e-0000-4000-8000-000000000001"]),
        ("fresh", False, []),
        ("nobody", False, []),
    ],
)
def test_a_process_of_its_own_is_use(tree, name, used, processes):
    assert tree.in_use(name) is used
    assert tree.host.processes(name, tree.holder(name)) == processes


def test_a_minute_after_its_start_a_container_without_a_process_is_over(tree):
    assert tree.in_use("fresh", execs=False)
    age = tree.host.now() - tree.started(tree.pid("fresh")) / os.sysconf("SC_CLK_TCK")
    tree.patience = 59.9 - age
    assert tree.in_use("fresh", execs=False)
    tree.patience = 60.1 - age
    assert not tree.in_use("fresh", execs=False)


def test_a_call_that_runs_is_use(tree):
    assert tree.in_use("finished", [(SHELL, 5)])
    assert not tree.in_use("finished", [(SHELL, 6)]), "another one with that number"
    assert not tree.in_use("finished", [(SHELL + 1, 5)])
    assert tree.in_use("nobody", [(SHELL, 5)]), "a create that has made nothing yet"


@pytest.mark.parametrize("name", DEATHS)
def test_what_is_left_is_killed_and_init_is_not(tree, name):
    init, before = tree.pid(name), tree.alive()
    assert tree.host.clear(name, tree.holder(name))
    (child,) = tree.killed
    assert tree.alive() == before - {child}
    assert init in tree.alive()


@pytest.mark.parametrize("name", ["finished", "fresh", "nobody"])
def test_nothing_is_killed_where_nothing_is_left(tree, name):
    assert tree.host.clear(name, tree.holder(name))
    assert not tree.killed


def test_a_container_whose_control_group_is_gone_has_nothing_left(tree):
    holder = tree.holder("left-behind")
    holder.cgroup = tree.host.cgroup("left-behind", holder.bundle).replace("left-behind", "gone")
    assert tree.host.clear("left-behind", holder)
    assert not tree.killed


def test_where_the_bundle_is_deleted_the_control_group_is_known_from_the_lease(tree):
    holder = tree.holder("left-behind")
    holder.cgroup = tree.host.cgroup("left-behind", holder.bundle)
    init = tree.pid("left-behind")
    shutil.rmtree(tree.path(holder.bundle))
    assert not tree.host.in_use("left-behind", holder)
    assert tree.host.clear("left-behind", holder)
    assert len(tree.killed) == 2
    assert init in tree.killed, "nobody knows it from the others, and its container is deleted"


def test_what_lives_on_takes_init_along_and_then_counts_as_stuck(tree, monkeypatch):
    (child,) = set(map(int, tree.read(procs(tree, "left-behind")).split())) - {
        tree.pid("left-behind")
    }
    die = tree.die
    monkeypatch.setattr(tree, "die", lambda pid: pid == child or die(pid))
    monkeypatch.setattr(
        usage.time, "sleep", lambda s: setattr(tree, "patience", tree.patience + s)
    )
    holder = tree.holder("left-behind")
    assert not tree.host.clear("left-behind", holder)
    assert set(tree.killed) == {child, tree.pid("left-behind")}
    assert 1.4 < tree.patience < 2
    holder.stuck, tree.patience = True, 0
    assert not tree.host.clear("left-behind", holder)
    assert tree.patience < 0.1, "nobody waits twice for it"


def procs(tree, name):
    line = "devices:" if "v1" in tree.root.name else "0::"
    text = tree.read(f"/proc/{tree.pid(name)}/cgroup")
    path = re.search(rf"{line}(.*)", text)[1]
    mount = "/sys/fs/cgroup/devices" if "v1" in tree.root.name else "/sys/fs/cgroup"
    return f"{mount}{path}/cgroup.procs"


@pytest.mark.parametrize("process", ["init", "task"])
def test_a_pid_file_that_names_another_process_by_now_names_none(tree, process):
    tree.die(tree.pid("running", "task"))
    tree.write(f"{tree.bundle('running')}/{process}.pid", str(SHELL))
    assert not tree.in_use("running")
    assert not tree.in_use("running", execs=False) or process == "task"
    assert tree.host.clear("running", tree.holder("running"))
    assert SHELL not in tree.killed


def test_a_pid_file_that_names_a_process_in_another_container_names_none(tree):
    other = tree.pid("running", "task")
    for process in ("init", "task"):
        tree.write(f"{tree.bundle('finished')}/{process}.pid", str(other))
    assert not tree.in_use("finished", execs=False)
    assert tree.host.clear("finished", tree.holder("finished"))
    assert not tree.killed


@pytest.mark.parametrize("text", ["", "\n", "0", "-1", "x", "1" * 30, "٣", "12 13"])
def test_a_pid_file_that_says_nothing_names_none(tree, text):
    tree.write(f"{tree.bundle('running')}/task.pid", text)
    assert not tree.in_use("running")


def test_a_process_in_a_group_below_counts(tree):
    (pid,) = set(map(int, tree.read(nested(tree)).split()))
    tree.write(f"{tree.bundle('below')}/task.pid", str(pid))
    assert tree.in_use("below")


def nested(tree):
    return procs(tree, "below").replace("/cgroup.procs", "/below/deeper/cgroup.procs")


def test_an_init_that_moved_to_a_group_below_is_still_its_containers(tree):
    init = tree.pid("running")
    text = tree.read(f"/proc/{init}/cgroup").replace("/garden/running", "/garden/running/init")
    tree.write(f"/proc/{init}/cgroup", text)
    assert tree.in_use("running")
    assert tree.host.cgroup("running", tree.bundle("running")).endswith("/garden/running")


@pytest.mark.parametrize("name", ["garden", "system.slice", "run", "", "running-not"])
def test_an_id_that_is_in_the_path_by_chance_is_no_container(tree, name):
    found = tree.host.cgroup(name, tree.bundle("running"))
    assert found in ("", "/system.slice", "/system.slice/garden", SERVICE)
    assert not found.endswith("running")


SERVICE = "/system.slice/concourse-worker.service/garden"


@pytest.mark.parametrize(
    ("state", "threads", "used"),
    [("S", 1, True), ("Z", 1, False), ("X", 1, False), ("Z", 2, True)],
)
def test_a_dead_leader_counts_as_long_as_a_thread_lives(tree, state, threads, used):
    pid = tree.pid("running", "task")
    tree.stat(pid, state, threads)
    if used:
        tree.write(f"/proc/{pid}/task/{pid + 1}/cgroup", tree.read(f"/proc/{pid}/cgroup"))
    if state != "S" and "v1" in tree.root.name:
        # Seen on Linux 6.18: in v1 it is in the root group then, its threads are where they were.
        tree.write(f"/proc/{pid}/cgroup", "5:devices:/\n0::/\n")
    assert tree.in_use("running") is used


def test_a_name_with_brackets_and_blanks_is_a_name(tree):
    pid = tree.pid("running", "task")
    text = tree.read(f"/proc/{pid}/stat").replace("(sh)", "(a) Z 1 1 (b) )")
    tree.write(f"/proc/{pid}/stat", text)
    assert tree.in_use("running")


def test_a_v2_group_of_a_systemd_driver_bears_its_name(tmp_path):
    tree = Tree(tmp_path, "v2")
    scope = "/system.slice/cri-containerd-running.scope"
    for process in ("init", "task"):
        pid = tree.pid("running", process)
        tree.write(f"/proc/{pid}/cgroup", f"0::{scope}\n")
    assert tree.in_use("running")
    assert tree.host.cgroup("running", tree.bundle("running")) == scope


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
    folder = tree.host._folder(tree.host.cgroup("running", tree.bundle("running")))
    assert folder == str(tree.path("/sys/fs/cgroup/garden/running"))


def test_a_killed_process_is_that_very_process():
    with subprocess.Popen(["sleep", "1000"]) as process:
        held = Process(process.pid)
        held.kill()
        held.close()
        assert process.wait(10) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        Process(process.pid)


def test_this_process_is_found_by_its_start():
    host = usage.Host()
    me = host.me()
    assert me[0] == os.getpid()
    assert host.alive(me)
    assert not host.alive((me[0], me[1] + 1))
    assert 0 < host.now() - me[1] / os.sysconf("SC_CLK_TCK") < 86400


def test_no_decision_heeds_a_clock_that_can_be_set():
    """Only CLOCK_BOOTTIME is read there, so that a step of the time of day changes nothing."""
    asked = set()
    for module in (broker, leases, store, usage):
        for node in ast.walk(ast.parse(pathlib.Path(module.__file__).read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in ("time", "datetime")
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "time":
                asked.add(node.attr)
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("st_mtime", "st_ctime", "st_mtime_ns", "st_ctime_ns")
    assert asked == {"clock_gettime", "CLOCK_BOOTTIME", "sleep"}
