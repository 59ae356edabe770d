# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Find processes that have a device open: a descriptor, a mapping, or a file of an io_uring.

No call here may depend on a remote or user-space file system: one of FUSE may never answer. So
statx(2) reads only the type of a descriptor's file, and does not synchronise. FUSE and NFS answer
that from the kernel's memory (Linux 6.18 fs/fuse/dir.c, fs/nfs/inode.c).
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import time

from gpu_runtime import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_RING = "anon_inode:[io_uring]"

# Errors of file systems that fetch files from elsewhere. Such a file is not a device node of this
# machine, which its file system knows from memory.
_ELSEWHERE = frozenset({errno.EIO, errno.ENOTCONN, errno.ECONNABORTED, errno.ESTALE})

# linux/fcntl.h and linux/stat.h; the mode and the device's numbers in struct statx.
_AT_FDCWD, _AT_STATX_DONT_SYNC, _STATX_TYPE = -100, 0x4000, 1
_FOUND = struct.Struct("28xH98xII").unpack_from

# kcmp(2) by architecture, and its request for tables of descriptors.
_KCMP = {"x86_64": 312, "aarch64": 272}
_KCMP_FILES = 2

# The bits of a mode that are the type (inode(7)).
_TYPE = 0o170000

# The longest text of the numbers of a file system and an inode in /proc/<pid>/maps.
_LONGEST_NUMBERS = len("fff:fffff 18446744073709551615")

# How many descriptors are checked between two checks of the clock.
_BETWEEN = 1000

# The flag of a thread that ends (linux/sched.h), and the seconds that it may take to close files.
_PF_EXITING = 4
_CLOSING = 10


class TooLongError(Exception):
    """The search did not finish in time."""


class Search:
    """A search for device nodes among what processes have open.

    Args:
        root: where /proc and the nodes lie.
        nodes: the paths of the nodes. A node that does not exist cannot be open.
        until: when the search gives up, in seconds since boot; 0: never.
    """

    def __init__(self, root: str, nodes: list[str], until: float = 0) -> None:
        self._proc = f"{root}/proc"
        self._paths = frozenset(nodes)
        self._until = until
        found = [there for node in nodes if (there := proc.look(root + node))]
        self._numbers = {
            (os.major(there.st_rdev), os.minor(there.st_rdev))
            for there in found
            if stat.S_ISCHR(there.st_mode)
        }
        self._inodes = {
            b"%02x:%02x %d" % (os.major(there.st_dev), os.minor(there.st_dev), there.st_ino)
            for there in found
        }
        # Mapped files that are none of the nodes, as /proc/<pid>/maps has them.
        self._others: set[bytes] = set()
        self._kernel = _Kernel()

    def has_one_open(self, pid: int) -> bool:
        """Whether a process has one of the nodes open; a process that is gone has none.

        Raises:
            OSError: /proc cannot be read.
            TooLongError: the time is up.
        """
        if not self._numbers:
            return False
        return next(self._found(pid), "") != "" or self._maps_one(pid)

    def mounts(self, pid: int) -> set[int]:
        """Return the ids of the mounts by which a process opened its descriptors of the nodes.

        0 stands for a mapping or a file of an io_uring, which have no mount id.

        Raises:
            OSError: /proc cannot be read.
            TooLongError: the time is up.
        """
        found = {self._mount(path) for path in self._found(pid)}
        return found | ({0} if self._maps_one(pid) else set[int]())

    def has_places_alone(self, pid: int) -> bool:
        """Whether a process has only O_PATH descriptors of the nodes, by which it could open them.

        Raises:
            OSError: /proc cannot be read.
            TooLongError: the time is up.
        """
        found = [*self._found(pid)]
        return bool(found) and all(map(_is_place, found)) and not self._maps_one(pid)

    def _found(self, pid: int) -> Iterator[str]:
        """Yield the descriptors of a node, and the rings with one, as paths below /proc."""
        looked_at = 0
        for thread in self._threads(pid):
            self._check_time()
            # A thread can have a table of its own (unshare(2), CLONE_FILES).
            if looked_at and self._kernel.share_table(looked_at, thread):
                continue
            looked_at = thread
            yield from self._found_in(f"{self._proc}/{thread}/fd")

    def _threads(self, pid: int) -> list[int]:
        """Return a process's threads; none if it is gone."""
        folder = f"{self._proc}/{pid}/task"
        there = proc.look(folder)
        if there and there.st_nlink == 3:  # 2 and their number (fs/proc/base.c)
            return [pid]
        return sorted(map(int, proc.names(folder)))

    def _found_in(self, folder: str) -> Iterator[str]:
        table = self._open(folder)
        if table < 0:
            return
        look, numbers = self._kernel.look, self._numbers
        try:
            for place, number in enumerate(proc.names(table), 1):
                if place % _BETWEEN == 0:
                    self._check_time()
                device = look(table, number)
                # Only descriptors that are not files have no type.
                if device in numbers or (
                    device is None and self._has_registered(f"{folder}/{number}")
                ):
                    yield f"{folder}info/{number}"
        finally:
            os.close(table)

    def _open(self, folder: str) -> int:
        """Open the folder of a thread's descriptors; -1 if the thread has ended.

        The folder of a thread that has given up its memory belongs to root of the whole machine
        (Linux fs/proc/base.c, task_dump_owner), so root of a system container can't open it. Such
        a thread closes its files before it becomes a zombie.
        """
        until = time.clock_gettime(time.CLOCK_BOOTTIME) + _CLOSING
        while True:
            try:
                return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                if proc.is_gone(error):
                    return -1
                if error.errno != errno.EACCES:
                    raise
                thread = folder.removesuffix("/fd")
                words = proc.read(f"{thread}/stat").rpartition(")")[2].split()
                if not words or words[0] in "XZ":
                    return -1
                is_closing = int(words[6]) & _PF_EXITING
                if not is_closing or time.clock_gettime(time.CLOCK_BOOTTIME) > until:
                    raise
            self._check_time()
            time.sleep(0.005)

    def _has_registered(self, path: str) -> bool:
        """Whether a descriptor is an io_uring with one of the nodes among its files.

        The kernel shows only their paths (io_uring/fdinfo.c), and none while the ring is busy.
        """
        if proc.link(path) != _RING:
            return False
        folder, _, number = path.rpartition("/")
        _, _, text = proc.read(f"{folder}info/{number}").partition("UserFiles:")
        entries = (line.partition(": ")[2].strip() for line in text.split("\n")[1:])
        return any(entry.removesuffix("\\040(deleted)") in self._paths for entry in entries)

    def _maps_one(self, pid: int) -> bool:
        """Whether a process has one of the nodes mapped (proc(5): maps, map_files)."""
        self._check_time()
        thread, text = pid, proc.read_bytes(f"{self._proc}/{pid}/maps")
        if not text:
            # The threads share one memory. Threads that have ended do not show it.
            for thread in self._threads(pid):
                if text := proc.read_bytes(f"{self._proc}/{thread}/maps"):
                    break
        others, inodes = self._others, self._inodes
        for line in text.split(b"\n")[:-1]:
            place, _, _, file = line.split(b" ", 3)
            # The numbers of a file system and an inode; blanks and a path follow.
            key = file[:_LONGEST_NUMBERS]
            if key in others:
                continue
            self._check_time()
            device, inode = file.split(None, 2)[:2]
            if b"%b %b" % (device, inode) in inodes:
                return True
            # A container's own node has another inode than the machine's.
            if inode != b"0" and self._leads_to_one(thread, place.decode()):
                return True
            others.add(key)
        return False

    def _leads_to_one(self, thread: int, place: str) -> bool:
        begin, _, end = place.partition("-")
        name = f"{int(begin, 16):x}-{int(end, 16):x}"
        try:
            found = self._kernel.look(_AT_FDCWD, f"{self._proc}/{thread}/map_files/{name}")
        except PermissionError:
            # In a system container, where no process can make a node: its nodes are the machine's.
            return False
        return found in self._numbers

    @staticmethod
    def _mount(path: str) -> int:
        for line in proc.lines(path):
            if line.startswith("mnt_id:"):
                return int(line.split()[1])
        return 0

    def _check_time(self) -> None:
        if self._until and time.clock_gettime(time.CLOCK_BOOTTIME) > self._until:
            raise TooLongError


