# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A worker as leases see it: containers, calls of runc, processes, files. See lease_model."""

import copy
import json

DEVICES = ["GPU-0", "GPU-1", "GPU-2"]
START, MINUTE, TICKS = 1000, 61, 100
# So many seconds, less than a MINUTE, a session keeps devices after its step.
SESSION_LIMIT = 60
SESSION = "7d3f1c5e-0000-4000-8000-00000000000{}"
CREATE_RUNS = ("call", "init", "filed")
EXEC_RUNS = ("call", "born", "filed")
LONGEST_LOOK = 60  # less than a MINUTE, too
EXECED = ("born", "filed", "runs", "lost")


_PIDS = {
    "create": 1, "init": 2, "self-test": 3, "forked": 4, "exec": 11, "process": 12, "child": 13,
}  # fmt: skip


class Broken(AssertionError):
    """What must be so is not."""


class Exec:
    """A process that somebody starts in a container.

    phase: idle, call (admitted), born (it lives), filed (and its pid file tells), runs (the call
    is over), lost (the call was killed before the pid file), over, refused. child: a process of
    its own session that it left. stale: its pid file outlived it. begun: when its call was.
    """

    def __init__(self, phase="idle", child=False, stale=False, begun=0):
        self.phase, self.child, self.stale, self.begun = phase, child, stale, begun

    @property
    def key(self):
        return self.phase, self.child, self.stale, self.begun


class Container:
    """A container that somebody creates.

    phase: idle, reserved (for it, by the self-test), wait (for devices), call (granted), init (it
    lives), filed (and init.pid tells), made (the call is over), dead (killed, not deleted), orphan
    (the call was killed before init.pid), over (never came to be), gone (deleted). held: whether
    who reserved its devices lives and has not given them back. begun, granted: when its create
    was called, and when its devices were granted last. overtaken: how often one that came later
    was served while it waits. denied: when its sessions alone first let another one wait. From
    the exec with the number `sessions` on, execs are sessions.

    kind: `step`; `container`, of an engine; or `job`, a unit of systemd's whose first process is
    the init here. Of a job there is more: pending (the call was killed, and systemd starts the
    unit all the same, or not). forked: whether init left a process of its own session. bare: init
    has no PID namespace of its own, so nothing dies with it. asks: what the self-test is about
    to do while it looks who has devices open. named: the very devices that it
    asks for. begun_own: whether the program of an engine's container was started, after which
    alone its init is more than the runtime's own.
    """

    def __init__(
        self,
        name,
        count=1,
        execs=1,
        tries=1,
        immortal=False,
        later=None,
        reserves=(),
        sessions=9,
        kind="step",
        bare=False,
        named=(),
    ):
        self.name, self.count, self.tries, self.immortal = name, count, tries, immortal
        self.kind, self.bare, self.named = kind, bare or kind == "job", list(named)
        self.count, self.forked, self.begun_own = len(named) or count, False, False
        self.later = later  # how many it asks for when it is created anew, if that differs
        self.reserves, self.held, self.sessions = list(reserves), False, sessions
        self.phase, self.attempt, self.born = "idle", 0, 0
        self.begun, self.granted, self.overtaken, self.denied = 0, 0, 0, 0
        self.execs = [Exec() for _ in range(execs)]
        self.ids, self.alone, self.come = [], True, False
        self.asks = ""

    @property
    def key(self):
        execs = tuple(each.key for each in self.execs)
        told = (tuple(self.ids), self.alone, self.come, self.held, self.forked)
        told += (self.begun_own, self.asks)
        times = (self.born, self.begun, self.granted, self.overtaken, self.denied)
        return self.phase, self.attempt, times, self.tries, execs, told

    @property
    def bundle(self):
        return f"/b/{self.name}"

    @property
    def cgroup(self):
        return f"/garden/{self.name}"

    @property
    def has_init(self):
        return self.phase in ("init", "filed", "made", "orphan")

    @property
    def uses(self):
        """Whether something runs in it: a pipeline can own its init too."""
        if self.has_init or self.forked:
            return True
        return any(each.phase in EXECED or each.child for each in self.execs)

    @property
    def is_stuck(self):
        """Whether it has processes that can't be killed."""
        return self.immortal and self.uses

    def in_use(self, clock, step_ended=0, expected_since=None):
        """Whether the rules say that a lease of it goes on.

        Args:
            clock: now.
            step_ended: when somebody first saw that nothing but sessions is left; 0: nobody did.
            expected_since: since when a job is to come that nobody has seen run; None: it is not.
        """
        if self.count == 0:
            return False
        if self.held or (self.phase in CREATE_RUNS and clock - max(self.begun, self.granted) < 60):
            return True
        if any(each.phase in EXEC_RUNS and clock - each.begun < 60 for each in self.execs):
            return True
        if self.kind == "job":
            return self.uses or (expected_since is not None and clock - expected_since < 60)
        if self.kind == "container":
            is_own = self.begun_own or clock - self.granted < 60
            return self.uses and self.phase != "dead" and is_own
        if self.phase in ("filed", "made") and not self.come and clock - self.granted < 60:
            return True
        if self.has_sessions_alone:
            return not step_ended or clock - step_ended < SESSION_LIMIT
        return bool(self.told)

    @property
    def told(self):
        """The numbers of the execs that live and whose pid files tell."""
        return [n for n, each in enumerate(self.execs) if each.phase in ("filed", "runs")]

    @property
    def has_sessions_alone(self):
        return bool(self.told) and min(self.told) >= self.sessions

    def exec_name(self, number):
        """The exec id."""
        return SESSION.format(number) if number >= self.sessions else f"exec{number}"

    def begin_anew(self):
        """It is created once more, under the same id."""
        self.tries -= 1
        self.attempt += 1
        self.execs = [type(each)() for each in self.execs]
        self.phase, self.come, self.granted, self.begun_own = "idle", False, 0, False
        self.count = self.count if self.later is None else self.later

    def end_init(self):
        """Its first process ends."""
        told = self.phase in ("filed", "made") or self.kind == "job"
        self.phase = "dead" if told else "over"
        if not self.bare:
            self.end_processes()

    def end_processes(self):
        self.forked = False
        for each in self.execs:
            if each.phase in ("born", "filed", "runs", "lost"):
                each.phase = "over"
            each.child = False


