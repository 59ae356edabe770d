# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The order of a restart that no build notices, on a played clock, worker and steps."""

import itertools
import math
import os
import pathlib
import re

import pytest

from ci.concourse.restart import cgroup_freezer
from ci.concourse.restart import lossless as restart
from ci.concourse.restart import running_steps as concourse_steps
from ci.concourse.restart import running_steps as steps
from machine import (
    process,
    process_cleanup,
    procfs,
    systemd,
    tcp_connections,
)
from machine import tcp_connections as sockets

SERVICE = "concourse-worker.service"
OLD, NEW = 100, 200
ENDED = -math.inf
FIFO = "/run/containerd/fifo/{}/task-stdout"


class World:
    """A worker with steps, and a clock that goes on only while the restart sleeps.

    Attributes:
        steps: by name: when its process begins, ENDED if it has, None while it waits to be made.
        attaches: after how many seconds from the new worker's start a step's output is open.
        connects: after how many more web is told that it is attached.
        asks: times at which web asks for something.
        requests: port, end and beginning of what is asked of the worker's servers.
        first: the number of the first process of the first container; its step's is 5 more.
        apart: whether steps have left the control groups of their containers.
        silent: whether the kernel lists no connection.
        refuses: whether systemd refuses to start the worker.
    """

    def __init__(self, monkeypatch, tmp_path):
        self.now, self.pid, self.born = 1000.0, OLD, 0.0
        self.steps, self.attaches, self.connects, self.asks = {}, 3.0, 0.1, []
        self.volumes = tmp_path
        (tmp_path / "init").mkdir()
        self.frozen, self.log, self.said, self.stood = {}, [], [], []
        self.reads, self.requests, self.first = True, [], 1000
        self.apart = self.silent = self.refuses = False
        fakes = {
            (restart.time, "monotonic"): lambda: self.now,
            (restart.time, "sleep"): self.sleep,
            (concourse_steps, "containers"): self.containers,
            (systemd, "main_pid"): lambda _: self.pid,
            (systemd, "ensure_running"): self.start,
            (process_cleanup, "end_processes"): self.kill,
            (tcp_connections, "connections"): self.connections,
            (tcp_connections, "silence"): self.silence,
            (tcp_connections, "expecting"): self.expecting,
            (procfs, "open_files"): self.open,
            (procfs, "parent"): lambda pid: pid + 1,
            (cgroup_freezer, "switch"): self.switch,
            (cgroup_freezer, "Freezer"): lambda held: Freezer(self, held),
        }
        for (module, name), fake in fakes.items():
            monkeypatch.setattr(module, name, fake)
        monkeypatch.setattr(restart, "_stood", {})

    def sleep(self, seconds):
        self.now += seconds
        assert self.now < 1300, "it never ends"

    def containers(self):
        found = []
        for number, (name, begins) in enumerate(self.steps.items()):
            runs = begins is not None and self.now >= begins != ENDED
            init = 0 if begins is None else self.first + 10 * number
            step = init + 5 if runs else 0
            new = not runs and begins != ENDED
            age = self.now - 998 + 8 * (not init)
            found.append(steps.Container(name, init, step, age, new, runs))
        return found

    def switch(self, _init, _step, name):
        return None if self.apart else pathlib.Path(name)

    def silence(self, _):
        if self.silent:
            raise FileNotFoundError(2, "No such file or directory")
        return min((self.now - one for one in self.asks if one <= self.now), default=math.inf)

    def open(self, pid, pattern):
        """The output of steps: their shims have it open, and a worker where web reads it."""
        there = {one.init + 1: FIFO.format(one.init) for one in self.containers() if one.step}
        assert all(re.fullmatch(pattern, path) for path in there.values())
        if pid in there:
            return {3: there[pid]}
        attached = self.now >= self.born + self.attaches
        reads = (pid == self.pid == OLD and self.reads) or (pid == NEW and attached)
        # Web attaches by other descriptors, if the worker's process is still the same.
        first = 200 if pid == OLD and self.born and attached else 100
        return dict(enumerate(there.values(), first)) if reads else {}

    def connections(self, _):
        """Web's to the worker's servers: for each process that it is attached to, or is to be."""
        running = [
            number for number, one in enumerate(self.containers()) if one.step and self.reads
        ]
        asked = [(7777, number) for number in running]
        asked += [
            (port, 100 + number)
            for number, (port, end, begin) in enumerate(self.requests)
            if begin <= self.now < end
        ]
        return [sockets.Connection(inode, "127.0.0.1", port, 0) for port, inode in asked]

    def expecting(self, inodes):
        """Those to whom the worker has said nothing yet."""
        connected = not self.born or self.now >= self.born + self.attaches + self.connects
        ends = {100 + number: end for number, (_, end, _) in enumerate(self.requests)}
        return sum(self.now < ends[one] if one >= 100 else not connected for one in inodes)

    def kill(self, pids, _):
        self.log.append("end")
        assert pids == ([OLD] if self.pid else [])
        self.pid = 0

    def start(self, service, *, restart):
        assert (service, restart) == (SERVICE, True)
        if self.refuses:
            raise process.CommandError(["systemctl"], 1, "")
        self.log.append("start")
        self.pid, self.born = NEW, self.now

    def gently(self):
        restart.worker(SERVICE, self.volumes, self.said.append)


