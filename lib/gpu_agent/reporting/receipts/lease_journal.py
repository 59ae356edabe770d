# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read from the decision log how long a lease was waited for, and why it was ended."""

import pathlib
import typing

from gpu_agent import paths
from gpu_agent.reporting import decisions
from gpu_agent.reporting.receipts.receipt import cut

PATH: typing.Final = paths.LOG

UNUSED: typing.Final = decisions.UNUSED

KILLS: typing.Final = (decisions.RECLAIM, UNUSED)
"""Kinds of entries by which this worker or its operator reports that it ended a container."""

_BEFORE: typing.Final = 1 << 18  # bytes of the log's present end, for the leases that are open
_MOST: typing.Final = 1024  # containers that are remembered


class Journal:
    """The decision log, read as it grows."""

    def __init__(self, path: pathlib.Path = PATH) -> None:
        self._log = decisions.Followed(path, before=_BEFORE)
        self._waited: dict[str, float] = {}
        self._killed: dict[str, tuple[str, float, str]] = {}

    def follow(self) -> None:
        """Read the new entries.

        Raises:
            OSError: the log cannot be read. A log that does not exist yet is an empty one.
        """
        for entry in self._log.entries():
            self._take(entry)

    def waited(self, container: str) -> float | None:
        """Return how many seconds a container waited for its GPUs; None if that is not known."""
        return self._waited.get(container)

    def killed(self, container: str, boot: str, since: float) -> str:
        """Return why this worker or its operator ended a container; empty: neither did.

        Args:
            container: its id.
            boot: the kernel's name for the boot in which that counts.
            since: the time from which on it counts, in seconds since that boot.
        """
        where, when, why = self._killed.get(container, ("", 0.0, ""))
        return why if where == boot and when >= since else ""

    def _take(self, entry: decisions.Entry) -> None:
        if entry.kind in KILLS:
            why = f"{entry.kind}: {cut(entry.reason)}"
            _remember(self._killed, entry.container, (entry.boot, entry.since_boot, why))
        elif entry.kind in decisions.TASKS and entry.granted and entry.waited is not None:
            _remember(self._waited, entry.container, entry.waited)


_Value = typing.TypeVar("_Value", tuple[str, float, str], float)


def _remember(found: dict[str, _Value], container: str, value: _Value) -> None:
    found.pop(container, None)
    found[container] = value
    if len(found) > _MOST:
        del found[next(iter(found))]
