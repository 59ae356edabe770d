# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whether a holder uses its devices, and how to end it: read from /proc and control groups.

The evidence is containerd's and the kernel's files: `<bundle>/init.pid` and one
`<bundle>/<exec id>.pid` for each process that runs (containerd 2.3.1
cmd/containerd-shim-runc-v2/process). podman stores the id of the first process elsewhere (runc's
--pid-file). A gpu-run command has only its control group.

A process is inside if its control group in any hierarchy is the container's or below it, or if it
is in the PID namespace that begins with the container's first process. In a user namespace with
cgroup v1 there may be only one of these (see cgroups), and a step as root of the machine may leave
its groups. A namespace that is shared, such as the machine's, proves nothing.

Only the error "not found" means that something is gone. Any other error is raised and refuses the
request. If it counted as absence, it would end a task that runs and give its devices away.
"""

from __future__ import annotations

import _thread
import errno
import os
import time

from gpu_runtime import cgroups as groups
from gpu_runtime import proc
from gpu_runtime.lease_table import STEP, UNITS, Call, Holder, names_container
from gpu_runtime.signals import Process

# A container and its first process appear within seconds of the grant. After this time, in
# seconds, the devices of a start or exec go to another request: a hook can be made to hang.
STARTING = 60

# The name that runc gives a container's first process until it is started, which `runc create`
# alone does not do (runc 1.0 to 1.5 libcontainer/nsenter/nsexec.c).
_NOT_STARTED = "runc:["

# How long, in seconds, a container may take to die.
_PATIENCE = 1.5


class _Marks:
    """The marks by which the processes of a container or gpu-run command are recognised.

    Attributes:
        paths: the paths of its control groups, by hierarchy; none: it is gone.
        init: its first process; 0: gone or unknown.
        started: when that process started, in clock ticks since boot; 0: not read yet.
        namespace: its own PID namespace; empty: it has none, or none is known yet.
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
        intruders: the containers and gpu-run commands that `look` has killed because they had a
            device of another lease open.
        looked: the holders whose devices `look` has searched for, each with the reason why the
            devices cannot be reused, or empty.
        mark: the mark of these holders during the search, as Holder.handing; see
            lease_scheduler.decide.

    Args:
        root: the folder above /proc, bundles and mounts; for recorded trees.
        files: reads the kernel's files.
    """

    def __init__(self, root: str = "", files: proc.Files = proc) -> None:
        self.intruders: list[str] = []
        self.looked: dict[str, str] = {}
        self.mark: tuple[Call, float] | None = None
        self._root, self._files = root, files
        self._ticks = os.sysconf("SC_CLK_TCK")

    def alive(self, call: Call) -> bool:
        """Whether exactly that process lives."""
        return self._started(call[0]) == call[1]

    def me(self) -> Call:
        """Return this process, which exec does not change."""
        pid = os.getpid()
        return pid, self._started(pid) or 0

    @staticmethod
    def now() -> float:
        """Return the seconds since boot, which a change of the clock does not affect."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def take_hold(self, pid: int) -> Process:
        """Take hold of the process with the number `pid`, to kill it.

        Raises:
            ProcessLookupError: it does not exist.
            OSError: the kernel refuses.
        """
        return Process(pid)

    def sleep(self, seconds: float) -> None:
        """Sleep for so many seconds, as a request that waits and a kill do."""
        time.sleep(seconds)

    def age(self, pid: int) -> float:
        """Return the seconds since a process started; infinite if it is gone or dead."""
        started = self._started(pid)
        return float("inf") if started is None else self.now() - started / self._ticks

    def in_use(self, container: str, holder: Holder) -> bool:
        """Whether the holder still uses its devices.

        A step uses them in each of these cases:

        - The process that keeps them for it lives.
        - A call of the runtime starts the container or a process in it, for STARTING seconds.
        - No process has appeared yet, for STARTING seconds after the grant.
        - A process of the step lives.
        - A session lives, for the session limit after the step. The first call that finds the step
          over records the time in the holder.

        The first two cases hold for other kinds too. An engine's container also uses them while
        its first process lives or, if that is unknown, any process. A gpu-run command uses them
        while any process lives in its control group. The container's program and the command's
        group may take STARTING seconds to appear.

        Raises:
            OSError, ValueError: /proc, a control group or a bundle cannot be read.
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
        """Whether an engine's container or a gpu-run command lives, once it has started."""
        init, is_new = self._init(holder), self.now() - holder.since < STARTING
        if init:
            inside = self._inside(init, marks) and self._started(init) is not None
            living = {init} if inside else set[int]()
        else:
            living = self._in_groups(marks)
        if holder.kind in UNITS:
            # A call that starts a container lives until it exists; a unit appears later.
            holder.execs |= bool(living)
            return bool(living) or (is_new and not holder.execs)
        return bool(living) and (is_new or any(map(self._is_begun, living)))

    def _is_begun(self, init: int) -> bool:
        """Whether a container's own program runs: the engine may be killed before it starts it."""
        return not self._files.read(f"{self._root}/proc/{init}/comm").startswith(_NOT_STARTED)

    def processes(self, container: str, holder: Holder) -> list[str]:
        """Return the exec ids of a step's living processes, such as `task`; none otherwise."""
        if holder.kind != STEP:
            return []
        return self._processes(holder.bundle, self._marks(container, holder))

    def steps(self, container: str, bundle: str) -> list[int]:
        """Return the ids of the living processes of a container's steps, without its sessions.

        Raises:
            OSError, ValueError: /proc, a control group or a bundle cannot be read.
        """
        marks = self._marks_of_init(container, bundle)
        names = self._processes(bundle, marks)
        pids = [self._pid(f"{bundle}/{name}.pid") for name in names if not _is_session(name)]
        return [pid for pid in pids if self._inside(pid, marks)]

    def is_in(self, pid: int, container: str, bundle: str) -> bool:
        """Whether a process lives and belongs to a container.

        Raises:
            OSError, ValueError: /proc, a control group or a bundle cannot be read.
        """
        marks = self._marks_of_init(container, bundle)
        return self._inside(pid, marks) and self._started(pid) is not None

    def end_steps(self, container: str, bundle: str) -> None:
        """Kill the processes of a container, except its init and its sessions.

        Raises:
            OSError, ValueError: /proc, a control group or a bundle cannot be read.
        """
        marks = self._marks_of_init(container, bundle)
        names = self._processes(bundle, marks)
        sessions = {str(self._pid(f"{bundle}/{name}.pid")) for name in names if _is_session(name)}
        for pid in self._all(marks) - {marks.init}:
            fields = self._stat(pid)
            # Each exec begins a session of its own (setsid(2)); field 6 is its number.
            if fields and fields[3] not in sessions:
                self._kill(pid, marks)

    def note_groups(self, container: str, holder: Holder) -> None:
        """Store a holder's control groups in it while its first process lives.

        Raises:
            OSError, ValueError: /proc, a control group or a bundle cannot be read.
        """
        self._note(holder, self._marks(container, holder))

    def planned_cgroup(self, container: str, cgroups_path: str) -> str:
        """Return the control group that runc, called by this process, makes for a container.

        Without it, a start that hangs before its init is known could not be ended.

        Args:
            container: its id.
            cgroups_path: `linux.cgroupsPath` of its spec. A relative path is below the caller's
                group in v1 and beside it in v2, an empty one is the id (runc 1.1.5 to 1.5
                libcontainer/cgroups/fs/paths.go and fs2/defaultpath.go). `slice:prefix:id` is
                for its systemd driver (systemd/common.go).

        Returns:
            Empty if it is not known.
        """
        if ":" in cgroups_path:
            return groups.scope(container, cgroups_path)
        # normpath would leave two slashes at the beginning alone.
        path = os.path.normpath("/" + (cgroups_path or container).lstrip("/"))
        if not cgroups_path.startswith("/"):
            found, is_v2 = self._groups("/proc/self")
            own = found.get(groups.DEVICES, "")
            path = (os.path.dirname(own) if is_v2 else own).rstrip("/") + path
        return path if names_container(path, container) else ""

    def clear(self, container: str, holder: Holder) -> bool:
        """Kill all of a container, including its init; return whether no process is left.

        Raises:
            OSError: the remaining processes cannot be read.
        """
        self._end_calls(holder)
        # Stored, because it cannot be read once init is gone.
        marks = self._marks(container, holder)
        self._note(holder, marks)
        if not marks.paths:
            return True
        # The next call must not wait again for a process that could not be killed.
        patience = 0 if holder.stuck else _PATIENCE
        self._find_namespace(marks)
        if marks.init:
            self._kill(marks.init, marks)  # the kernel ends its PID namespace with it
        return self._end(marks, patience)

    def look(self, ending: dict[str, Holder], leased: list[str]) -> None:
        """Search for processes that have devices of ended holders open; fill `looked`.

        Other containers and gpu-run commands that have one open without a right are killed. The
        search takes at most handover.PATIENCE, whatever processes do. The caller must not hold a
        lock.

        Args:
            ending: the holders by their names.
            leased: the control groups of all others.
        """
        from gpu_runtime import handover  # noqa: PLC0415 - a request that gets a free device needs none

        look = handover.Look(self._root, ending, leased)
        over = _thread.allocate_lock()
        over.acquire()

        def work() -> None:
            try:
                look.run(self.now() + handover.PATIENCE)
            finally:
                over.release()

        # A read of another process's /proc can hang, for example while its memory is being mapped.
        _thread.start_new_thread(work, ())
        over.acquire(timeout=handover.PATIENCE + 1)
        if not look.is_over:
            look.give_up()
        self.intruders += look.intruders
        self.looked |= {name: look.withheld.get(name, "") for name in ending}

    def is_gone(self, container: str, holder: Holder) -> bool:
        """Whether no process of the holder's container is left, and none will start."""
        if self.in_use(container, holder):
            return False
        return not self._all(self._marks(container, holder))

    def has_leftovers(self, container: str, holder: Holder) -> bool:
        """Whether the container has any process but its init."""
        return not self._all(self._marks(container, holder)) <= {self._init(holder)}

    def state(self, container: str, holder: Holder) -> str:
        """Return the states of the container's processes as letters of /proc/<pid>/stat: `DS`."""
        living = self._all(self._marks(container, holder))
        return "".join(sorted({fields[0] for pid in living if (fields := self._stat(pid))}))

    def _marks_of_init(self, container: str, bundle: str, pid_file: str = "") -> _Marks:
        """Return a container's marks, read from its first process.

        Its groups have the container's name. So a process of another container that got the number
        of this init is not mistaken for it.
        """
        init = self._pid(pid_file or f"{bundle}/init.pid")
        found, _ = self._groups(f"/proc/{init}")
        paths = {
            hierarchy: path
            for hierarchy, its in found.items()
            if (path := groups.of_container(its, container))
        }
        return _Marks(paths, init if paths else 0)

    def _marks(self, container: str, holder: Holder) -> _Marks:
        """Return a holder's marks: from its init or, without one, as they were stored."""
        if holder.kind not in UNITS:
            marks = self._marks_of_init(container, holder.bundle, holder.pid_file)
            if marks.paths:
                return marks
        noted = {groups.DEVICES: holder.cgroup, groups.UNIFIED: holder.unified}
        return _Marks({hierarchy: path for hierarchy, path in noted.items() if path}, 0)

    @staticmethod
    def _note(holder: Holder, marks: _Marks) -> None:
        holder.cgroup = marks.paths.get(groups.DEVICES, holder.cgroup)
        holder.unified = marks.paths.get(groups.UNIFIED, holder.unified)

    def _init(self, holder: Holder) -> int:
        """Return the id of a container's first process from its runtime's file; 0: no file."""
        if holder.kind in UNITS:
            return 0
        return self._pid(holder.pid_file or f"{holder.bundle}/init.pid")

    def _is_starting(self, call: Call, holder: Holder) -> bool:
        begun = max(call[1] / self._ticks, holder.since)
        return self.now() - begun < STARTING and self.alive(call)

    def _end_calls(self, holder: Holder) -> None:
        """Kill the runtime's calls for a holder that still run: they would start it."""
        for call in [*holder.calls, *([holder.keeper] if holder.keeper else [])]:
            try:
                process = self.take_hold(call[0])
            except ProcessLookupError:
                continue
            if self.alive(call):
                process.kill()
            process.close()

    def _end(self, marks: _Marks, patience: float) -> bool:
        """Kill all processes of a container; return whether none is left within `patience` s."""
        deadline = self.now() + patience
        folders = self._folders(marks)
        while left := self._in(folders) or self._in_namespace(marks):
            for pid in left:
                self._kill(pid, marks)
            if self.now() > deadline:
                return False
            self.sleep(0.005)
        return True

    def _kill(self, pid: int, marks: _Marks) -> None:
        try:
            process = self.take_hold(pid)
        except ProcessLookupError:
            return
        # Checked after taking hold of it: it is still this process, or it is gone.
        if self._inside(pid, marks):
            process.kill()
        process.close()

    def _all(self, marks: _Marks) -> set[int]:
        """Return the living processes of a container."""
        return self._in_groups(marks) | self._in_namespace(marks)

    def _in_groups(self, marks: _Marks) -> set[int]:
        """The processes in a container's control groups, of all hierarchies."""
        return self._in(self._folders(marks)) if marks.paths else set()

    def _groups(self, process: str) -> tuple[dict[str, str], bool]:
        """The control groups of a process, by its folder; see cgroups.of."""
        return groups.of(self._root, process, self._files)

    def _folders(self, marks: _Marks) -> list[str]:
        """The folders of a container's control groups."""
        return groups.folders(self._root, marks.paths, self._files)

    def _in(self, folders: list[str]) -> set[int]:
        return set[int]().union(*map(self._living, folders))

    def _living(self, folder: str) -> set[int]:
        """Return the processes in a control group and below it; the kernel lists no dead ones.

        A second check here would lose a process that forks and ends in between.
        """
        if not folder:
            return set()
        try:
            found = {int(pid) for pid in self._files.read(f"{folder}/cgroup.procs").split()}
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            # In a threaded group of v2 (cgroups(7)), which lists its threads alone.
            threads = self._files.read(f"{folder}/cgroup.threads").split()
            found = {process for thread in threads if (process := self._process_of(thread))}
        for below in self._files.folders(folder):
            found |= self._living(below)
        return found

    def _process_of(self, thread: str) -> int:
        """Return the process of a thread; 0 if it is gone."""
        status = self._files.read(f"{self._root}/proc/{thread}/status")
        return int(status.partition("\nTgid:")[2].split()[0]) if status else 0

    def _in_namespace(self, marks: _Marks) -> set[int]:
        """Return the living processes in a container's own PID namespace, without the first.

        There are none once the first has ended: the kernel ends it last.
        """
        self._find_namespace(marks)
        if not marks.namespace or self._started(marks.init) != marks.started:
            return set()
        return {
            pid
            for name in self._files.names(f"{self._root}/proc")
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
            # In a system container: for a process of the host's root, and for an ended process
            # that could not be dumped. A process at another depth of namespaces is elsewhere.
            depths = {len(self._numbers(one)) for one in (pid, marks.init)}
            if len(depths) > 1 or self._started(pid) is None:
                return False
            raise
        # The kernel may reuse the namespace's number as soon as its first process is gone.
        return its == marks.namespace and self._started(marks.init) == marks.started

    def _find_namespace(self, marks: _Marks) -> None:
        """Find the PID namespace that begins with a container's first process."""
        if not marks.init or marks.started:
            return
        started, namespace = self._started(marks.init), self._namespace(marks.init)
        is_first = self._numbers(marks.init)[1:2] == ["1"]
        found, _ = self._groups(f"/proc/{marks.init}")
        # Checked last: it was the container's during all of this.
        if started is not None and _is_below(found, marks.paths):
            marks.started = started
            marks.namespace = namespace if is_first else ""

    def _namespace(self, pid: int) -> str:
        """The PID namespace of a process; empty if it is gone."""
        folder = f"{self._root}/proc/{pid}"
        try:
            return self._files.link(f"{folder}/ns/pid")
        except PermissionError:
            # Seen in a system container, Linux 6.18.44: the link of an ended thread is unreadable,
            # and the first thread may end alone (kernel/ptrace.c __ptrace_may_access).
            for thread in self._files.names(f"{folder}/task"):
                try:
                    if namespace := self._files.link(f"{folder}/task/{thread}/ns/pid"):
                        return namespace
                except PermissionError:
                    continue
            raise

    def _numbers(self, pid: int) -> list[str]:
        """Return a process's number in each PID namespace from this one on; none if it is gone."""
        status = self._files.read(f"{self._root}/proc/{pid}/status")
        return status.partition("\nNSpid:")[2].partition("\n")[0].split()

    def _processes(self, bundle: str, marks: _Marks) -> list[str]:
        if not marks.paths:
            return []
        return [
            name[: -len(".pid")]
            for name in sorted(self._files.names(self._root + bundle))
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
        text = self._files.read(self._root + path)
        if not text:
            return 0
        if not (text.isascii() and text.strip().isdecimal() and len(text) < 12):
            raise ValueError(f"{path} holds {text[:40]!r} and not a process id")
        return int(text)

    def _inside(self, pid: int, marks: _Marks) -> bool:
        if not (pid and marks.paths):
            return False
        process = f"/proc/{pid}"
        found, _ = self._groups(process)
        if _is_below(found, marks.paths):
            return True
        # In v1 a process whose first thread has ended is in the root group; its others are not.
        return any(
            _is_below(self._groups(f"{process}/task/{thread}")[0], marks.paths)
            for thread in self._files.names(f"{self._root}{process}/task")
        ) or (bool(found) and self._is_in_namespace(pid, marks))

    def _started(self, pid: int) -> int | None:
        """Return when a living process started, in clock ticks since boot; None if it is dead.

        A process whose first thread has ended shows Z too, but has other threads.
        """
        fields = self._stat(pid)
        if not fields or (fields[0] in "XZ" and int(fields[17]) < 2):
            return None
        return int(fields[19])

    def _stat(self, pid: int) -> list[str]:
        """Return fields 3 and on of /proc/<pid>/stat (proc(5)); empty if it is gone.

        The name in field 2 ends with the last `)`.
        """
        return self._files.read(f"{self._root}/proc/{pid}/stat").rpartition(")")[2].split()


def _is_below(found: dict[str, str], cgroups: dict[str, str]) -> bool:
    """Whether one of the groups `found` is one of `cgroups` or below it, by hierarchy."""
    return any(
        hierarchy in found and groups.is_below(found[hierarchy], path)
        for hierarchy, path in cgroups.items()
    )


def _is_session(name: str) -> bool:
    """Whether an exec id is a session's, such as a hijack's.

    Concourse calls a step's process `task`; a process without a name gets a UUID (8.3.0
    atc/worker/gardenruntime/container.go, worker/runtime/container.go).
    """
    return len(name) == 36 and name.count("-") == 4
