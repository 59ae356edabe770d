# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whether a container uses its devices, and the end of what it left: read from /proc and cgroups.

The files that tell are containerd's and the kernel's own: `<bundle>/init.pid` and one
`<bundle>/<exec id>.pid` for each process that runs (containerd 2.3.1
cmd/containerd-shim-runc-v2/process), and the control group, which a process can't leave.
"""

from __future__ import annotations

import os
import time

from gpuci.leases import Call, Holder
from gpuci.signals import Process

# A container's first process comes within a second of its create. It is given this long, in
# seconds, before its devices go to somebody else.
FIRST_EXEC = 60

# How long, in seconds, processes may take to die before the container's init, and with it its
# whole PID namespace, is killed too; and how long that may take.
_PATIENCE = 1.0
_LAST_PATIENCE = 0.5


class Host:
    """The processes and control groups of this machine, cgroup v1 or v2.

    Args:
        root: where /proc lies, and what the paths of bundles and mounts are below; for recorded
            trees.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root

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

    def in_use(self, container: str, holder: Holder) -> bool:
        """Whether the holder still uses its devices.

        It does while a call of the runtime for it runs, while one of its processes lives, and for
        FIRST_EXEC seconds after its start if no process has come yet.
        """
        if any(self.alive(call) for call in holder.calls):
            return True
        init = self._pid(f"{holder.bundle}/init.pid")
        cgroup = holder.cgroup or self.cgroup(container, holder.bundle)
        if not cgroup:
            return False
        if not holder.execs and self._inside(init, cgroup):
            ticks = self._started(init)
            if ticks is not None and self.now() - ticks / os.sysconf("SC_CLK_TCK") < FIRST_EXEC:
                return True
        return bool(self._processes(holder.bundle, cgroup))

    def processes(self, container: str, holder: Holder) -> list[str]:
        """The exec ids of the holder's processes that live, such as `task`."""
        cgroup = holder.cgroup or self.cgroup(container, holder.bundle)
        return self._processes(holder.bundle, cgroup) if cgroup else []

    def cgroup(self, container: str, bundle: str) -> str:
        """The control group of a container as /proc/<pid>/cgroup shows it; empty if it is gone.

        It bears the container's name, so the process of another one that got the number of this
        one's init since can't be taken for it. Init may have moved to one below it.
        """
        parts = self._cgroup_of(f"/proc/{self._pid(f'{bundle}/init.pid')}").split("/")
        for place, part in enumerate(parts):
            # runc's own name for it, or that of its systemd driver.
            if part == container or part.endswith(f"-{container}.scope"):
                return "/".join(parts[: place + 1])
        return ""

    def clear(self, container: str, holder: Holder) -> bool:
        """Kill every process of the container but its init; whether none is left.

        A child that called setsid outlives its step. What can't be killed so, such as processes
        that fork faster than they die, goes with the container's init.
        """
        folder, init = self._group(container, holder)
        # Whoever looks next must not wait once more for what could not be killed.
        if self._end(folder, holder.cgroup, init, 0 if holder.stuck else _PATIENCE):
            return True
        return self._end(folder, holder.cgroup, set(), 0 if holder.stuck else _LAST_PATIENCE)

    def left(self, container: str, holder: Holder) -> bool:
        """Whether the container has any process but its init."""
        folder, init = self._group(container, holder)
        return not self._living(folder) <= init

    def _group(self, container: str, holder: Holder) -> tuple[str, set[int]]:
        """The folder of the holder's control group, empty if it is gone, and its init, if any."""
        # Kept, for it can't be told any more once init is gone.
        holder.cgroup = holder.cgroup or self.cgroup(container, holder.bundle)
        init = self._pid(f"{holder.bundle}/init.pid")
        inside = holder.cgroup and self._inside(init, holder.cgroup)
        return self._folder(holder.cgroup) if holder.cgroup else "", {init} if inside else set()

    def end_calls(self, holder: Holder) -> None:
        """Kill the runtime's calls for a holder that still run."""
        for call in holder.calls:
            try:
                process = Process(call[0])
            except OSError:  # it is gone
                continue
            if self.alive(call):
                process.kill()
            process.close()

    def _end(self, folder: str, cgroup: str, spared: set[int], patience: float) -> bool:
        deadline = self.now() + patience
        while left := self._living(folder) - spared:
            for pid in left:
                self._kill(pid, cgroup)
            if self.now() > deadline:
                return False
            time.sleep(0.005)
        return True

    def _kill(self, pid: int, cgroup: str) -> None:
        try:
            process = Process(pid)
        except OSError:  # it is gone
            return
        # Looked at after taking hold of it: it is this process now, or it is gone.
        if self._inside(pid, cgroup):
            process.kill()
        process.close()

    def _living(self, folder: str) -> set[int]:
        """The processes in a control group and below it; the kernel lists no dead ones.

        Looking at them once more here would lose one that forks and ends in between.
        """
        found: set[int] = set()
        if not folder:
            return found
        try:
            with open(f"{folder}/cgroup.procs", encoding="ascii") as file:
                found.update(map(int, file.read().split()))
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        found |= self._living(entry.path)
        except OSError:  # a control group that goes away takes its files with it
            pass
        return found

    def _processes(self, bundle: str, cgroup: str) -> list[str]:
        try:
            names = os.listdir(self._root + bundle)
        except OSError:
            return []
        return [
            name[: -len(".pid")]
            for name in sorted(names)
            if name.endswith(".pid")
            and name != "init.pid"
            and self._inside(pid := self._pid(f"{bundle}/{name}"), cgroup)
            and self._started(pid) is not None
        ]

    def _pid(self, path: str) -> int:
        """The process id in a file; 0 if it has none."""
        text = self._read(path).strip()
        return int(text) if text.isdecimal() and len(text) < 10 else 0

    def _inside(self, pid: int, cgroup: str) -> bool:
        if not pid:
            return False
        process = f"/proc/{pid}"
        if _is_below(self._cgroup_of(process), cgroup):
            return True
        # In v1 a process whose first thread has ended is in the root group; its others tell.
        try:
            threads = os.listdir(f"{self._root}{process}/task")
        except OSError:
            return False
        return any(
            _is_below(self._cgroup_of(f"{process}/task/{thread}"), cgroup) for thread in threads
        )

    def _cgroup_of(self, process: str) -> str:
        """The control group that decides on devices: v1's of that name, or v2's only one."""
        found = ""
        for line in self._read(f"{process}/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if "devices" in controllers.split(","):
                return path
            if not controllers:
                found = path
        return found

    def _folder(self, cgroup: str) -> str:
        """Where the control group lies among the mounts (proc(5)); empty if it is gone."""
        unified = ""
        for line in self._read("/proc/self/mountinfo").splitlines():
            mount, _, source = line.partition(" - ")
            kind, _, options = source.split(" ", 2)
            top, point = mount.split(" ")[3:5]
            below = cgroup[len(top) :] if cgroup.startswith(f"{top}/") and top != "/" else cgroup
            if kind == "cgroup" and "devices" in options.rpartition(" ")[2].split(","):
                return self._existing(point + below)
            if kind == "cgroup2" and not unified:
                unified = point + below
        return self._existing(unified) if unified else ""

    def _existing(self, folder: str) -> str:
        return self._root + folder if os.path.isdir(self._root + folder) else ""

    def _started(self, pid: int) -> int | None:
        """Start of a living process in clock ticks since boot; None if it is gone or dead.

        Fields 3, 20 and 22 of /proc/<pid>/stat (proc(5)); the name in field 2 ends with the last
        `)`. A process whose first thread has ended shows Z too, but has other threads.
        """
        fields = self._read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if len(fields) < 20 or (fields[0] in "XZ" and int(fields[17]) < 2):
            return None
        return int(fields[19])

    def _read(self, path: str) -> str:
        try:
            with open(self._root + path, "rb", buffering=0) as file:
                return file.readall().decode(errors="replace")
        except OSError:  # what goes away takes its files with it
            return ""


def _is_below(path: str, cgroup: str) -> bool:
    return path == cgroup or path.startswith(f"{cgroup}/")