class Freezer:
    def __init__(self, world, held):
        self.world, self.held = world, held

    def begin(self):
        self.world.log.append(f"guard {self.held:.0f}")

    def freeze(self, path):
        self.world.frozen[str(path)] = self.world.now
        self.world.log.append(f"freeze {path}")
        return True

    def thaw(self, path):
        held = self.world.now - self.world.frozen.pop(str(path))
        self.world.log.append(f"thaw {path}")
        self.world.stood.append(held)
        assert held < 20

    def end(self):
        for name in [*self.world.frozen]:
            self.thaw(name)
        self.world.log.append("end of guard")


@pytest.fixture
def world(monkeypatch, tmp_path):
    return World(monkeypatch, tmp_path)


def test_a_worker_that_does_not_run_is_started_and_nothing_else(world):
    world.pid = 0
    world.gently()
    assert world.log == ["end", "start"]


def test_without_steps_it_is_restarted_at_once(world):
    world.gently()
    assert world.log == ["guard 19", "end", "start", "end of guard"]
    assert world.now == pytest.approx(1000, abs=0.1)


def test_a_step_stands_still_until_web_has_attached(world):
    world.steps = {"a": 0.0}
    world.gently()
    assert world.log == [
        *("guard 19", "freeze a", "end", "start", "thaw a", "end of guard"),
    ]
    assert world.now >= world.born + world.attaches


@pytest.mark.parametrize("lives", [True, False])
def test_a_step_that_has_left_its_containers_groups_is_named_once(world, caplog, lives):
    # No process has a number above Linux's largest, 2**22.
    step = os.getpid() if lives else 2**22 + 5
    world.steps, world.apart, world.first = {"a": 0.0}, True, step - 5
    world.gently()
    assert "freeze a" not in world.log
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    words = "the step of container a can't be frozen: no control group of the container has both "
    assert said == lives * [
        f"{words}pid {step - 5}, its first process, and the step's, pid {step}"
    ]


@pytest.mark.parametrize(("connects", "stood"), [(2.5, 2.5), (math.inf, 4.0)])
def test_a_step_stands_still_until_web_is_told_that_it_runs(world, connects, stood):
    """One that ends with its output open, and before that, is lost: `proc not running`."""
    world.steps, world.connects = {"a": 0.0}, connects
    world.gently()
    assert world.now >= world.born + world.attaches + stood
    assert world.stood[0] < 8.5


def test_a_process_that_begins_or_ends_is_waited_for(world):
    """Web reads its output, and no folder tells of it: a check in a container of long ago."""
    seen, own = world.open, {7: "/run/containerd/fifo/2/resource-stdout"}

    def check(pid, pattern):
        return seen(pid, pattern) | (own if pid == OLD and world.now < 1001.5 else {})

    procfs.open_files = check
    world.gently()
    assert world.born > 1001.5


