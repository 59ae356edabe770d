# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The real gpu_runtime.lease_manager, leases, store and usage in a lease_world.

They get that world's files, processes and clock. `installed` puts its store where
gpu_runtime.lease_store has `os`, `fcntl` and the like. Nothing inside them is replaced: what is
explored is what runs on a worker.
"""

import contextlib
import errno
import json
import os
import pathlib
import re
import tempfile
import types

import pytest

from gpu_runtime import holder_usage as usage
from gpu_runtime import lease_manager as broker
from gpu_runtime import lease_scheduler as leases
from gpu_runtime import lease_store as store
from gpu_runtime import policy
from gpu_runtime.decision_log import Decision
from gpu_runtime.grant import Grant
from gpu_runtime.policy import Policy
from gpu_runtime.refusal import Refused
from gpu_selftest import gpu_reservation as reserve
from tests.unit.lease_world import SESSION_LIMIT, Broken

# In the model one overtaking is enough: eight would need worlds of ten containers.
MOST_OVERTAKINGS = 1


class Killed(BaseException):
    """The call under way got SIGKILL."""


class Parked(BaseException):
    """The call under way sleeps until its next look."""


class Looks(BaseException):
    """The call under way looks who has devices open, without the lock."""


class Host(usage.Host):
    """The real one in an environment; what its look says is told when the call goes on."""

    def __init__(self, environment):
        super().__init__("", environment)
        self.environment = environment

    def me(self):
        pid = self.environment.me
        return pid, self._started(pid) or 0

    def now(self):
        return self.environment.world.clock + self.environment.slept

    def sleep(self, seconds):
        if seconds >= 0.1:  # a request that waits; a kill looks much more often
            raise Parked
        self.environment.slept += 0.3  # for fewer rounds of patience

    def take_hold(self, pid):
        return self.environment.process(pid)

    def look(self, ending, leased):
        raise Looks(self.mark, [*ending])


class Records:
    """The folders of unavailable GPUs: one for the first, while it is quarantined."""

    def __init__(self, environment):
        self.environment = environment

    def __iter__(self):
        return iter([self.environment.quarantine] if self.environment.world.quarantined else [])


class Environment:
    """What the modules see of a world while one call decides in it; see gpu_runtime.proc.Files.

    Attributes:
        die_at: the side effect, counted from 0, in front of which the call is killed.
        meanwhile: (reads, function of the world): what happens after so many reads of files.
        used: the names of the containers that used their devices when the decision began.
        look: what the decision left that began to look: the mark, and the holders' names.
        quarantine: a folder with the record of the first GPU.
    """

    def __init__(self, world):
        self.world = world
        self.me, self.slept = 0, 0.0
        self.used = []
        self.die_at, self.effects = None, 0
        self.meanwhile, self.reads = None, 0
        self.look = None
        self.quarantine = ""

    def effect(self):
        if self.effects == self.die_at:
            raise Killed
        self.effects += 1

    def read(self, path):
        self.reads += 1
        if self.meanwhile and self.reads == self.meanwhile[0]:
            self.meanwhile[1](self.world)
        return self._text(path) or ""

    def link(self, path):
        return self.read(path)

    def lines(self, path):
        return [line for line in self.read(path).split("\n") if line]

    def _text(self, path):
        world = self.world
        if path == "/proc/self/mountinfo":
            return "31 23 0:28 / /cg rw - tmpfs t rw\n36 31 0:33 / /cg rw - cgroup c rw,devices\n"
        if found := re.fullmatch(r"/proc/(\d+)/comm", path):
            own = [
                each.begun_own
                for each in world.containers
                if each.has_init and world.pid(each, "init") == int(found[1])
            ]
            return "sh\n" if own == [True] else "runc:[2:INIT]\n"
        if found := re.fullmatch(r"/proc/(\d+)/(stat|cgroup)", path):
            process = world.processes().get(int(found[1]))
            if process is None:
                return None
            if found[2] == "cgroup":
                return f"5:devices:{process[1]}\n0::/elsewhere\n"
            return f"{found[1]} (a b) c) S {'0 ' * 16}1 0 {process[0]} 0\n"
        if found := re.fullmatch(r"/proc/(\d+)/(status|ns/pid)", path):
            return self._namespace(int(found[1]), found[2])
        if found := re.fullmatch(r"/b/(\w+)/([\w-]+\.pid)", path):
            pid = world.files(world.named(found[1])).get(found[2])
            return pid and f"{pid}"
        if path.startswith("/cg/") and path.endswith("/cgroup.procs"):
            group = path[len("/cg") : -len("/cgroup.procs")]
            pids = [pid for pid, found in world.processes().items() if found[1] == group]
            return "".join(f"{pid}\n" for pid in pids)
        return None

    def _namespace(self, pid, file):
        """The PID namespace of a process, and its numbers; a bare container has none."""
        if pid not in self.world.processes():
            return None
        own = [c for c in self.world.containers if not c.bare and pid in self.world.pids_in(c)]
        if file == "ns/pid":
            return f"pid:[{own[0].name if own else 'machine'}]"
        number = f"\t{1 if pid == self.world.pid(own[0], 'init') else 9}" if own else ""
        return f"Name:\tx\nTgid:\t{pid}\nNSpid:\t{pid}{number}\n"

    def names(self, path):
        if path == "/store/containers":
            return [f"{name}.json" for name in self.world.records]
        if path == "/proc":
            return ["self", *map(str, self.world.processes())]
        if path.startswith("/b/") and self.exists(path):
            return [*self.world.files(self.world.named(path[3:]))]
        return []

    def exists(self, path):
        if path.startswith("/b/"):
            return self.world.named(path[3:]).phase not in ("idle", "reserved", "gone")
        if path.startswith("/cg/garden/"):
            container = self.world.named(path.split("/")[3])
            return container.uses or container.phase == "dead"
        if path.startswith("/store/containers/"):
            return os.path.basename(path)[: -len(".json")] in self.world.records
        return path in ("/store/containers", "/cg/cgroup.procs")

    def folders(self, path):
        return [] if path.endswith("/nested") else [f"{path}/nested"]

    def read_object(self, path):
        name = os.path.basename(path)[: -len(".json")]
        found = self.world.table if name == "leases" else self.world.records.get(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "it is not there", path)
        return json.loads(json.dumps(found))

    def replace(self, path, value, **_):
        self.effect()
        name = os.path.basename(path)[: -len(".json")]
        value = json.loads(json.dumps(value))
        if name == "leases":
            self.world.table = value
        else:
            self.world.records[name] = value

    def remove(self, path):
        self.effect()
        self.world.records.pop(os.path.basename(path)[: -len(".json")], None)

    def process(self, pid):
        def kill():
            self.effect()
            world = self.world
            for container in world.containers:
                its = [*world.pids_in(container), *world.calls_of(container)]
                # A start that came too late may succeed just then, and goes all the same.
                used = world.in_use(container) and container.name in self.used
                if pid in its and used:
                    raise Broken(f"kill: {container.name} was in use, and {pid} is killed")
            world.kill(pid)

        if pid not in self.world.processes():
            raise ProcessLookupError(errno.ESRCH, "there is none")
        return types.SimpleNamespace(kill=kill, close=lambda: None)


@contextlib.contextmanager
def installed(environment):
    """Let the real modules run in the environment's world."""
    fake_os = types.SimpleNamespace(
        getpid=lambda: environment.me,
        open=lambda *_: 0,
        close=lambda _: None,
        path=os.path,
        **dict.fromkeys(("O_RDONLY", "O_DIRECTORY", "O_CLOEXEC"), 0),
    )
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        environment.quarantine = folder
        record = {"reason": "Xid 79: the GPU has fallen off the bus", "by": "self-test"}
        pathlib.Path(folder, f"{environment.world.devices[0]}.json").write_text(json.dumps(record))
        patch.setattr(leases, "MOST_OVERTAKINGS", MOST_OVERTAKINGS)
        patch.setattr(store, "os", fake_os)
        locks = types.SimpleNamespace(flock=lambda *_: None, LOCK_EX=0, LOCK_NB=0)
        patch.setattr(store, "fcntl", locks)
        patch.setattr(store, "read_object", environment.read_object)
        patch.setattr(store, "replace", environment.replace)
        patch.setattr(store, "remove", environment.remove)
        yield