class World:
    """All of it. `budget` is how often what would go on for ever may still happen.

    watched: whether who has a device open is looked for before it goes on. looks: the looks that
    are under way: (container's index, exec's number, kind of decision) -> mark, holders' names.
    """

    def __init__(self, containers, exclusive=True, devices=2, watched=False, **budget):
        self.containers, self.exclusive, self.devices = containers, exclusive, DEVICES[:devices]
        self.budget, self.watched, self.looks = budget, watched, {}
        self.withheld = ()  # the holders of which the look at hand says that they can't go on
        self.table, self.records, self.clock, self.reused = None, {}, START, {}
        self.quarantined = []
        self.deciding, self.deciding_since, self._arrived = 0, 0, ()

    @property
    def key(self):
        return (
            *(container.key for container in self.containers),
            json.dumps(self.table),
            *(name for name, record in sorted(self.records.items()) if record),
            self.queue,
            (self.clock, tuple(self.reused), self.exclusive, tuple(self.budget.values())),
            *self.quarantined,
            json.dumps([[*key, *look] for key, look in self.looks.items()]),
        )

    def copy(self):
        other = copy.copy(self)
        other.containers = [copy.copy(each) for each in self.containers]
        for each in other.containers:
            each.execs = [copy.copy(execed) for execed in each.execs]
        # Files are replaced and never changed, so worlds may share them.
        other.budget, other.records = {**self.budget}, {**self.records}
        other.reused, other.looks = {**self.reused}, {**self.looks}
        return other

    @property
    def usable(self):
        """The devices that tasks may have."""
        return [device for device in self.devices if device not in self.quarantined]

    @property
    def queue(self):
        """The names of those that wait, the oldest first."""
        return tuple(name for name in self._arrived if self.named(name).phase in ("wait", "looks"))

    @queue.setter
    def queue(self, names):
        self._arrived = names

    def named(self, name):
        return next(each for each in self.containers if each.name == name)

    def pid(self, container, what, number=0):
        base = 1000 * (self.containers.index(container) + 1) + 100 * container.attempt
        return base + _PIDS[what] + 10 * number

    def processes(self):
        """Those that live: pid -> start in ticks, control group."""
        found = {**self.reused}
        if self.deciding:
            found[self.deciding] = (self.deciding_since * TICKS, "/worker")
        for each in self.containers:
            found |= self._processes_of(each)
        return found

    def _processes_of(self, each):
        found = {}
        if each.phase in ("wait", "looks", *CREATE_RUNS):
            found[self.pid(each, "create")] = (each.begun * TICKS, "/worker")
        if each.held or each.asks:
            found[self.pid(each, "self-test")] = (0, "/worker")
        if each.has_init:
            found[self.pid(each, "init")] = (each.born * TICKS, each.cgroup)
        if each.forked:
            found[self.pid(each, "forked")] = (4, f"{each.cgroup}/nested")
        for number, execed in enumerate(each.execs):
            nested = f"{each.cgroup}/nested" if number else each.cgroup
            if execed.phase in ("looks", *EXEC_RUNS):
                found[self.pid(each, "exec", number)] = (execed.begun * TICKS, "/worker")
            if execed.phase in EXECED:
                found[self.pid(each, "process", number)] = (2, nested)
            if execed.child:
                found[self.pid(each, "child", number)] = (3, f"{each.cgroup}/nested")
        return found

    def files(self, container):
        """The pid files in a bundle."""
        if container.phase in ("idle", "reserved", "gone") or container.kind == "job":
            return {}
        found = {}
        if container.phase in ("filed", "made", "dead"):
            found["init.pid"] = self.pid(container, "init")
        for number, each in enumerate(container.execs):
            if each.phase in ("filed", "runs") or each.stale:
                name = container.exec_name(number)
                found[f"{name}.pid"] = self.pid(container, "process", number)
        return found

    def calls_of(self, container):
        """The runtime's calls for a container that are no longer waiting, and live."""
        found = [self.pid(container, "create")] if container.phase in CREATE_RUNS else []
        return found + [
            self.pid(container, "exec", number)
            for number, each in enumerate(container.execs)
            if each.phase in EXEC_RUNS
        ]

    @property
    def holders(self):
        """Who has a lease: by the table, or, before there is one, by the records."""
        if self.table is not None:
            return self.table["holders"]
        found = {name: record["holder"] for name, record in self.records.items()}
        return {name: holder for name, holder in found.items() if holder}

    def in_use(self, container):
        """Whether the rules say that the lease of a container goes on."""
        holder = self.holders.get(container.name, {})
        ended, seen = holder.get("step_ended", 0), holder.get("execs", False)
        # A job's call may be killed between its grant and its start.
        granted = None if seen else holder.get("since")
        return container.in_use(self.clock, ended, granted)

    def is_handed_over(self, holder, me=0):
        """Whether a process but `me`, which lives, looks who has a holder's devices open."""
        (pid, start), begun = holder.get("handing") or ((0, 0), 0)
        lives = self.processes().get(pid, (None,))[0] == start
        return pid != me and lives and self.clock - begun < LONGEST_LOOK

    def pids_in(self, container):
        """The processes in a container."""
        below = f"{container.cgroup}/"
        return [pid for pid, found in self.processes().items() if f"{found[1]}/".startswith(below)]

    def kill(self, pid):
        """SIGKILL."""
        for each in self.containers:
            runs = ("wait", "looks", *CREATE_RUNS)
            if each.phase in runs and pid == self.pid(each, "create"):
                self.kill_call(each)
            for number, execed in enumerate(each.execs):
                if execed.phase in EXEC_RUNS and pid == self.pid(each, "exec", number):
                    self.kill_call(each, number)
            if not each.immortal:
                self._kill_in(each, pid)

    def _kill_in(self, each, pid):
        if each.has_init and pid == self.pid(each, "init"):
            each.end_init()
        if each.forked and pid == self.pid(each, "forked"):
            each.forked = False
        for number, execed in enumerate(each.execs):
            if execed.phase in EXECED and pid == self.pid(each, "process", number):
                execed.phase = "over"
            if pid == self.pid(each, "child", number):
                execed.child = False

    def kill_call(self, container, number=None):
        """SIGKILL for a call of runc, whatever it is at."""
        index = self.containers.index(container)
        self.looks = {key: look for key, look in self.looks.items() if key[:2] != (index, number)}
        if number is None:
            ends = {
                "wait": "over",
                "looks": "over",
                "call": "over",
                "init": "orphan",
                "filed": "made",
            }
            if container.kind == "job":
                ends["init"] = "made"
                # What systemd was asked for it does within a minute, or not at all.
                if self.clock - container.granted < 60:
                    ends["call"] = "pending"
            container.overtaken = 0
            container.phase = ends[container.phase]
        else:
            execed = container.execs[number]
            ends = {"looks": "over", "call": "over", "born": "lost", "filed": "runs"}
            execed.phase = ends[execed.phase]

    def end_self_test(self, container):
        """It is killed, or has given back what it reserved."""
        if container.asks == "reserve":
            container.phase = "over"
        container.held, container.asks = False, ""
        index = self.containers.index(container)
        self.looks = {
            key: look
            for key, look in self.looks.items()
            if key[0] != index or key[2] not in ("reserve", "give back")
        }
        if container.phase == "reserved":
            container.phase = "over"