def _is_place(path: str) -> bool:
    """Whether an entry in fdinfo is an O_PATH descriptor (proc(5)), not an open file."""
    flags = proc.read(path).partition("flags:")[2].split()
    return bool(flags) and bool(int(flags[0], 8) & os.O_PATH)


class _Kernel:
    """System calls that Python has no function for."""

    def __init__(self) -> None:
        # Imported only when a search begins: the import takes longer than the rest.
        import ctypes  # noqa: PLC0415

        self._ctypes = ctypes
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._statx = self._libc.statx
        self._statx.argtypes = (
            *(ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p),
        )
        self._buffer = ctypes.create_string_buffer(256)
        self._address = ctypes.addressof(self._buffer)
        self._kcmp = _KCMP.get(os.uname().machine)

    def look(self, folder: int, name: str) -> tuple[int, int] | None:
        """Return the numbers of the character device that a link in /proc leads to.

        Args:
            folder: the descriptor of the link's folder.
            name: the link.

        Returns:
            Zeros if it leads to something else or is gone; None if that is not a file.

        Raises:
            OSError: the link cannot be read.
        """
        if error := self._ask(folder, name, _STATX_TYPE):
            # To other users FUSE shows only that a file exists. No device can be opened on a
            # mount of such a user.
            is_hidden = error == errno.EACCES and self._ask(folder, name, 0) == 0
            fault = OSError(error, os.strerror(error), name)
            if is_hidden or error in _ELSEWHERE or proc.is_gone(fault):
                return 0, 0
            raise fault
        mode, major, minor = _FOUND(self._buffer)
        if mode & _TYPE == stat.S_IFCHR:
            return major, minor
        return (0, 0) if mode & _TYPE else None

    def share_table(self, one: int, other: int) -> bool:
        """Whether two threads share one table of descriptors; False if that is unknown."""
        if not self._kcmp:
            return False
        return self._libc.syscall(self._kcmp, one, other, _KCMP_FILES, 0, 0) == 0

    def _ask(self, folder: int, name: str, mask: int) -> int:
        done = self._statx(folder, name.encode(), _AT_STATX_DONT_SYNC, mask, self._address)
        return self._ctypes.get_errno() if done else 0
