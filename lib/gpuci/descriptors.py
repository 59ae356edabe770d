# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which processes have a device open: by a descriptor, or by a mapping that outlives one."""

from __future__ import annotations

import os
import stat

from gpuci import proc


class Search:
    """A search for device nodes among what processes have open.

    Args:
        root: where /proc and the nodes lie.
        nodes: paths of the nodes; one that is not there can't be open by its path.
    """

    def __init__(self, root: str, nodes: list[str]) -> None:
        self._proc = f"{root}/proc"
        found = [there for node in nodes if (there := proc.look(root + node))]
        self._numbers = {there.st_rdev for there in found if stat.S_ISCHR(there.st_mode)}
        self._inodes = {(there.st_dev, there.st_ino) for there in found}

    def has_one_open(self, pid: int) -> bool:
        """Whether a process has one of the nodes open; one that is gone has none.

        Threads mostly share their descriptors. Those of one are looked at where their numbers
        differ from those looked at before, as when the first thread has ended.

        Raises:
            OSError: that can't be told.
        """
        seen: list[list[str]] = []
        for thread in sorted(proc.names(f"{self._proc}/{pid}/task"), key=int):
            folder = f"{self._proc}/{pid}/task/{thread}/fd"
            numbers = proc.names(folder)
            if numbers in seen:
                continue
            seen.append(numbers)
            if any(map(self._is_one, (proc.look(f"{folder}/{number}") for number in numbers))):
                return True
        return any(map(self._maps_one, proc.read(f"{self._proc}/{pid}/maps").splitlines()))

    def _is_one(self, found: os.stat_result | None) -> bool:
        return bool(found and stat.S_ISCHR(found.st_mode) and found.st_rdev in self._numbers)

    def _maps_one(self, line: str) -> bool:
        """Whether a line of /proc/<pid>/maps (proc(5)) is of one of the nodes."""
        device, inode = line.split(maxsplit=5)[3:5]
        major, minor = (int(part, 16) for part in device.split(":"))
        return (os.makedev(major, minor), int(inode)) in self._inodes
