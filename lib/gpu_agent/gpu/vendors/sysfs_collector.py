# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Poll GPUs by their drivers' files in /sys, in the child that asks drivers."""

import collections.abc
import pathlib

from gpu_agent.gpu.kernel import sysfs_metrics
from gpu_agent.gpu.vendors.collector import One, Tell, as_line


class SysfsCollector:
    """Polls GPUs whose driver comes with the kernel; such a driver has no events to wait for.

    Args:
        cards: PCI addresses by UUID.
        root: the root of the machine's files.
        tell: sends a line to the parent.

    Attributes:
        missing: UUIDs that PCI's list had and no driver had, in the last poll.
        gone: UUIDs that PCI's list did not have either.
        has_events: always False.
    """

    has_events = False

    def __init__(
        self, cards: collections.abc.Mapping[str, str], root: pathlib.Path, tell: Tell
    ) -> None:
        self._cards, self._root, self._tell = cards, root, tell
        self.missing, self.gone = tuple[str, ...](), tuple[str, ...]()

    def look(self) -> str:
        """Send the figures of each GPU; return why that is not possible now, or empty."""
        self.missing, self.gone = (), ()
        for uuid, address in self._cards.items():
            try:
                found = sysfs_metrics.read(self._root, address)
            except OSError as error:
                return as_line(f"{error.filename}: {error.strerror}")
            if found:
                self._tell(One(uuid, found))
            elif (self._root / "sys/bus/pci/devices" / address).exists():
                self.missing += (uuid,)
            else:
                self.gone += (uuid,)
        return ""

    def register(self) -> None:
        """Do nothing."""

    def wait(self, _seconds: float) -> bool:
        """Return at once: there is nothing to wait for."""
        return False
