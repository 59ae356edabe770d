# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The long forms: the wrapper killed wherever it changes something, and larger lease worlds."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest

from gpu_runtime import cgroups as groups
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import Holder
from tests.unit.lease_environment import installed
from tests.unit.lease_model import Explorer
from tests.unit.lease_world import DEVICES, Container, World
from tests.unit.wrapper_caller import EXECED, UUIDS, Bundle, Caller, hold
from tests.unit.wrapper_rig import GLOBAL, GPUS, Rig

if "GPUCI_SOAK" not in os.environ:
    pytest.skip("`make soak` runs it", allow_module_level=True)

TRACE = ["strace", "-f", "-qq", "-s", "256"]
# Whoever may not trace its own children sees that at the first.
needs_strace = pytest.mark.skipif(
    not shutil.which("strace")
    or subprocess.run([*TRACE, "-o", "/dev/null", "true"], capture_output=True).returncode != 0,
    reason="needs strace, and the right to trace",
)
REFUSED = 1
# What changes something outside the process; of some systems each ends with `at` or `at2`.
CHANGES = {
    *("execve", "fchmod", "fchown", "flock", "kill", "mkdir", "pidfd_send_signal", "rename"),
    *("unlink", "write"),
}
# Between two of them all places to be killed at are alike: one of so many other calls is tried,
# which are mostly those of an interpreter that starts.
OTHERS = 4


class Leftover:
    """A holder that is over, but for a process in its control group."""

    def __init__(self):
        found, unified = groups.of("", "/proc/self")
        own = found[groups.DEVICES]
        # Under v2 no group with groups below it may have processes of its own.
        self.cgroup = f"{os.path.dirname(own) if unified else own}/HOLDER".replace("//", "/")
        self.folder = pathlib.Path(groups.folder("", os.path.dirname(self.cgroup)), "HOLDER")
        self.folder.mkdir()
        self.process = None

    def renew(self, rig):
        self.close()
        self.process = subprocess.Popen(["sleep", "10000"])
        (self.folder / "cgroup.procs").write_text(str(self.process.pid))
        with Store(str(rig.store)) as table:
            holder = Holder("/nowhere", UUIDS[:1], [], exclusive=True, since=0)
            holder.cgroup = self.cgroup
            table.holders["HOLDER"] = holder

    def close(self):
        if self.process:
            self.process.kill()
            self.process.wait(10)


class Traced:
    """Calls of the front under strace, before each of which the world is made anew."""

    def __init__(self, folder, owner, leftover):
        self.rig = Rig(folder)
        self.caller = Caller(self.rig)
        self.owner, self.leftover = owner, leftover
        self.trace = folder / "trace"
        self.process = folder / "runc-process1"
        self.asked = {"args": ["sh"], "env": ["PATH=/bin"], "cwd": "/"}

    def renew(self, kind):
        shutil.rmtree(self.rig.store.parent, ignore_errors=True)
        self.rig.policy(gpus=GPUS[:1], wait_timeout=0)
        self.mine, self.other = Bundle(self.rig, "ID"), Bundle(self.rig, "OTHER")
        self.before = json.loads(self.mine.config.read_text())
        self.process.write_text(json.dumps(self.asked))
        if kind == "exec":
            assert self.caller.call(self.mine.create) == EXECED
        if kind == "wait":
            hold(self.rig, self.owner)
            self.rig.policy(gpus=GPUS[:1], wait_timeout=1)
        if kind == "end":
            self.leftover.renew(self.rig)

    def call(self, kind, *flags):
        words = self.mine.create
        if kind == "exec":
            words = ["exec", "--process", str(self.process), "--detach", "ID"]
        front = [self.rig.bin / "runc", *GLOBAL, "--log", self.rig.log, *words]
        self.rig.log.unlink(missing_ok=True)
        command = [*TRACE, "-o", self.trace, *flags, *front]
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=120)
        assert (done.stdout, done.stderr) == (b"", b"")
        return done.returncode

    def calls(self, kind):
        """The system calls of the wrapper until it becomes the runtime, or ends.

        Returns:
            Of each its name, its number, which strace counts by name, and whether it may change
            something outside the process.
        """
        for _ in range(2):  # the first compiles the modules
            self.renew(kind)
            assert self.call(kind) == (REFUSED if kind == "wait" else EXECED)
        lines = self.trace.read_text().splitlines()
        main, made, runtime = lines[0].split()[0], [], f'execve("{self.rig.folder}/real/'
        for line in lines:
            found = re.match(rf"{main} +(\w+)\(", line)
            if found:
                name = found[1].removesuffix("2").removesuffix("at")
                made.append((found[1], name in CHANGES or "O_CREAT" in line))
                if runtime in line:
                    break
        names = [name for name, _ in made]
        return [
            (name, names[: place + 1].count(name), changes)
            for place, (name, changes) in enumerate(made)
        ]

    def check(self, kind):
        """What must be so after a call was killed."""
        found = json.loads(self.mine.config.read_text())
        if found != self.before:
            assert kind != "wait"
            assert f"NVIDIA_VISIBLE_DEVICES={UUIDS[0]}" in found["process"]["env"]
        process = json.loads(self.process.read_text())
        assert {**process, "env": self.asked["env"]} == self.asked
        if kind == "wait":
            assert self.caller.holders() == {"HOLDER": UUIDS[:1]}
            hold(self.rig, (self.owner[0], self.owner[1] + 1))
            self.rig.policy(gpus=GPUS[:1], wait_timeout=0)
        assert self.caller.call(self.other.create) == EXECED
        assert self.caller.holders() == {"OTHER": UUIDS[:1]}
        if kind == "end":
            assert self.leftover.process.wait(10) == -signal.SIGKILL
        assert not any(Host().alive(each.call) for each in self.caller.table().waiters)


