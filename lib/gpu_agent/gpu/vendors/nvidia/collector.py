# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Poll NVIDIA's GPUs through NVML, in the child that asks drivers."""

import collections.abc
import contextlib
import os
import pathlib
import time
import typing

from gpu_agent.gpu.kernel import pci
from gpu_agent.gpu.vendors.collector import Beat, Event, Note, One, Tell, as_line
from gpu_agent.gpu.vendors.nvidia import inventory as nvidia
from gpu_agent.gpu.vendors.nvidia import nvml
from gpu_agent.gpu.vendors.nvidia import nvml_metrics as figures
from gpu_agent.gpu.vendors.nvidia.maker import MAKER
from gpu_agent.gpu.vendors.nvidia.nvml_device import Device, is_for_want
from gpu_agent.gpu.vendors.nvidia.nvml_events import Events
from gpu_agent.model.card import Figures
from machine import exhaustion as scarcity

# A GPU that comes back, for example by a rescan of the bus, needs a new session. In seconds.
_ANEW: typing.Final = 60
# A driver that is being loaded or replaced, as at boot, is absent or does not match for a while:
# so many failed samples in a row say nothing about the GPUs.
_PATIENCE: typing.Final = 1
# If waiting for events fails, it fails at once, again and again.
_BETWEEN_SETS: typing.Final = 5

Session = collections.abc.Callable[[], contextlib.AbstractContextManager[typing.Any]]


class NvmlCollector:
    """NVIDIA's GPUs, in one NVML session that lasts from sample to sample.

    Args:
        cards: PCI addresses by UUID.
        root: the root of the machine's files; NVML is always this machine's.
        tell: sends a line to the parent.
        session: provides NVML's binding while NVML runs.
        clock: returns the time in seconds.

    Attributes:
        missing: UUIDs that PCI's list had and the driver had not, in the last sample.
        gone: UUIDs that PCI's list did not have either.
    """

    def __init__(
        self,
        cards: collections.abc.Mapping[str, str],
        root: pathlib.Path,
        tell: Tell,
        session: Session = nvml.session,
        clock: collections.abc.Callable[[], float] = time.monotonic,
    ) -> None:
        self._cards, self._root, self._tell = cards, root, tell
        self._nvml, self._clock = session, clock
        self.missing, self.gone = tuple[str, ...](), tuple[str, ...]()
        self._session: contextlib.ExitStack | None = None
        self._binding: typing.Any = None
        self._devices: dict[str, Device] = {}
        self._opened, self._stale, self._failed = 0.0, False, 0
        self._events: Events | None = None
        self._events_at, self._noted = float("-inf"), ""

    @property
    def has_events(self) -> bool:
        """Whether NVML has events to wait for."""
        return self._events is not None

    def look(self) -> str:
        """Send the figures of each GPU; return why that is not possible now, or empty."""
        self.missing, self.gone = (), ()
        if not self._cards:
            return ""
        try:
            self._open()
            self._failed = 0
            bad = self._look_at_all()
        except nvml.NvmlError as error:
            return as_line(str(error)) if is_for_want(error.__cause__) else self._fail(str(error))
        except figures.ScarceError as error:
            return as_line(str(error))
        except OSError as error:
            return as_line(f"{error.filename}: {error.strerror}")
        self._stale = bad
        self.register()
        return ""

    def wait(self, seconds: float) -> bool:
        """Send events for so long; return whether they ended, so that a sample is due."""
        end = self._clock() + seconds
        while self._events and (left := end - self._clock()) > 0:
            try:
                told = self._events.wait(max(1, int(left * 1000)))
            except self._binding.NVMLError as error:
                self._forget_events()
                self._note(f"NVML's events end: {error}")
                return True
            if told:
                self._tell(Event(told.uuid, told.fault, told.xid, told.text))
        return False

    def register(self) -> None:
        """Register for events of all GPUs that answered in the last sample."""
        now = self._clock()
        if not self._session or now - self._events_at < _BETWEEN_SETS:
            return
        if self._events and self._events.watched >= self._devices.keys():
            return
        self._forget_events()
        self._events_at = now
        try:
            self._events = Events(self._binding, self._devices)
        except self._binding.NVMLError as error:
            self._note(f"without NVML's events: {error}")
            return
        if not self._events.watched:
            self._forget_events()
            self._note("without NVML's events: no GPU has them")

    def _open(self) -> None:
        if self._stale and self._clock() - self._opened > _ANEW:
            self._close()
        if self._session:
            return
        with contextlib.ExitStack() as stack:
            self._binding = stack.enter_context(self._nvml())
            self._session = stack.pop_all()
        self._opened = self._clock()

    def _close(self) -> None:
        self._forget_events()
        self._devices = {}
        session, self._session = self._session, None
        if session:
            with contextlib.suppress(nvml.NvmlError):
                session.close()

    def _look_at_all(self) -> bool:
        """Return whether a GPU does not answer."""
        bus = {device.address for device in pci.gpus(self._root, MAKER)}
        silent: dict[str, Figures | None] = {}
        for uuid, address in self._cards.items():
            try:
                found = self._figures(uuid, address)
            except figures.NoDeviceError:
                found = None
            if found and not found.failure:
                self._tell(One(uuid, found))
                continue
            silent[uuid] = found
            self._devices.pop(uuid, None)
        answering = [self._cards[uuid] for uuid in self._cards.keys() - silent.keys()]
        for uuid, found in silent.items():
            if self._cards[uuid] not in bus:
                self.gone += (uuid,)
            elif not nvidia.is_passed(self._cards[uuid], self._root, answering):
                continue  # removed from this container: nothing is wrong with it
            elif found:
                self._tell(One(uuid, found))
            else:
                self.missing += (uuid,)
        return bool(silent)

    def _figures(self, uuid: str, address: str) -> Figures:
        try:
            if uuid not in self._devices:
                self._devices[uuid] = figures.find(self._binding, uuid, address)
                self._tell(Beat())  # waking a GPU takes a second or more
            found = figures.read(self._devices[uuid])
        except self._binding.NVMLError as error:
            found = Figures(failure=str(error))
        return found if not found.failure else Figures(failure=as_line(found.failure))

    def _fail(self, words: str) -> str:
        """Handle an NVML that can't be used at all: a failure of each GPU, if it lasts.

        Not if the machine is out of file descriptors: the library and the driver's nodes can't be
        opened then, and look absent.
        """
        self._close()
        try:
            os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if scarcity.is_told_by(error):
                return f"{error.filename}: {error.strerror}"
        self._failed += 1
        if self._failed <= _PATIENCE:
            return as_line(words)
        for uuid, address in self._cards.items():
            if nvidia.is_passed(address, self._root):
                self._tell(One(uuid, Figures(failure=as_line(words))))
        return ""

    def _note(self, text: str) -> None:
        """Log a text, once until another text is logged."""
        if text != self._noted:
            self._noted = text
            self._tell(Note(as_line(text)))

    def _forget_events(self) -> None:
        events, self._events = self._events, None
        if events:
            with contextlib.suppress(self._binding.NVMLError):
                events.close()