def test_steps_stand_still_for_webs_own_restart_too(world):
    """The worker's process stays, so that web attaches by other descriptors of it."""
    world.steps = {"a": 0.0}

    def web(pid):
        assert (pid, world.frozen.keys()) == (OLD, {"a"})
        world.log.append("web")
        world.born = world.now

    restart.beside(SERVICE, world.volumes, web, world.said.append)
    assert world.log == ["guard 19", "freeze a", "web", "thaw a", "end of guard"]
    assert world.now >= world.born + world.attaches


def test_web_alone_on_its_machine_is_restarted_at_once(world):
    world.pid = 0
    restart.beside(SERVICE, world.volumes, world.log.append, world.said.append)
    assert world.log == [0]


def test_a_step_that_web_did_not_read_does_not_wait_for_it(world):
    world.steps, world.reads, world.attaches = {"a": 0.0}, False, math.inf
    world.gently()
    assert world.now < world.born + 2
    assert world.log.count("start") == 1
    assert world.frozen == {}


def test_a_step_that_ended_before_it_stood_still_is_let_go(world):
    """It is no step without output that web would have to attach to."""
    world.steps = {"a": 0.0, "b": 0.0}
    begin = Freezer.freeze

    def too_late(self, path):
        begin(self, path)
        if str(path) == "b":
            world.steps["b"] = ENDED
        return True

    Freezer.freeze, restored = too_late, begin
    try:
        world.gently()
    finally:
        Freezer.freeze = restored
    assert world.log.index("thaw b") < world.log.index("end") < world.log.index("thaw a")


def test_a_container_that_vanishes_is_let_go(world):
    world.steps = {"a": 0.0, "b": 0.0}
    sleep = world.sleep

    def gone(seconds):
        sleep(seconds)
        world.steps.pop("b", None)

    world.asks = [999.9]
    restart.time.sleep = gone
    world.gently()
    assert world.log.index("thaw b") < world.log.index("end")


def test_what_is_being_made_is_waited_for(world):
    world.steps = {"a": 0.0, "b": 1001.5}
    world.gently()
    assert world.log[:4] == ["guard 19", "freeze a", "freeze b", "end"]
    assert world.born > 1001.5


def test_a_volume_that_is_being_made_is_waited_for(world):
    volume, sleep = world.volumes / "init/v", world.sleep
    volume.mkdir()

    def made(seconds):
        sleep(seconds)
        if world.now > 1001 and volume.exists():
            volume.rmdir()

    restart.time.sleep = made
    world.gently()
    assert world.born > 1001


def test_as_long_as_web_asks_it_is_not_restarted(world):
    world.asks = [1000 + number / 10 for number in range(20)]
    world.gently()
    assert world.born >= world.asks[-1] + 0.8
    assert world.log.count("end") == 1


@pytest.mark.parametrize("port", [7777, 7788])
def test_a_request_of_webs_is_waited_for_though_nothing_is_said_meanwhile(world, port):
    """One that starts a process in a container of long ago, say, by a slow containerd."""
    world.steps, world.requests = {"a": 0.0}, [(port, 1002.5, 0.0)]
    world.gently()
    assert 1002.5 <= world.born < 1003


@pytest.mark.parametrize("port", [7777, 7788])
def test_what_the_worker_deletes_by_itself_is_not_waited_for(world, port):
    """Three at a time, for minutes; the SSH connection to web is asked every 5 seconds."""
    begins = [998.0 + 0.3 * number for number in range(800)]
    world.requests = [(port, begin + 0.9, begin) for begin in begins]
    world.asks = [998.5 + 5 * number for number in range(60)]
    world.gently()
    assert world.born < 1003
    assert world.log.count("start") == 1


