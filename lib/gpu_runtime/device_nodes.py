# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The device nodes of this machine's GPUs. A container of an engine gets none without a lease."""

from __future__ import annotations

import os
import stat

from gpu_runtime import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_runtime.policy import Device, Policy

Numbers = tuple[int, int]
"""A character device's major and minor number."""

NVIDIA = 195  # the major number of GPUs and their control node (NVIDIA's driver, nv-linux.h)
DRM = 226  # DRM_MAJOR (Linux include/drm/drm_ioctl.h)
_NVIDIA_FOLDERS = ("/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels")
_DRI, _KFD = "/dev/dri", "/dev/kfd"


class Nodes:
    """The nodes of GPUs in /dev.

    Attributes:
        cards: the numbers of the nodes of GPUs and of their parts, each with its path.
        shared: the numbers of the nodes that each GPU needs in addition, each with its path.
        beside: whether /dev/dri has nodes that do not belong to GPUs, such as a display's.
    """

    __slots__ = ("_files", "beside", "cards", "shared")

    def __init__(self, policy: Policy | None, files: proc.Files = proc) -> None:
        """Read the nodes.

        Args:
            policy: tells whose GPUs are handed out; None: anybody's.
            files: reads the kernel's files.

        Raises:
            OSError: they cannot be read.
        """
        self._files = files
        self.cards: dict[Numbers, str] = {}
        self.shared: dict[Numbers, str] = {}
        for name in files.names("/dev"):
            if name.startswith("nvidia"):
                is_card = name.removeprefix("nvidia").isdecimal()
                self._add(self.cards if is_card else self.shared, f"/dev/{name}")
        for folder in _NVIDIA_FOLDERS:
            for name in files.names(folder):
                self._add(self.cards, f"{folder}/{name}")
        self._add(self.shared, _KFD)
        self.beside = False
        for name in files.names(_DRI):
            if self._is_ours(f"{_DRI}/{name}", policy):
                self._add(self.cards, f"{_DRI}/{name}")
            elif self.numbers(f"{_DRI}/{name}"):
                self.beside = True

    def has(self, numbers: Numbers) -> bool:
        """Whether these are the numbers of a GPU's node, there now or not yet."""
        return numbers in self.cards or numbers in self.shared or numbers[0] == NVIDIA

    def covered(self, major: object) -> bool:
        """Whether that is the major number of any of the nodes, there now or not yet."""
        return major == NVIDIA or any(major == one[0] for one in (*self.cards, *self.shared))

    def gpus(self) -> set[Numbers]:
        """The numbers of NVIDIA's whole GPUs."""
        return {one for one, path in self.cards.items() if _is_whole(path)}

    def of(self, device: Device) -> list[Numbers]:
        """Return the numbers of the nodes that belong to this device only.

        Raises:
            OSError: one can't be looked at.
        """
        found = [self.numbers(path) for path in device.watched]
        return [one for one in found if one]

    def numbers(self, path: str) -> Numbers | None:
        """The numbers of the character device at a path, links followed; None where there is none.

        Raises:
            OSError: it can't be looked at.
        """
        found = self._files.look(path)
        if found is None or not stat.S_ISCHR(found.st_mode):
            return None
        return os.major(found.st_rdev), os.minor(found.st_rdev)

    def _add(self, to: dict[Numbers, str], path: str) -> None:
        if one := self.numbers(path):
            to[one] = path

    def _is_ours(self, path: str, policy: Policy | None) -> bool:
        """Whether a node below /dev/dri is of a maker whose GPUs are handed out here.

        The runtime ignores others, such as the display of a machine with NVIDIA GPUs.
        """
        one = self.numbers(path)
        if one is None:
            return False
        maker = self._files.read(f"/sys/dev/char/{one[0]}:{one[1]}/device/vendor").strip()
        return policy is None or maker in ("", policy.vendor.pci)


def _is_whole(path: str) -> bool:
    return path.startswith("/dev/nvidia") and path.removeprefix("/dev/nvidia").isdecimal()
