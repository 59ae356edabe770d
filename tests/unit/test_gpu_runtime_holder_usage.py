# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What counts as use, on recorded trees of cgroup v1 and v2."""

import ast
import os
import pathlib

import pytest

from gpu_runtime import handover
from gpu_runtime import holder_usage as usage
from gpu_runtime import lease_manager as broker
from gpu_runtime import lease_scheduler as leases
from gpu_runtime import lease_store as store
from gpu_runtime import open_devices as descriptors
from tests.unit.recorded_trees import SHELL, UPTIME, Tree, procs


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


@pytest.mark.parametrize("name", ["running", "finished", "below", "hijacked", "fresh", "nobody"])
def test_a_step_is_what_runs_in_a_container_for_a_build(tree, name):
    expected = [tree.pid(name, "task")] if name == "running" else []
    assert tree.host.steps(name, tree.bundle(name)) == expected
    assert not tree.host.is_in(SHELL, name, tree.bundle(name))
    assert not tree.host.is_in(0, name, tree.bundle(name))
    for pid in expected:
        assert tree.host.is_in(pid, name, tree.bundle(name))
        # The bundle of one container under the name of another is none of its.
        assert not tree.host.is_in(pid, "hijacked", tree.bundle(name))
        tree.die(pid)
        assert tree.host.steps(name, tree.bundle(name)) == []
        assert not tree.host.is_in(pid, name, tree.bundle(name))


def test_a_minute_after_its_grant_a_container_without_a_process_is_over(tree):
    holder = tree.holder("fresh", execs=False)
    holder.since = tree.host.now()
    assert tree.host.in_use("fresh", holder)
    tree.patience = 59.9
    assert tree.host.in_use("fresh", holder)
    tree.patience = 60.1
    assert not tree.host.in_use("fresh", holder)


def test_a_call_that_runs_is_use_for_a_minute(tree):
    tree.started_at(SHELL, 5.0)
    call = (SHELL, tree.started(SHELL))
    tree.patience = 64.9 - UPTIME[tree.version]
    assert tree.in_use("finished", [call])
    assert tree.in_use("nobody", [call]), "a create that has made nothing yet"
    assert not tree.in_use("finished", [(SHELL, call[1] + 1)]), "another one with that number"
    assert not tree.in_use("finished", [(SHELL + 1, call[1])])
    tree.patience += 0.2
    assert not tree.in_use("finished", [call]), "what it was to start hangs"


def test_a_call_that_waited_for_its_grant_has_its_minute_from_then_on(tree):
    holder = tree.holder("nobody", [(SHELL, tree.started(SHELL))], execs=False)
    tree.patience = 300
    holder.since = tree.host.now() - 59
    assert tree.host.in_use("nobody", holder)
    holder.since -= 2
    assert not tree.host.in_use("nobody", holder)


def test_who_keeps_devices_for_a_container_uses_them(tree):
    holder = tree.holder("nobody")
    holder.keeper = SHELL, tree.started(SHELL)
    tree.patience = 10**6
    assert tree.host.in_use("nobody", holder)
    holder.keeper = SHELL, tree.started(SHELL) + 1
    assert not tree.host.in_use("nobody", holder)


def test_sessions_alone_are_use_for_their_limit_after_the_step(tree):
    holder = tree.holder("hijacked")
    holder.session_limit = 1800
    assert tree.host.in_use("hijacked", holder)
    seen = holder.step_ended
    assert seen == tree.host.now()
    tree.patience = 1799
    assert tree.host.in_use("hijacked", holder)
    assert holder.step_ended == seen, "the first look counts"
    tree.patience = 1801
    assert not tree.host.in_use("hijacked", holder)
    holder.session_limit = 0
    assert tree.host.in_use("hijacked", holder), "no limit"


def test_a_step_is_use_without_a_limit(tree):
    holder = tree.holder("running")
    holder.session_limit = 1800
    tree.patience = 10**6
    assert tree.host.in_use("running", holder)
    assert not holder.step_ended


@pytest.mark.parametrize(
    ("path", "v1", "v2"),
    [
        ("garden/c", "/system.slice/x.service/garden/c", "/system.slice/garden/c"),
        ("", "/system.slice/x.service/c", "/system.slice/c"),
        ("/default/c", "/default/c", "/default/c"),
        ("//default//c/", "/default/c", "/default/c"),
        ("garden/other", "", ""),
        ("/", "", ""),
        ("system.slice:ctr:c", "/system.slice/ctr-c.scope", "/system.slice/ctr-c.scope"),
        ("machine.slice:libpod:c", *2 * ("/machine.slice/libpod-c.scope",)),
        (":docker:c", *2 * ("/system.slice/docker-c.scope",)),
        ("a-b-c.slice::c", *2 * ("/a.slice/a-b.slice/a-b-c.slice/c.scope",)),
        ("-.slice:docker:c", *2 * ("/docker-c.scope",)),
        ("system.slice:ctr:d", "", ""),
        ("system.slice:libpod-conmon:c", "", ""),
        ("x/../y.slice:ctr:c", "", ""),
        ("a:b:c:c", "", ""),
        ("/a:b/c", "", ""),
    ],
)
def test_the_group_to_come_is_told_by_the_spec(tree, path, v1, v2):
    own = "5:devices:/system.slice/x.service\n" if tree.version == "v1" else ""
    tree.write("/proc/self/cgroup", f"{own}0::/system.slice/x.service\n")
    assert tree.host.planned_cgroup("c", path) == {"v1": v1, "v2": v2}[tree.version]


@pytest.mark.parametrize("text", ["", "0"])
def test_a_pid_file_without_a_process_names_none(tree, text):
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
    assert tree.cgroup("running").endswith("/garden/running")


@pytest.mark.parametrize("name", ["run", "running-not", "nning", "unnin"])
def test_an_id_that_is_in_the_path_by_chance_is_no_container(tree, name):
    assert tree.cgroup(name, "running") == ""


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
    assert tree.cgroup("running") == scope


def test_this_process_is_found_by_its_start():
    host = usage.Host()
    me = host.me()
    assert me[0] == os.getpid()
    assert host.alive(me)
    assert not host.alive((me[0], me[1] + 1))
    assert 0 < host.now() - me[1] / os.sysconf("SC_CLK_TCK") < 86400


def test_no_decision_heeds_a_clock_that_can_be_set():
    """No clock that can be set is read there."""
    asked = set()
    for module in (broker, descriptors, handover, leases, store, usage):
        for node in ast.walk(ast.parse(pathlib.Path(module.__file__).read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in ("time", "datetime")
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "time":
                asked.add(node.attr)
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("st_mtime", "st_ctime", "st_mtime_ns", "st_ctime_ns")
    assert asked == {"clock_gettime", "CLOCK_BOOTTIME", "monotonic", "sleep"}
