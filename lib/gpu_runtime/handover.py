# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The search of a machine's processes before a device passes from one holder to the next.

The last holder has ended by then. Another process can still have the device open: a descriptor
can be sent through a socket, and device rules apply only when a device is opened.
docs/explanation/leases.md describes the consequences.
"""

from __future__ import annotations

import errno
import os
import time

from gpu_runtime import cgroups as groups
from gpu_runtime import proc
from gpu_runtime import refusal as refuse
from gpu_runtime.lease_table import STEP
from gpu_runtime.open_devices import Search, TooLongError
from gpu_runtime.signals import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from gpu_runtime.lease_table import Holder

# How long a search may take, in seconds: some millions of descriptors.
PATIENCE = 30
# How long an intruder may take to die, in seconds.
_DYING = 1.5

# How long an innocent process may have a descriptor of a device's place (open(2), O_PATH), in
# seconds. In a user namespace runc has one of each bind mount's source while it makes a container
# (runc 1.1.5 libcontainer/nsenter/nsexec.c). A process that keeps one could open the device
# outside device rules.
_MAKING = 5

# The last parts of control groups: of a CI system's containers and gpu-run commands, which get
# devices by a lease only; and of containers of engines (podman, Docker, CRI-O, containerd's CRI),
# which may have got devices in another way.
_OURS = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|gpu-run-[0-9a-f]+\.scope"
_ENGINES = r"(?:[a-z]+-)*[0-9a-f]{64}(?:\.scope)?"


class Look:
    """One search, for the devices of some holders that have ended.

    Attributes:
        intruders: the containers and gpu-run commands that were killed, by the last parts of their
            groups.
        withheld: the names of the holders whose devices cannot be reused, each with the reason.
        is_over: whether the search is complete, or has noted why not.

    Args:
        root: where /proc lies.
        ending: the holders.
        leased: the control groups of all other holders.
    """

    def __init__(self, root: str, ending: Mapping[str, Holder], leased: Collection[str]) -> None:
        self.intruders: list[str] = []
        self.withheld: dict[str, str] = {}
        self.is_over = False
        self._root, self._ending, self._leased = root, ending, leased
        self._own = {path for path, _ in self._prefixes("self")}
        self._bundles = {
            holder.cgroup.rpartition("/")[0]: {*proc.names(root + os.path.dirname(holder.bundle))}
            for holder in ending.values()
            if holder.kind == STEP
        }
        self._at = 0
        self._hosts: set[int] | None = None

    def run(self, until: float) -> None:
        """Search every process, kill intruders, and fill `withheld`; raise nothing.

        Args:
            until: when the search gives up, in seconds since boot.
        """
        try:
            nodes = [node for holder in self._ending.values() for node in holder.nodes]
            search = Search(self._root, nodes, until)
            for pid in self._pids():
                self._at = pid
                if self._has_one_open(search, pid):
                    self._judge(search, pid)
        except TooLongError:
            self.give_up()
        except (OSError, ValueError) as error:
            self._withhold(self._ending, refuse.fault(error))
        self.is_over = True

    def give_up(self) -> None:
        """Record that the time is up."""
        self._withhold(
            self._ending,
            f"the search for processes that have it open did not finish in {PATIENCE} s. It was "
            f"at {self._named(self._at)}, which hangs or has very many open files. End that "
            "process",
        )

    def _pids(self) -> list[int]:
        return sorted(int(name) for name in proc.names(f"{self._root}/proc") if name.isdecimal())

    def _has_one_open(self, search: Search, pid: int) -> bool:
        try:
            return search.has_one_open(pid)
        except PermissionError:
            # A process with more rights than this program can open every device at any time.
            if self._container(pid)[0]:
                raise
            return False

    def _judge(self, search: Search, pid: int) -> None:
        """Kill the container or gpu-run command of a process without a right to its device."""
        group, is_ours = self._container(pid)
        until = time.clock_gettime(time.CLOCK_BOOTTIME) + _MAKING
        while search.has_places_alone(pid) and time.clock_gettime(time.CLOCK_BOOTTIME) < until:
            time.sleep(0.02)
        mounts = search.mounts(pid)
        if not mounts:
            return  # it has closed it, or is gone
        # A process that opened the device by a mount of its own was allowed to by its own rules. A
        # descriptor that it received was opened by a mount of the sender's.
        if not is_ours and mounts <= (self._mounts(pid) if group else self._mounts_of_host(pid)):
            return
        if not group:
            self._withhold(
                self._concerned(pid),
                f"{self._named(pid)}, a process outside containers, has it open by a descriptor "
                "that another process sent. End that process",
            )
            return
        self.intruders.append(group.rpartition("/")[2])
        if not self._end(group):
            self._withhold(
                self._concerned(pid),
                f"{group} has it open and cannot be killed. Reboot the machine",
            )

    def _concerned(self, pid: int) -> list[str]:
        """Return the holders of the devices that a process has open."""
        return [
            name
            for name, holder in self._ending.items()
            if Search(self._root, holder.nodes).has_one_open(pid)
        ]

    def _withhold(self, names: Collection[str], why: str) -> None:
        for name in names:
            self.withheld[name] = why

    def _container(self, pid: int) -> tuple[str, bool]:
        """Return the group of a process's outermost container or gpu-run command; empty: none.

        Also return whether only a lease gives devices to that container.
        """
        import re  # noqa: PLC0415 - a search that finds nothing needs none

        for path, last in self._prefixes(str(pid)):
            if path in self._own:
                continue  # this program is in it too, as on a machine that is a container
            parent = path.rpartition("/")[0]
            if path in self._leased or last in self._bundles.get(parent, ()):
                return path, True
            if re.fullmatch(_OURS, last):
                return path, True
            if re.fullmatch(_ENGINES, last):
                return path, False
        return "", False

    def _prefixes(self, process: str) -> Iterator[tuple[str, str]]:
        """A process's control groups and those above, outermost first, with their last parts."""
        for path in self._groups(process):
            place = path.find("/", 1)
            while place > 0:
                yield path[:place], path[:place].rpartition("/")[2]
                place = path.find("/", place + 1)
            yield path, path.rpartition("/")[2]

    def _groups(self, process: str) -> set[str]:
        """Return the control groups of a process and its threads, in all hierarchies.

        In v1 a process whose first thread has ended is in the root group, unlike its other
        threads.
        """
        folder = f"{self._root}/proc/{process}"
        threads = [f"{folder}/task/{thread}" for thread in proc.names(f"{folder}/task")]
        return {
            line.split(":", 2)[2]
            for one in (folder, *threads)
            for line in proc.lines(f"{one}/cgroup")
        }

    def _end(self, group: str) -> bool:
        """Kill all processes in a control group; return whether none is left."""
        deadline = time.clock_gettime(time.CLOCK_BOOTTIME) + _DYING
        while left := [pid for pid in self._pids() if self._lives_in(pid, group)]:
            for pid in left:
                self._kill(pid, group)
            if time.clock_gettime(time.CLOCK_BOOTTIME) > deadline:
                return False
            time.sleep(0.005)
        return True

    def _kill(self, pid: int, group: str) -> None:
        try:
            process = Process(pid)
        except ProcessLookupError:
            return
        # Checked after taking hold of it: it is still this process, or it is gone.
        if self._lives_in(pid, group):
            process.kill()
        process.close()

    def _lives_in(self, pid: int, group: str) -> bool:
        stat = proc.read(f"{self._root}/proc/{pid}/stat").rpartition(")")[2].split()
        is_dead = not stat or (stat[0] in "XZ" and int(stat[17]) < 2)
        return not is_dead and any(groups.is_below(path, group) for path in self._groups(str(pid)))

    def _mounts(self, pid: int) -> set[int]:
        """Return the mounts of a process, from a thread that has not ended; none if all have."""
        folder = f"{self._root}/proc/{pid}"
        for thread in (folder, *(f"{folder}/task/{one}" for one in proc.names(f"{folder}/task"))):
            if mounts := self._mounts_of_thread(thread):
                return mounts
        return set()

    @staticmethod
    def _mounts_of_thread(thread: str) -> set[int]:
        try:
            lines = proc.lines(f"{thread}/mountinfo")
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return set()  # it has ended, and its parent has not reaped it (fs/proc_namespace.c)
        return {int(line.split(" ", 1)[0]) for line in lines}

    def _mounts_of_host(self, pid: int) -> set[int]:
        """Return the mounts of processes outside containers: logind opens devices for others."""
        if self._hosts is None:
            self._hosts = set()
            for one in self._pids():
                if not self._container(one)[0]:
                    self._hosts |= self._mounts(one)
        return self._hosts | self._mounts(pid)

    def _named(self, pid: int) -> str:
        name = proc.read(f"{self._root}/proc/{pid}/comm").removesuffix("\n")
        shown = "".join(letter if letter.isprintable() else "?" for letter in name)
        return f"pid {pid} ({shown})"