def allowed_in(environment, patience):
    world = environment.world
    gpus = [
        {
            "index": index,
            "uuid": name,
            "model": "A100",
            "devices": [name],
            "nodes": [],
            "minor": index if world.watched else None,
        }
        for index, name in enumerate(world.devices)
    ]
    allowed = Policy(
        {
            "version": policy.VERSION,
            "allocation": "exclusive" if world.exclusive else "shared",
            "gpus_per_task": 1,
            "wait_timeout": patience,
            "hijack_limit": SESSION_LIMIT,
            "privileged_tasks": "no-gpu",
            "vendor": "nvidia",
            "nvidia_runtime": "/r",
            "config_home": "/c",
            "cordons": [],
            "gpus": gpus,
        }
    )
    allowed.unavailable_folders = Records(environment)
    return allowed


def decide(environment, container, number=None, *, kind="create", patience=240, look=None):
    """Have the real code decide on a call for a container; what came of it.

    Args:
        environment: the call's.
        container: which.
        number: of the exec; None if it is none.
        kind: what that call does, if it is no exec: `create`, `reserve` or `give back`.
        patience: for how long a create may wait, in seconds.
        look: the mark of a look that is over, and what it says of each holder.
    """
    world = environment.world
    environment.look, host = None, Host(environment)
    host.mark, host.looked = (look[0], {**look[1]}) if look else (None, {})
    whose = "exec" if number is not None else "create"
    if kind in ("reserve", "give back"):
        whose = "self-test"
    environment.me = world.deciding = world.pid(container, whose, number or 0)
    world.deciding_since = begun(world, container, number, whose)
    environment.slept, environment.effects, environment.reads = 0.0, 0, 0
    environment.used = [each.name for each in world.containers if world.in_use(each)]
    decision = Decision(container.name)
    decision.asked = container.count
    try:
        if not _carry_out(environment, host, container, number, kind, decision, patience):
            return "refused", []
    except Looks as looks:
        environment.look = looks.args
        return "looks", []
    except Parked:
        return "waits", []
    except Refused:
        return "refused", []
    except Killed:
        return "killed", []
    finally:
        world.deciding = 0
    return "granted", decision.granted


def begun(world, container, number, whose):
    """When the call was that decides; it begins now unless it waits already."""
    if whose == "self-test":
        return 0
    caller = container if number is None else container.execs[number]
    if caller.phase not in ("wait", "looks"):
        caller.begun = world.clock
    return caller.begun


def _carry_out(environment, host, container, number, kind, decision, patience):
    """Whether it was granted, if that is not told by an exception."""
    shelf = store.Store("/store", environment)
    allowed = allowed_in(environment, patience)
    if kind == "reserve":
        return not reserve.claim(shelf, host, allowed, container.name, container.reserves)
    if kind == "give back":
        container.held = False  # what is left in it may be killed
        reserve.give_back(shelf, host, container.name)
    elif number is not None:
        broker.resume(shelf, host, lambda: allowed, decision)
    elif container.count == 0:
        nothing = Grant(allowed, [])
        broker.do_without(shelf, host, container.name, container.bundle, nothing)
    else:
        policies = iter(lambda: allowed, None)
        bundle = "" if container.kind == "job" else container.bundle
        request = broker.Request(container.name, bundle, container.cgroup)
        request.kind, request.named = container.kind, container.named
        broker.acquire(shelf, host, policies, request, decision)
    return True