def test_a_request_of_webs_between_those_of_the_worker_is_waited_for(world):
    """One in a container of long ago, which nothing tells of for three seconds."""
    world.asks = [1000.0, 1001.5]
    world.requests = [(7777, 1004.5, 1001.51)]
    begins = [998.0 + 0.3 * number for number in range(800)]
    world.requests += [(7777, begin + 0.9, begin) for begin in begins]
    world.gently()
    assert 1004.5 <= world.born < 1010


def test_without_rest_it_is_tried_for_a_minute_and_no_step_stands_still_for_20_seconds(world):
    """In all: what one try takes, the next ones have less."""
    world.steps, world.attaches = {"a": 0.0}, math.inf
    world.asks = [1000 + number / 10 for number in range(1000)]
    world.gently()
    guards = [float(line.split()[1]) for line in world.log if line.startswith("guard")]
    assert len(guards) == 3
    assert guards[0] > guards[1] > guards[2] > 11
    assert 1060 < world.born < 1070
    assert "Waiting for tasks that stood still before, before a restart" in world.said
    assert world.log.count("start") == 1
    marks = [line for line in world.log if line in ("freeze a", "thaw a")]
    assert marks == ["freeze a", "thaw a"] * 3
    assert sum(world.stood) < 20


def test_what_stood_still_for_web_does_not_stand_still_for_the_worker_for_as_long_again(world):
    """Both are restarted in one hook, where both are on one machine."""
    world.steps, world.attaches = {"a": 0.0}, 9.0
    restart.beside(SERVICE, world.volumes, lambda *_: setattr(world, "born", world.now), print)
    assert 9 < sum(world.stood) < 13
    world.gently()
    assert "Waiting for tasks that stood still before, before a restart" in world.said
    assert sum(world.stood) < 20


def test_a_step_that_stood_still_for_long_enough_does_not_for_the_worker(world):
    """Web was attached to it again by the end of its time alone, or never."""
    world.steps, world.attaches = {"a": 0.0}, math.inf
    restart.beside(SERVICE, world.volumes, lambda *_: setattr(world, "born", world.now), print)
    assert 18 < sum(world.stood) < 20
    world.gently()
    assert world.log.count("start") == 1
    assert sum(world.stood) < 20


def test_short_steps_are_tried_again_and_again_until_there_is_rest(world):
    """Each is another one, that has not stood still before."""
    sleep = world.sleep

    def next_one(seconds):
        sleep(seconds)
        world.steps = {f"s{world.now // 6:.0f}": 0.0}

    restart.time.sleep = next_one
    world.asks = [1000 + number / 10 for number in range(350)]
    world.gently()
    guards = [line for line in world.log if line.startswith("guard")]
    assert len(guards) > 4
    assert 1035 < world.born < 1045
    assert "Waiting" not in "".join(world.said)


def test_a_task_that_waits_for_its_gpu_is_waited_for_without_freezing(world):
    world.steps = {"a": 0.0, "waits": None}
    sleep = world.sleep

    def served(seconds):
        sleep(seconds)
        if world.now > 1030:
            world.steps["waits"] = 0.0

    restart.time.sleep = served
    world.gently()
    assert "Waiting for a task that waits for its GPU" in world.said[0]
    assert min(world.born, *itertools.chain(world.frozen.values(), [1e9])) > 1030
    assert world.log[:3] == ["guard 19", "freeze a", "freeze waits"]


def test_a_task_that_waits_for_longer_than_a_minute_is_not_waited_for_any_more(world):
    world.steps = {"waits": None}
    world.gently()
    assert 1060 < world.born < 1080


def test_a_start_that_fails_leaves_nothing_frozen(world):
    world.steps, world.refuses = {"a": 0.0}, True
    with pytest.raises(process.CommandError):
        world.gently()
    assert world.frozen == {}


def test_where_the_kernel_tells_of_no_connection_what_is_made_is_seen_all_the_same(world):
    world.silent, world.steps = True, {"a": 1002.0}
    world.gently()
    assert world.born > 1002
    assert world.log.count("start") == 1
