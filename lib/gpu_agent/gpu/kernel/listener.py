# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a source of the kernel's messages on GPUs offers: types only."""

import collections.abc
import dataclasses
import typing

from gpu_agent.model.observations import Source


class NoSourceError(Exception):
    """This machine lacks the source, as a system container does; the text says which and why."""


@dataclasses.dataclass(frozen=True)
class Heard:
    """One message of a driver or the kernel on one GPU.

    Attributes:
        pci_address: the GPU's, such as `0000:03:00.0`.
        source: KERNEL if processes can forge it, otherwise COUNTER.
        fault: the name of a row in gpu_agent.fault_policy.fault_table; empty: `xid` decides.
        xid: the Xid's number; None: not an Xid.
        text: the kernel's own text.
    """

    pci_address: str
    source: Source
    fault: str = ""
    xid: int | None = None
    text: str = ""


class Listener(typing.Protocol):
    """Reads messages without blocking."""

    @property
    def can_be_waited_for(self) -> bool:
        """Whether the descriptor is readable only if a message is new."""
        ...

    def fileno(self) -> int:
        """The descriptor to wait for."""
        ...

    def read(self) -> collections.abc.Sequence[Heard]:
        """Return the messages since the last call, in their order.

        Raises:
            OSError: the source has ended.
        """
        ...

    def close(self) -> None:
        """Close the source."""
        ...
