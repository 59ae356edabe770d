# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whether a holder uses its devices, and its end: read from /proc and control groups.

The files that tell are containerd's and the kernel's own: `<bundle>/init.pid` and one
`<bundle>/<exec id>.pid` for each process that runs (containerd 2.3.1
cmd/containerd-shim-runc-v2/process). podman has the id of the first process elsewhere (runc's
--pid-file), a job has its control group alone.

A process is inside if its control group in any hierarchy is the container's, or below it; or if it
is in the PID namespace that the container's first process is the first of. In a user namespace
with cgroup v1 one of these is all there is (see groups), and a step as root of the machine may
leave its groups. A namespace that others have too, such as the machine's, is no evidence.

Only "there is no such thing" means that something is gone. Any other error is raised, and refuses:
taken for absence, it would end a job that runs and give its devices away.
"""

from __future__ import annotations

import _thread
import errno
import os
import time

from gpu_runtime import cgroups as groups
from gpu_runtime import proc
from gpu_runtime.lease_table import JOB, STEP, Call, Holder, names_container
from gpu_runtime.signals import Process

# A container and its first process come within seconds of the grant. This long, in seconds, a
# start or an exec may take before the devices go to somebody else: a hook can be made to hang.
STARTING = 60

# How runc calls a container's first process until that is started, which `runc create` alone does
# not do (runc 1.0 to 1.5 libcontainer/nsenter/nsexec.c).
_NOT_STARTED = "runc:["

# How long, in seconds, a container may take to die.
_PATIENCE = 1.5


class _Marks:
    """What the processes of a container or job are known by.

    Attributes:
        paths: those of its control groups, by hierarchy; none: it is gone.
        init: its first process; 0: that is gone, or nobody tells.
        started: when that was started, in clock ticks since boot; 0 before anybody has asked.
        namespace: the PID namespace that is its own; empty: it has none, or none is known yet.
    """

    __slots__ = ("init", "namespace", "paths", "started")

    def __init__(self, paths: dict[str, str], init: int) -> None:
        self.paths = paths
        self.init = init
        self.started = 0
        self.namespace = ""


class Host:
    """The processes and control groups of this machine, cgroup v1 or v2.

    Attributes:
        intruders: the containers and jobs that `look` has ended because they had a device of
            another's lease open.
        looked: the holders of which `look` has seen who has their devices open: why these can't
            go on to others, or empty.
        mark: what these holders are marked with meanwhile, as Holder.handing; see
            lease_scheduler.decide.

    Args:
        root: where /proc lies, and what the paths of bundles and mounts are below; for recorded
            trees.
    """

    def __init__(self, root: str = "") -> None:
        self.intruders: list[str] = []
        self.looked: dict[str, str] = {}
        self.mark: tuple[Call, float] | None = None
        self._root = root
        self._ticks = os.sysconf("SC_CLK_TCK")

    def alive(self, call: Call) -> bool:
        """Whether that very process lives."""
        return self._started(call[0]) == call[1]

    def me(self) -> Call:
        """This process; it stays the same one through exec."""
        pid = os.getpid()
        return pid, self._started(pid) or 0

    @staticmethod
    def now() -> float:
        """Seconds since boot; no change of the clock touches them."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def age(self, pid: int) -> float:
        """Seconds since a process was started; infinite if it is gone or dead."""
        started = self._started(pid)
        return float("inf") if started is None else self.now() - started / self._ticks

    def in_use(self, container: str, holder: Holder) -> bool:
        """Whether the holder still uses its devices.

        It does while the process lives that keeps them for it; while a call of the runtime starts
        it or a process in it, for STARTING seconds; for as long after its grant if no process has
        come yet; while its step lives; and while sessions that people have in it live, for its
        session limit after the step. The first look that finds the step over is noted in it.

        Another kind of holder uses them while such a process or call lives, and then: an engine's
        container while its first process does, or, where nobody tells which that is, any; a job
        while anything lives in its control group. The container's program may take STARTING
        seconds to be started, and so may the job's group to come.

        Raises:
            OSError: that can't be told.
            ValueError: the same.
        """
        kept = bool(holder.keeper) and self.alive(holder.keeper)
        if kept or any(self._is_starting(call, holder) for call in holder.calls):
            return True
        marks = self._marks(container, holder)
        if holder.kind != STEP:
            return self._lives(holder, marks)
        if not marks.paths:
            return False
        if not holder.execs and self.now() - holder.since < STARTING:
            return self._inside(self._pid(f"{holder.bundle}/init.pid"), marks)
        names = self._processes(holder.bundle, marks)
        if not names or not all(map(_is_session, names)):
            return bool(names)
        holder.step_ended = holder.step_ended or self.now()
        over = self.now() - holder.step_ended
        return not holder.session_limit or over < holder.session_limit

    def _lives(self, holder: Holder, marks: _Marks) -> bool:
        """Whether a container of an engine, or a job, that nothing starts any more, lives."""
        init, is_new = self._init(holder), self.now() - holder.since < STARTING
        if init:
            inside = self._inside(init, marks) and self._started(init) is not None
            living = {init} if inside else set[int]()
        else:
            living = self._in_groups(marks)
        if holder.kind == JOB:
            # A call that starts a container lives until that is there; a job's unit comes later.
            holder.execs |= bool(living)
            return bool(living) or (is_new and not holder.execs)
        return bool(living) and (is_new or any(map(self._is_begun, living)))

    def _is_begun(self, init: int) -> bool:
        """Whether a container's own program runs: its engine may be killed before it starts it."""
        return not proc.read(f"{self._root}/proc/{init}/comm").startswith(_NOT_STARTED)

    def processes(self, container: str, holder: Holder) -> list[str]:
        """The exec ids of a step's processes that live, such as `task`; none of other kinds."""
        if holder.kind != STEP:
            return []
        return self._processes(holder.bundle, self._marks(container, holder))

    def steps(self, container: str, bundle: str) -> list[int]:
        """Ids of the processes of a container's steps that live; not of people's sessions in it.

        Raises:
            OSError: that can't be told.
            ValueError: the same.
        """
        marks = self._told(container, bundle)
        names = self._processes(bundle, marks)
        pids = [self._pid(f"{bundle}/{name}.pid") for name in names if not _is_session(name)]
        return [pid for pid in pids if self._inside(pid, marks)]

    def is_in(self, pid: int, container: str, bundle: str) -> bool:
        """Whether a process lives and is one of a container's.

        Raises:
            OSError: that can't be told.
            ValueError: the same.
        """
        marks = self._told(container, bundle)
        return self._inside(pid, marks) and self._started(pid) is not None

    def end_steps(self, container: str, bundle: str) -> None:
        """Kill what runs in a container but its init and people's sessions in it.

        Raises:
            OSError: what runs there can't be told.
            ValueError: the same.
        """
        marks = self._told(container, bundle)
        names = self._processes(bundle, marks)
        sessions = {str(self._pid(f"{bundle}/{name}.pid")) for name in names if _is_session(name)}
        for pid in self._all(marks) - {marks.init}:
            fields = self._stat(pid)
            # Each exec begins a session of its own (setsid(2)); field 6 is its number.
            if fields and fields[3] not in sessions:
                self._kill(pid, marks)

    def note_groups(self, container: str, holder: Holder) -> None:
        """Note a holder's control groups in it while its first process tells them.

        Raises:
            OSError: that can't be told.
            ValueError: the same.
        """
        self._note(holder, self._marks(container, holder))

    def planned_cgroup(self, container: str, cgroups_path: str) -> str:
        """The control group that runc, called by this process, makes for a container.

        Without one a start that hangs before init is told could not be ended.

        Args:
            container: its id.
            cgroups_path: `linux.cgroupsPath` of its spec. A relative path is below the caller's
                group in v1 and beside it in v2, an empty one is the id (runc 1.1.5 to 1.5
                libcontainer/cgroups/fs/paths.go and fs2/defaultpath.go). `slice:prefix:id` is
                for its systemd driver (systemd/common.go).

        Returns:
            Empty where it is not told.
        """
        if ":" in cgroups_path:
            return groups.scope(container, cgroups_path)
        # normpath would leave two slashes at the beginning alone.
        path = os.path.normpath("/" + (cgroups_path or container).lstrip("/"))
        if not cgroups_path.startswith("/"):
            found, is_v2 = groups.of(self._root, "/proc/self")
            own = found.get(groups.DEVICES, "")
            path = (os.path.dirname(own) if is_v2 else own).rstrip("/") + path
        return path if names_container(path, container) else ""

    def clear(self, container: str, holder: Holder) -> bool:
        """End the container as a whole, its init too; whether it was seen to be empty.

        Raises:
            OSError: what is left can't be told.
        """
        self._end_calls(holder)
        # Noted, for it can't be told any more once init is gone.
        marks = self._marks(container, holder)
        self._note(holder, marks)
        if not marks.paths:
            return True
        # Whoever looks next must not wait once more for what could not be killed.
        patience = 0 if holder.stuck else _PATIENCE
        self._find_namespace(marks)
        if marks.init:
            self._kill(marks.init, marks)  # the kernel ends its PID namespace with it
        return self._end(marks, patience)

    def look(self, ending: dict[str, Holder], leased: list[str]) -> None:
        """Look who has devices of holders open that have ended; note it in `looked`.

        Other containers and jobs that have one open without a right to are ended. It takes no
        longer than handover.PATIENCE, whatever processes do, and must hold no lock.

        Args:
            ending: the holders by their names.
            leased: the control groups of all others.
        """
        from gpu_runtime import handover  # noqa: PLC0415 - what gets a device that is free needs none

        look = handover.Look(self._root, ending, leased)
        over = _thread.allocate_lock()
        over.acquire()

        def work() -> None:
            try:
                look.run(self.now() + handover.PATIENCE)
            finally:
                over.release()

        # A read of another process's /proc can hang, as where its memory is being mapped.
        _thread.start_new_thread(work, ())
        over.acquire(timeout=handover.PATIENCE + 1)
        if not look.is_over:
            look.give_up()
        self.intruders += look.intruders
        self.looked |= {name: look.withheld.get(name, "") for name in ending}

    def is_gone(self, container: str, holder: Holder) -> bool:
        """Whether no process of the holder's container is left, and none is to come."""
        if self.in_use(container, holder):
            return False
        return not self._all(self._marks(container, holder))

    def has_leftovers(self, container: str, holder: Holder) -> bool:
        """Whether the container has any process but its init."""
        return not self._all(self._marks(container, holder)) <= {self._init(holder)}

    def state(self, container: str, holder: Holder) -> str:
        """The states of the container's processes as letters of /proc/<pid>/stat, such as `DS`."""
        living = self._all(self._marks(container, holder))
        return "".join(sorted({fields[0] for pid in living if (fields := self._stat(pid))}))

    def _told(self, container: str, bundle: str, pid_file: str = "") -> _Marks:
        """What the first process of a container tells that its processes are known by.

        Its groups bear the container's name, so the process of another one that got the number of
        this one's init since can't be taken for it.
        """
        init = self._pid(pid_file or f"{bundle}/init.pid")
        found, _ = groups.of(self._root, f"/proc/{init}")
        paths = {
            hierarchy: path
            for hierarchy, its in found.items()
            if (path := groups.of_container(its, container))
        }
        return _Marks(paths, init if paths else 0)

    def _marks(self, container: str, holder: Holder) -> _Marks:
        """What a holder's processes are known by: as its init tells, or else as was noted."""
        if holder.kind != JOB:
            marks = self._told(container, holder.bundle, holder.pid_file)
            if marks.paths:
                return marks
        noted = {groups.DEVICES: holder.cgroup, groups.UNIFIED: holder.unified}
        return _Marks({hierarchy: path for hierarchy, path in noted.items() if path}, 0)

    @staticmethod
    def _note(holder: Holder, marks: _Marks) -> None:
        holder.cgroup = marks.paths.get(groups.DEVICES, holder.cgroup)
        holder.unified = marks.paths.get(groups.UNIFIED, holder.unified)

    def _init(self, holder: Holder) -> int:
        """The id of a container's first process as its runtime noted it; 0: nobody did."""
        if holder.kind == JOB:
            return 0
        return self._pid(holder.pid_file or f"{holder.bundle}/init.pid")

    def _is_starting(self, call: Call, holder: Holder) -> bool:
        begun = max(call[1] / self._ticks, holder.since)
        return self.now() - begun < STARTING and self.alive(call)

    def _end_calls(self, holder: Holder) -> None:
        """Kill the runtime's calls for a holder that still run: they would go on to start it."""
        for call in [*holder.calls, *([holder.keeper] if holder.keeper else [])]:
            try:
                process = Process(call[0])
            except ProcessLookupError:
                continue
            if self.alive(call):
                process.kill()
            process.close()

    def _end(self, marks: _Marks, patience: float) -> bool:
        """Kill all processes of a container; whether none is left within so many seconds."""
        deadline = self.now() + patience
        folders = groups.folders(self._root, marks.paths)
        while left := self._in(folders) or self._in_namespace(marks):
            for pid in left:
                self._kill(pid, marks)
            if self.now() > deadline:
                return False
            time.sleep(0.005)
        return True

    def _kill(self, pid: int, marks: _Marks) -> None:
        try:
            process = Process(pid)
        except ProcessLookupError:
            return
        # Looked at after taking hold of it: it is this process now, or it is gone.
        if self._inside(pid, marks):
            process.kill()
        process.close()

    def _all(self, marks: _Marks) -> set[int]:
        """The processes of a container that live."""
        return self._in_groups(marks) | self._in_namespace(marks)

    def _in_groups(self, marks: _Marks) -> set[int]:
        """The processes in a container's control groups, of all hierarchies."""
        return self._in(groups.folders(self._root, marks.paths)) if marks.paths else set()

    def _in(self, folders: list[str]) -> set[int]:
        return set[int]().union(*map(self._living, folders))

    def _living(self, folder: str) -> set[int]:
        """The processes in a control group and below it; the kernel lists no dead ones.

        Looking at them once more here would lose one that forks and ends in between.
        """
        if not folder:
            return set()
        try:
            found = {int(pid) for pid in proc.read(f"{folder}/cgroup.procs").split()}
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            # In a threaded group of v2 (cgroups(7)), which lists its threads alone.
            threads = proc.read(f"{folder}/cgroup.threads").split()
            found = {process for thread in threads if (process := self._process_of(thread))}
        for below in proc.folders(folder):
            found |= self._living(below)
        return found

    def _process_of(self, thread: str) -> int:
        """The process that a thread is of; 0 if it is gone."""
        status = proc.read(f"{self._root}/proc/{thread}/status")
        return int(status.partition("\nTgid:")[2].split()[0]) if status else 0

    def _in_namespace(self, marks: _Marks) -> set[int]:
        """The processes in a container's own PID namespace that live, but the first.

        There are none when that has ended: the kernel ends it last.
        """
        self._find_namespace(marks)
        if not marks.namespace or self._started(marks.init) != marks.started:
            return set()
        return {
            pid
            for name in proc.names(f"{self._root}/proc")
            if name.isdecimal()
            and (pid := int(name)) != marks.init
            and self._is_in_namespace(pid, marks)
            and self._started(pid) is not None
        }

    def _is_in_namespace(self, pid: int, marks: _Marks) -> bool:
        """Whether a process is in a container's own PID namespace."""
        self._find_namespace(marks)
        if not marks.namespace:
            return False
        try:
            its = self._namespace(pid)
        except PermissionError:
            # In a system container: of one of its host's root, and of one that has ended and could
            # not be dumped. Who is at another depth of namespaces is not in this one.
            depths = {len(self._numbers(one)) for one in (pid, marks.init)}
            if len(depths) > 1 or self._started(pid) is None:
                return False
            raise
        # The namespace's number may be another's as soon as its first process is gone.
        return its == marks.namespace and self._started(marks.init) == marks.started

    def _find_namespace(self, marks: _Marks) -> None:
        """Find the PID namespace that a container's first process is the first of."""
        if not marks.init or marks.started:
            return
        started, namespace = self._started(marks.init), self._namespace(marks.init)
        is_first = self._numbers(marks.init)[1:2] == ["1"]
        found, _ = groups.of(self._root, f"/proc/{marks.init}")
        # Looked at last: it was the container's all the while.
        if started is not None and _is_below(found, marks.paths):
            marks.started = started
            marks.namespace = namespace if is_first else ""

    def _namespace(self, pid: int) -> str:
        """The PID namespace of a process; empty if it is gone."""
        folder = f"{self._root}/proc/{pid}"
        try:
            return proc.link(f"{folder}/ns/pid")
        except PermissionError:
            # Seen in a system container, Linux 6.18.44: of a thread that has ended it is not told,
            # and the first may end alone (kernel/ptrace.c __ptrace_may_access).
            for thread in proc.names(f"{folder}/task"):
                try:
                    if namespace := proc.link(f"{folder}/task/{thread}/ns/pid"):
                        return namespace
                except PermissionError:
                    continue
            raise

    def _numbers(self, pid: int) -> list[str]:
        """A process's number in each PID namespace from this one on; none if it is gone."""
        status = proc.read(f"{self._root}/proc/{pid}/status")
        return status.partition("\nNSpid:")[2].partition("\n")[0].split()

    def _processes(self, bundle: str, marks: _Marks) -> list[str]:
        if not marks.paths:
            return []
        return [
            name[: -len(".pid")]
            for name in sorted(proc.names(self._root + bundle))
            if name.endswith(".pid")
            and name != "init.pid"
            and self._inside(pid := self._pid(f"{bundle}/{name}"), marks)
            and self._started(pid) is not None
        ]

    def _pid(self, path: str) -> int:
        """The process id in a file; 0 if there is no such file.

        Raises:
            ValueError: something else is in it.
        """
        text = proc.read(self._root + path)
        if not text:
            return 0
        if not (text.isascii() and text.strip().isdecimal() and len(text) < 12):
            raise ValueError(f"{path} holds {text[:40]!r} and no process id")
        return int(text)

    def _inside(self, pid: int, marks: _Marks) -> bool:
        if not (pid and marks.paths):
            return False
        process = f"/proc/{pid}"
        found, _ = groups.of(self._root, process)
        if _is_below(found, marks.paths):
            return True
        # In v1 a process whose first thread has ended is in the root group; its others tell.
        return any(
            _is_below(groups.of(self._root, f"{process}/task/{thread}")[0], marks.paths)
            for thread in proc.names(f"{self._root}{process}/task")
        ) or (bool(found) and self._is_in_namespace(pid, marks))

    def _started(self, pid: int) -> int | None:
        """Start of a living process in clock ticks since boot; None if it is gone or dead.

        A process whose first thread has ended shows Z too, but has other threads.
        """
        fields = self._stat(pid)
        if not fields or (fields[0] in "XZ" and int(fields[17]) < 2):
            return None
        return int(fields[19])

    def _stat(self, pid: int) -> list[str]:
        """Fields 3 and on of /proc/<pid>/stat (proc(5)); empty if it is gone.

        The name in field 2 ends with the last `)`.
        """
        return proc.read(f"{self._root}/proc/{pid}/stat").rpartition(")")[2].split()


def _is_below(found: dict[str, str], cgroups: dict[str, str]) -> bool:
    """Whether one of the groups found is, in its hierarchy, one of these or below it."""
    return any(
        hierarchy in found and groups.is_below(found[hierarchy], path)
        for hierarchy, path in cgroups.items()
    )


def _is_session(name: str) -> bool:
    """Whether an exec id is a session's, such as a hijack's.

    Concourse calls a step's process `task`; what has no name in a request gets a UUID (8.3.0
    atc/worker/gardenruntime/container.go, worker/runtime/container.go).
    """
    return len(name) == 36 and name.count("-") == 4