@pytest.fixture
def leftover():
    made = Leftover()
    yield made
    made.close()
    made.folder.rmdir()


@pytest.fixture
def traced(tmp_path, leftover):
    with subprocess.Popen(["sleep", "10000"]) as owner:
        try:
            yield Traced(tmp_path, (owner.pid, Host()._started(owner.pid)), leftover)
        finally:
            owner.kill()


@needs_strace
@pytest.mark.skipif(os.geteuid() != 0, reason="control groups need root")
@pytest.mark.parametrize("kind", ["create", "exec", "wait", "end"])
def test_killed_at_every_change_that_it_makes(traced, kind):
    calls = traced.calls(kind)
    changes = [call for call in calls if call[2]]
    others = [call for call in calls if not call[2]][::OTHERS]
    print(f"{kind}: {len(calls)} system calls, {len(changes)} that change something")
    assert len(calls) > 200
    assert len(changes) > 12
    survived = []
    for name, place, _ in changes + others:
        traced.renew(kind)
        status = traced.call(kind, "-e", f"inject={name}:signal=KILL:when={place}")
        if status != -signal.SIGKILL:
            survived.append((name, place, status))
        traced.check(kind)
    # Timing moves a call or two to the next runtime, or past the last look.
    assert len(survived) < 5, survived


def of_three(containers, **budget):
    """A world with a third device."""
    world = World(containers, **budget)
    world.devices = DEVICES
    return world


WORLDS = {
    "three of two": lambda: World(
        [Container("c1"), Container("c2", 2), Container("c3")],
        kills=1,
        children=1,
        minutes=1,
    ),
    "two kills": lambda: World(
        [Container("c1", execs=2), Container("c2")],
        devices=1,
        kills=2,
        children=1,
        minutes=1,
        ends=1,
        failures=1,
    ),
    "five wait": lambda: World(
        [
            *(Container("c1"), Container("c2", 2, execs=0), Container("c3", execs=0)),
            *(Container("c4", None, execs=0), Container("c5", execs=0)),
        ],
        expiries=1,
    ),
    "large wishes among small ones": lambda: of_three(
        [
            *(Container("c1"), Container("c2", execs=0), Container("c3", 3, execs=0)),
            Container("c4", execs=0),
        ],
        minutes=1,
    ),
    "a large wish is killed": lambda: of_three(
        [
            *(Container("c1"), Container("c2", 3, execs=0)),
            *(Container("c3", 2, execs=0), Container("c4", execs=0)),
        ],
        kills=1,
        expiries=1,
    ),
    "sessions": lambda: World(
        [Container("c1", execs=3, sessions=1), Container("c2", 2, execs=0)],
        minutes=2,
        children=1,
    ),
    "sessions of two": lambda: World(
        [Container("c1", execs=2, sessions=1), Container("c2", execs=2, sessions=1)]
        + [Container("c3", 2, execs=0)],
        minutes=2,
    ),
    "starts hang": lambda: World(
        [Container("c1", execs=2), Container("c2"), Container("c3", 2, execs=0)],
        minutes=2,
    ),
    "shared and not": lambda: World(
        [Container("c1"), Container("c2"), Container("c3", execs=0)],
        exclusive=False,
        switches=2,
        kills=1,
        children=1,
    ),
    "again": lambda: World(
        [Container("c1", tries=2), Container("c2", tries=2)],
        devices=1,
        kills=1,
        ends=2,
        failures=1,
        reuses=1,
        stales=1,
    ),
    "two self-tests": lambda: World(
        [
            *(
                Container("c1", reserves=DEVICES[:1]),
                Container("c2", execs=0, reserves=DEVICES[:2]),
            ),
            *(Container("c3"), Container("c4", 2, execs=0)),
        ],
        kills=1,
    ),
    "self-test, shared and not, in and out of quarantine": lambda: World(
        [Container("c1", 2, reserves=DEVICES[:1]), Container("c2"), Container("c3", execs=0)],
        exclusive=False,
        switches=1,
        quarantines=2,
        kills=1,
    ),
}
IN_THE_MIDDLE = {
    "in the middle": lambda: World(
        [Container("c1", execs=2), Container("c2")],
        devices=1,
        kills=1,
        minutes=1,
        children=1,
        ends=1,
        reuses=1,
        stales=1,
    ),
    "in the middle of sessions": lambda: World(
        [Container("c1", execs=2, sessions=1), Container("c2")],
        devices=1,
        minutes=2,
        children=1,
    ),
}
MOST = 150_000  # states of one world, beyond which it takes longer than a minute or two


@pytest.mark.parametrize("name", [*WORLDS, *IN_THE_MIDDLE])
def test_every_state_of_a_larger_world_keeps_the_promises(name):
    world = {**WORLDS, **IN_THE_MIDDLE}[name]()
    explorer = Explorer(world, limit=MOST, meanwhile=name in IN_THE_MIDDLE)
    with installed(explorer.environment):
        explorer.run()
    print(f"{name}: {explorer.states} states, {sum(explorer.kinds.values())} steps")
    assert explorer.states > 10_000
