# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The observations of the GPU health service, as they come.

NVML's events and the polls come from a child process. The kernel log and uevents are read here.
"""

import collections.abc
import logging
import pathlib
import select
import typing

from gpu_agent.gpu.kernel import drm_events as wedged
from gpu_agent.gpu.probe import driver_probe as asker
from gpu_agent.gpu.vendors.nvidia import kernel_log as kmsg
from gpu_agent.gpu.vendors.nvidia import xid
from gpu_agent.model.card import Card
from gpu_agent.model.observations import Message, Seen, Source
from machine import exhaustion as scarcity

# Seconds until a source is tried again that could not be opened for lack of resources.
_AGAIN: typing.Final = 15
# Shortest time in seconds between two reads of the kernel log: a flood of records must not use the
# processor.
_READ: typing.Final = 0.5
# Seconds between two reads of a plain file in place of the kernel log, which can't be waited for.
_FILE: typing.Final = 1
# Shortest time in seconds between two polls because of records, for the same reason.
_BETWEEN_LOOKS: typing.Final = 5

_log = logging.getLogger(__name__)


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
        self._kmsg: kmsg.Follower | None = None
        self._uevents: wedged.Listener | None = None
        self._open_at = self._looked_for = self._read_at = float("-inf")
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
        for source in (self._kmsg, self._uevents):
            if source:
                source.close()
        self._kmsg = self._uevents = None

    def _new_asker(self) -> asker.Asker:
        return asker.Asker(self._cards, self._root, self._poll, self._begin, self._clock)

    def _turn(self) -> list[Seen]:
        self._open()
        # The driver's own events come first.
        seen = self._asker.turn() + self._kernel() + self._reset()
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
        if self._kmsg:
            can_wait = self._kmsg.can_be_waited_for
            if not can_wait or not self._may_read():
                at = min(at, self._read_at + (_READ if can_wait else _FILE))
        return at

    def _may_read(self) -> bool:
        return self._clock() >= self._read_at + _READ

    def _wait(self, seconds: float) -> bool:
        """Wait for any source. Return True if a waker is readable."""
        poller = select.poll()
        own = (self._asker.fileno(), self._kmsg_descriptor(), self._uevents)
        for one in (*own, *self._wakers):
            if one is not None:
                poller.register(one, select.POLLIN)
        ready = poller.poll(max(0, seconds) * 1000)
        return any(descriptor in self._wakers for descriptor, _ in ready)

    def _kmsg_descriptor(self) -> int | None:
        can_wait = self._kmsg and self._kmsg.can_be_waited_for and self._may_read()
        return self._kmsg.fileno() if self._kmsg and can_wait else None

    def _open(self) -> None:
        """Open the sources that are not open yet."""
        if not self._cards or self._clock() < self._open_at:
            return
        self._open_at = float("inf")
        try:
            if not self._kmsg:
                self._kmsg = kmsg.Follower(self._root)
        except kmsg.NoLogError as error:
            self._say(f"cannot read the kernel log: {error}")
        except OSError as error:
            self._later(error)
        # NVIDIA's driver has no such events.
        foreign = any(_is_foreign(card.uuid) for card in self._cards)
        try:
            if foreign and not self._uevents:
                self._uevents = wedged.Listener()
        except OSError as error:
            if scarcity.is_told_by(error):
                self._later(error)
            else:
                self._say(f"cannot read the kernel's uevents: {error.strerror}")

    def _later(self, error: OSError) -> None:
        self._say(f"cannot open a source now: {error.strerror}")
        self._open_at = self._clock() + _AGAIN

    def _kernel(self) -> list[Seen]:
        if not self._kmsg or not self._may_read():
            return []
        self._read_at = self._clock()
        try:
            told = self._kmsg.read()
        except OSError as error:
            self._say(f"the kernel log ended: {error.strerror}")
            self._kmsg.close()
            self._kmsg, self._open_at = None, self._clock() + _AGAIN
            return []
        return [found for one in told if (found := self._from_kernel(one))]

    def _from_kernel(self, one: xid.Message) -> Message | None:
        card = self._by_address.get(one.pci_address)
        if not card:
            return None
        return Message(self._clock(), card.uuid, Source.KERNEL, xid=one.code, text=one.text[:300])

    def _reset(self) -> list[Seen]:
        """The uevents on resets by drivers and on wedged GPUs."""
        found: list[Seen] = []
        for told in self._uevents.read() if self._uevents else ():
            card = self._by_address.get(told.pci_address)
            if card:
                fault = "wedged" if told.wedged else "driver-reset"
                found.append(
                    Message(self._clock(), card.uuid, Source.COUNTER, fault, text=told.text)
                )
        return found

    def _say(self, text: str) -> None:
        if text != self._logged:
            self._logged = text
            _log.info("%s", text)


def _is_foreign(uuid: str) -> bool:
    """Whether a GPU is not NVIDIA's; only NVIDIA's ids are full UUIDs."""
    return uuid.count("-") < 5
