# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A restart of the worker's process that no build notices.

Web loses a step whose container, volume or process is being made while the process goes, and one
that ends before web has attached to it again. So running steps stand still, which has builds begin
no further one, until what is being made is done. Then the process is restarted, and each step goes
on when the new one has its output open, which is what web's attaching does.
"""

import collections.abc
import ipaddress
import logging
import math
import pathlib
import re
import time
import typing

from ci.concourse import steps
from ci.concourse.upstream import TSA_PORT, WEB_REQUEST_TIMEOUT
from machine import files, freezer, leftovers, outside, services, sockets

# Where containerd has the output of processes (2.3.1 pkg/cio/io_unix.go).
_OUTPUT: typing.Final = re.compile(
    rf"/run/containerd/fifo/[^/]+/({'|'.join(steps.PROCESSES)})-std(out|err)"
)

# All in seconds. A step that is shorter than the time between two looks is not caught.
_EVERY: typing.Final = 0.02
# For so long web may have asked for nothing and heard of nothing. It takes some tenths of a second
# to begin a next step, and asks for a volume that is being made every 10 ms and then ever more
# seldom (8.3.0 worker/baggageclaim/client/volume_future.go).
_STILL: typing.Final = 0.8
_SETTLING: typing.Final = 4.0
# For which steps stand still at most, all tries together. The guard ends each at the same time.
_HELD: typing.Final = 19.0
_TRIES: typing.Final = 3
_PAUSE: typing.Final = 3.0
# What goes on with a request when it is told to end takes as long; it is not waited for longer.
_STOP: typing.Final = 2.0
# From when the output is open: two calls to containerd, before which a step must not end.
_ATTACHING: typing.Final = 1.0
# A container that has no process by then gets none: its build was aborted.
_BEGINNING: typing.Final = 10.0
# What is made for longer waits for a GPU, and is not done sooner where the others stand still.
_WAITS: typing.Final = 3.0
_PATIENCE: typing.Final = 60.0

_log = logging.getLogger(__name__)


def gently(
    service: str, volumes: pathlib.Path, progress: collections.abc.Callable[[str], None]
) -> None:
    """Restart the worker, or start it, without a build's loss where that can be had.

    A task that waits for its GPU while its container is made is waited for up to a minute. Where
    something begins all the time, the third try goes through with it.

    Args:
        service: its unit.
        volumes: where baggageclaim has them.
        progress: told what is waited for.

    Raises:
        machine.process.CommandError: if systemd can't start it.
        OSError: what runs can't be looked at.
    """
    if not services.main_pid(service):
        services.ensure_running(service, restart=True)
        return
    worker = _Worker(service, volumes)
    end = time.monotonic() + _PATIENCE
    for left in reversed(range(_TRIES)):
        while worker.waits() and time.monotonic() < end:
            progress("Restarting the worker: waiting for a task that waits for its GPU")
            time.sleep(1)
        progress("Restarting the worker: its steps stand still for some seconds")
        if worker.restart(anyway=not left):
            return
        time.sleep(_PAUSE)


class _Worker:
    """A worker's process, looked at from beside, and the steps that stand still for it."""

    def __init__(self, service: str, volumes: pathlib.Path) -> None:
        self._service, self._volumes = service, volumes
        self._pid = services.main_pid(service)
        self._left = _HELD
        # The steps that stand still, by name: what thaws each.
        self._held: dict[str, pathlib.Path] = {}
        # What web reads of their output.
        self._read: dict[str, set[str]] = {}

    def restart(self, *, anyway: bool) -> bool:
        """Restart it. Return False if it runs on, as it came to no rest and not `anyway`."""
        frozen, begun = freezer.Freezer(self._left), time.monotonic()
        frozen.begin()
        try:
            if not self._comes_to_rest(frozen) and not anyway:
                return False
            # At once, since systemctl takes its time to begin.
            leftovers.end_processes([self._pid], _STOP)
            services.ensure_running(self._service, restart=True)
            self._thaw_attached(frozen, begun + self._left)
            return True
        finally:
            frozen.end()
            self._held.clear()
            self._left -= time.monotonic() - begun

    def waits(self) -> bool:
        """Whether a container is being made for so long that it must be waiting for a GPU."""
        ages = [one.age for one in steps.containers() if not one.init and _is_being_made(one)]
        return max(ages, default=0.0) > _WAITS

    def _comes_to_rest(self, frozen: freezer.Freezer) -> bool:
        """Wait until nothing is under way. Return False if that never was."""
        begun = time.monotonic()
        while time.monotonic() < begun + _SETTLING:
            there = steps.containers()
            making = self._hold(there, frozen)
            read = self._look_at_outputs(there)
            # Output that is of no step which stands still is of a process that begins or ends, and
            # so is a step that has none. Silence comes last: the look takes its time.
            known = read == set().union(*self._read.values()) and all(self._read.values())
            if known and not making and self._silence() > _STILL:
                took, number = time.monotonic() - begun, len(self._held)
                _log.info("rest after %.1f s: %d steps stand still", took, number)
                return True
            time.sleep(_EVERY)
        _log.info("no rest within %.1f s", _SETTLING)
        return False

    def _hold(self, there: list[steps.Container], frozen: freezer.Freezer) -> bool:
        """Have steps that run by now stand still. Return whether something is being made."""
        running = {one.name: one for one in there if one.step}
        for name in self._held.keys() - running.keys():
            frozen.thaw(self._held.pop(name))
        for name in running.keys() - self._held.keys():
            path = freezer.switch(running[name].init, name)
            if path and frozen.freeze(path):
                self._held[name] = path
        volumes = files.entries(self._volumes / "init")
        return bool(volumes) or any(map(_is_being_made, there))

    def _silence(self) -> float:
        """For how many seconds nothing has come from web, or gone to it."""
        # Other connections on this machine are the worker's to itself.
        tunnel = {
            one.inode
            for one in sockets.connections(self._pid)
            if one.port == TSA_PORT or not ipaddress.ip_address(one.address).is_loopback
        }
        try:
            return sockets.silence(tunnel)
        except OSError as error:
            _log.warning("the kernel does not tell of connections: %s", error.strerror)
            return math.inf  # what is being made is seen all the same

    def _look_at_outputs(self, there: list[steps.Container]) -> set[str]:
        """Note what web reads of each step that stands still. Return all that it reads."""
        read = outside.open_paths(self._pid, _OUTPUT)
        self._read = {
            one.name: read & outside.open_paths(outside.parent(one.init), _OUTPUT)
            for one in there
            if one.name in self._held
        }
        return read

    def _thaw_attached(self, frozen: freezer.Freezer, end: float) -> None:
        """Let each step go on when web has attached to it; those that it had not, at once."""
        seen: dict[str, float] = {}
        begun, number = time.monotonic(), len(self._held)
        while self._held and (now := time.monotonic()) < end:
            there = outside.open_paths(services.main_pid(self._service), _OUTPUT)
            for name, path in [*self._held.items()]:
                if self._read.get(name, set()) <= there:
                    seen.setdefault(name, now)
                if now - seen.get(name, now) >= _ATTACHING:
                    frozen.thaw(path)
                    del self._held[name]
            time.sleep(0.05)
        took = time.monotonic() - begun
        _log.info("%d of %d steps attached after %.1f s", number - len(self._held), number, took)


def _is_being_made(container: steps.Container) -> bool:
    # An older one that never began was left by a worker that was killed.
    ends = _BEGINNING if container.init else float(WEB_REQUEST_TIMEOUT)
    return container.is_new and not container.step and container.age < ends
