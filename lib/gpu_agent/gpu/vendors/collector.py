# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a collector of GPUs' figures offers in the child that asks drivers: types only."""

import collections.abc
import dataclasses
import typing

from gpu_agent.model.card import Figures


@dataclasses.dataclass(frozen=True)
class Beat:
    """It has come back from a call into a driver."""


@dataclasses.dataclass(frozen=True)
class Event:
    """A driver's message about a GPU; see gpu_agent.model.observations.Message."""

    uuid: str
    fault: str = ""
    xid: int | None = None
    text: str = ""


@dataclasses.dataclass(frozen=True)
class One:
    """One GPU's figures, within a poll."""

    uuid: str
    figures: Figures


@dataclasses.dataclass(frozen=True)
class Note:
    """A text for the log."""

    text: str


Tell = collections.abc.Callable[[Beat | Event | One | Note], None]
"""Sends a line to the parent."""


class Collector(typing.Protocol):
    """Polls GPUs of one vendor, and waits for their driver's events if it has any."""

    @property
    def missing(self) -> tuple[str, ...]:
        """UUIDs of GPUs that PCI's list had and the driver had not, in the last poll."""
        ...

    @property
    def gone(self) -> tuple[str, ...]:
        """UUIDs of GPUs that PCI's list did not have either."""
        ...

    @property
    def has_events(self) -> bool:
        """Whether the driver has events to wait for."""
        ...

    def look(self) -> str:
        """Send the figures of each GPU; return why that is not possible now, or empty."""
        ...

    def register(self) -> None:
        """Register for events of all GPUs that answered in the last poll."""
        ...

    def wait(self, seconds: float, /) -> bool:
        """Send events for so long; return whether they ended, so that a poll is due."""
        ...


def as_line(words: str) -> str:
    """Return a driver's message as the protocol between child and parent accepts it."""
    return " ".join("".join(c if c.isprintable() else " " for c in words).split())[:200]
