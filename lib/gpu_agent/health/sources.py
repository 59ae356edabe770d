# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The observations of the GPU health service, as they come.

Drivers' events and the polls come from a child process. The kernel's messages are read here.
"""

import collections.abc
import dataclasses
import logging
import pathlib
import select
import typing

from gpu_agent.gpu.kernel.listener import Listener, NoSourceError
from gpu_agent.gpu.probe import driver_probe as asker
from gpu_agent.gpu.vendors import registry
from gpu_agent.model.card import Card
from gpu_agent.model.observations import Message, Seen

# Seconds until a source is tried again that could not be opened for lack of resources.
_AGAIN: typing.Final = 15
# Shortest time in seconds between two reads of a source: a flood of messages must not use the
# processor.
_READ: typing.Final = 0.5
# Seconds between two reads of a plain file in place of the kernel log, which can't be waited for.
_FILE: typing.Final = 1
# Shortest time in seconds between two polls because of messages, for the same reason.
_BETWEEN_LOOKS: typing.Final = 5

_log = logging.getLogger(__name__)


@dataclasses.dataclass
class _Open:
    """An open source of the kernel's messages, and when it was last read."""

    listener: Listener
    read_at: float = float("-inf")

    def is_due(self, now: float) -> bool:
        """Whether it may be read again."""
        return now >= self.read_at + _READ


class Sources:
    """All sources of observations on these GPUs.

    Args:
        cards: the GPUs.
        root: the folder with /sys and /dev/kmsg; NVML is always this machine's.
        poll: seconds between two polls.
        begin: starts the child process.
        clock: returns seconds since boot.
    """

    def __init__(
        self,
        cards: collections.abc.Sequence[Card],
        root: pathlib.Path = pathlib.Path("/"),
        poll: float = asker.POLL,
        begin: asker.Start = asker.start,
        clock: asker.Clock = asker.boottime,
    ) -> None:
        self._root, self._poll, self._begin, self._clock = root, poll, begin, clock
        self._wakers: set[int] = set()
        # By the function that opens it, which several vendors may share.
        self._listeners: dict[collections.abc.Callable[[pathlib.Path], Listener], _Open] = {}
        self._open_at = self._looked_for = float("-inf")
        self._logged = ""
        self._cards = tuple(cards)
        self._by_address = {card.pci_address: card for card in cards}
        self._asker = self._new_asker()
        self._open()

    def changed(self, cards: collections.abc.Sequence[Card]) -> None:
        """Observe these GPUs from now on."""
        if tuple(cards) == self._cards:
            return
        self._asker.close()
        self._cards = tuple(cards)
        self._by_address = {card.pci_address: card for card in cards}
        self._asker = self._new_asker()
        self._open_at = float("-inf")

    def wake_on(self, descriptor: int) -> None:
        """End `take` when this descriptor is readable; its owner reads it."""
        self._wakers.add(descriptor)

    def poll_now(self) -> None:
        """Poll all GPUs as soon as possible."""
        self._asker.poll_now()

    def poll_every(self, seconds: float) -> None:
        """Set the time between two polls."""
        self._poll = seconds
        self._asker.poll_every(seconds)

    def take(self, timeout: float) -> list[Seen]:
        """Wait for an observation or a readable waker; return what was observed.

        Args:
            timeout: longest wait in seconds.
        """
        end = self._clock() + timeout
        while True:
            seen = self._turn()
            left = end - self._clock()
            if seen or left <= 0:
                return seen
            if self._wait(min(left, self._due() - self._clock())):
                return self._turn()

    def close(self) -> None:
        """Close all sources without waiting for a driver."""
        self._asker.close()
        for source in self._listeners.values():
            source.listener.close()
        self._listeners = {}

    def _new_asker(self) -> asker.Asker:
        return asker.Asker(self._cards, self._root, self._poll, self._begin, self._clock)

    def _turn(self) -> list[Seen]:
        self._open()
        # The driver's own events come first.
        seen = self._asker.turn() + self._heard()
        now = self._clock()
        if (
            any(isinstance(one, Message) for one in seen)
            and now - self._looked_for > _BETWEEN_LOOKS
        ):
            self._looked_for = now
            self._asker.poll_now()
        return seen

    def _due(self) -> float:
        at = min(self._asker.due(), self._open_at if self._cards else float("inf"))
        for source in self._listeners.values():
            can_wait = source.listener.can_be_waited_for
            if not can_wait or not source.is_due(self._clock()):
                at = min(at, source.read_at + (_READ if can_wait else _FILE))
        return at

    def _wait(self, seconds: float) -> bool:
        """Wait for any source. Return True if a waker is readable."""
        poller = select.poll()
        probe = self._asker.fileno()
        own = [] if probe is None else [probe]
        for one in (*own, *self._descriptors(), *self._wakers):
            poller.register(one, select.POLLIN)
        ready = poller.poll(max(0, seconds) * 1000)
        return any(descriptor in self._wakers for descriptor, _ in ready)

    def _descriptors(self) -> list[int]:
        """The descriptors of the sources that may be read now."""
        return [
            source.listener.fileno()
            for source in self._listeners.values()
            if source.listener.can_be_waited_for and source.is_due(self._clock())
        ]

    def _open(self) -> None:
        """Open the sources that are not open yet."""
        if not self._cards or self._clock() < self._open_at:
            return
        self._open_at = float("inf")
        try:
            vendors = [
                registry.of_card(self._root, one.uuid, one.pci_address) for one in self._cards
            ]
        except OSError as error:
            self._later(error)
            return
        for begin in {vendor.listener for vendor in vendors} - self._listeners.keys():
            try:
                self._listeners[begin] = _Open(begin(self._root))
            except NoSourceError as error:
                self._say(str(error))
            except OSError as error:
                self._later(error)

    def _later(self, error: OSError) -> None:
        self._say(f"cannot open a source now: {error.strerror}")
        self._open_at = self._clock() + _AGAIN

    def _heard(self) -> list[Seen]:
        found: list[Seen] = []
        for begin, source in [*self._listeners.items()]:
            if not source.is_due(self._clock()):
                continue
            source.read_at = self._clock()
            try:
                told = source.listener.read()
            except OSError as error:
                self._say(f"the kernel's messages ended: {error.strerror}")
                source.listener.close()
                del self._listeners[begin]
                self._open_at = self._clock() + _AGAIN
                continue
            for one in told:
                if card := self._by_address.get(one.pci_address):
                    now, text = self._clock(), one.text
                    found.append(Message(now, card.uuid, one.source, one.fault, one.xid, text))
        return found

    def _say(self, text: str) -> None:
        if text != self._logged:
            self._logged = text
            _log.info("%s", text)
