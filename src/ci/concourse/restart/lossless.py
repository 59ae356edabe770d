# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Restarts the worker's process, or web beside it, without losing a step of a build.

A restart would lose a step whose container, volume or process is being created, a step that ends
before web has attached again, and the output in between. So running steps are frozen, which keeps
builds from starting further ones, until nothing is being created. Then the process is restarted.
Each step is thawed when web has attached, which opens its output again.
"""

import collections.abc
import ipaddress
import itertools
import logging
import math
import pathlib
import re
import time
import typing

from ci.concourse.restart import cgroup_freezer as freezer
from ci.concourse.restart import running_steps as steps
from ci.concourse.upstream import BAGGAGECLAIM_PORT, GARDEN_PORT, TSA_PORT, WEB_REQUEST_TIMEOUT
from machine import files
from machine import process_cleanup as leftovers
from machine import procfs as outside
from machine import systemd as services
from machine import tcp_connections as sockets

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
_SETTLING: typing.Final = 3.5
# For which a step stands still at most, all tries together. The guard ends each at the same time.
# What the tries leave of it is for the start, and for web's attaching: that takes up to 10.
_HELD: typing.Final = 19.0
_ENOUGH: typing.Final = 13.0
_PAUSE: typing.Final = 3.0
# The longest time that a stopping process may take to finish its requests.
_STOP: typing.Final = 2.0
# From when the output is open: two calls to containerd, before which a step must not end. Web is
# answered after them; where it is seen to wait for something, a step waits for longer.
_ATTACHING: typing.Final = 1.0
_UNANSWERED: typing.Final = 4.0
# A container that has no process by then gets none: its build was aborted.
_BEGINNING: typing.Final = 10.0
# What is made for longer waits for a GPU, and is not done sooner where the others stand still.
_WAITS: typing.Final = 3.0
# For how long a good moment is waited for, and tried; then comes one more try.
_PATIENCE: typing.Final = 60.0

_PROC: typing.Final = pathlib.Path("/proc")
_REST: typing.Final = {True: "rest", False: "no rest"}

Restart = collections.abc.Callable[[int], None]
"""Restarts something: given the number of the worker's process, 0 where none runs."""

# For how long steps have stood still in this hook, which may restart both web and the worker.
_stood: dict[str, float] = {}
_log = logging.getLogger(__name__)


def worker(
    service: str, volumes: pathlib.Path, progress: collections.abc.Callable[[str], None]
) -> None:
    """Restart the worker, or start it, without a build's loss where that can be had.

    A task that waits for its GPU while its container is made is waited for up to a minute. Where
    something begins all the time, the first try after that minute goes through with it.
    Steps that have stood still for as long as they may, for web, go on meanwhile.

    Args:
        service: its unit.
        volumes: where baggageclaim has them.
        progress: told what is waited for.

    Raises:
        machine.process.CommandError: if systemd can't start it.
        OSError: what runs can't be looked at.
    """

    def restart(pid: int) -> None:
        # At once, since systemctl takes its time to begin, and web may ask for something any time.
        leftovers.end_processes([pid] if pid else [], _STOP)
        services.ensure_running(service, restart=True)

    beside(service, volumes, restart, progress)


def beside(
    service: str,
    volumes: pathlib.Path,
    restart: Restart,
    progress: collections.abc.Callable[[str], None],
) -> None:
    """Restart something while this machine's steps stand still, where a worker runs here.

    Args:
        service: the worker's unit.
        volumes: where its baggageclaim has them.
        restart: does it.
        progress: told what is waited for.

    Raises:
        machine.process.CommandError: if steps can't be guarded, or what `restart` raises.
        OSError: what runs can't be looked at.
    """
    pid = services.main_pid(service)
    if not pid:
        restart(0)
        return
    steps_of = _Worker(service, pid, volumes)
    end = time.monotonic() + _PATIENCE
    for number in itertools.count():
        while (obstacle := steps_of.obstacle()) and time.monotonic() < end:
            progress(f"Waiting for {obstacle}, before a restart")
            time.sleep(1)
        if not steps_of.may_stand_still():
            restart(pid)
            return
        progress("Restarting Concourse: steps stand still for some seconds")
        if steps_of.hold_for(restart, anyway=number > 0 and time.monotonic() >= end):
            return
        time.sleep(_PAUSE)


class _Worker:
    """A worker's process, looked at from beside, and the steps that stand still for it."""

    def __init__(self, service: str, pid: int, volumes: pathlib.Path) -> None:
        self._service, self._pid, self._volumes = service, pid, volumes
        # The steps that stand still, by name: what thaws each.
        self._held: dict[str, pathlib.Path] = {}
        # Those that have left the control groups of their containers.
        self._apart: set[str] = set()
        # What web reads of their output, and by which descriptors all that it reads is open.
        self._read: dict[str, set[str]] = {}
        self._open: dict[int, str] = {}
        # Connections to the worker's servers that are there, the worker's own ones of them, and
        # when that was looked at.
        self._there: set[int] = set()
        self._own: set[int] = set()
        self._looked = -math.inf

    def hold_for(self, restart: Restart, *, anyway: bool) -> bool:
        """Restart something meanwhile. Return False without rest, where it is not `anyway`."""
        left = self._left(steps.containers())
        frozen, begun, held = freezer.Freezer(left), time.monotonic(), set[str]()
        frozen.begin()
        try:
            at_rest = self._comes_to_rest(frozen)
            held, took = {*self._held}, time.monotonic() - begun
            if at_rest or anyway:
                restart(self._pid)
            # Not before that: to log takes a call to Juju.
            level = logging.INFO if held else logging.DEBUG
            rest = _REST[at_rest]
            _log.log(level, "%s after %.1f s: %d steps stand still", rest, took, len(held))
            if not at_rest and not anyway:
                return False
            self._thaw_attached(frozen, begun + left)
            return True
        finally:
            frozen.end()
            for name in held:
                _stood[name] = _stood.get(name, 0.0) + time.monotonic() - begun
            self._held.clear()

    def obstacle(self) -> str:
        """Return why this is not a good moment for a restart; empty if it is one.

        A container that is being made for so long must be waiting for a GPU.
        """
        there = steps.containers()
        ages = [one.age for one in there if not one.init and _is_being_made(one)]
        if max(ages, default=0.0) > _WAITS:
            return "a task that waits for its GPU"
        return "tasks that stood still before" if self._left(there) < _ENOUGH else ""

    def may_stand_still(self) -> bool:
        """Whether the steps that are there may stand still for as long as rest may take."""
        return self._left(steps.containers()) > _SETTLING

    def _left(self, there: list[steps.Container]) -> float:
        """For how many seconds those that are there may stand still yet."""
        stood = [_stood.get(one.name, 0.0) for one in there if one.step]
        return _HELD - max(stood, default=0.0)

    def _comes_to_rest(self, frozen: freezer.Freezer) -> bool:
        """Wait until nothing is under way. Return False if that never was."""
        begun = time.monotonic()
        while time.monotonic() < begun + _SETTLING:
            there = steps.containers()
            making = self._hold(there, frozen)
            self._look_at_outputs(there)
            still = self._is_still()
            if self._knows_outputs() and not making and still:
                return True
            time.sleep(_EVERY)
        return False

    def _hold(self, there: list[steps.Container], frozen: freezer.Freezer) -> bool:
        """Freeze the running steps. Return whether something is being created."""
        running = {one.name: one for one in there if one.step}
        for name in sorted(self._held.keys() - running.keys()):
            frozen.thaw(self._held.pop(name))
        for name in sorted(running.keys() - self._held.keys()):
            init, step = running[name].init, running[name].step
            path = freezer.switch(init, step, name)
            if path and frozen.freeze(path):
                self._held[name] = path
            # Once, as Freezer does. One that has ended meanwhile has no group.
            elif not path and name not in self._apart and _PROC.joinpath(str(step)).exists():
                self._apart.add(name)
                _log.warning(
                    "the step of container %s can't be frozen: no control group of the container "
                    "has both pid %d, its first process, and the step's, pid %d", name, init, step
                )  # fmt: skip
        volumes = files.entries(self._volumes / "init")
        return bool(volumes) or any(map(_is_being_made, there))

    def _is_still(self) -> bool:
        """Whether web has asked for nothing for a while, and has its answers.

        The worker deletes finished containers and volumes by requests of its own, hundreds of them
        one after the other (8.3.0 worker/container_sweeper.go). A request that begins while web
        has been still is one of those, which the worker repeats if it is lost.
        """
        began = time.monotonic()
        there = self._forwarded(self._pid)
        silence = self._silence()
        self._own &= there
        if self._looked > time.monotonic() - silence + _STILL:
            self._own |= there - self._there
        self._there, self._looked = there, began
        return silence > _STILL and not _told_or(0, sockets.expecting, there - self._own)

    def _silence(self) -> float:
        """For how many seconds nothing has come from web, or gone to it."""
        # Other connections on this machine are the worker's to itself.
        tunnel = {
            one.inode
            for one in sockets.connections(self._pid)
            if one.port == TSA_PORT or not ipaddress.ip_address(one.address).is_loopback
        }
        return _told_or(math.inf, sockets.silence, tunnel)

    @staticmethod
    def _forwarded(pid: int) -> set[int]:
        """The worker's connections to its own servers, one for each request.

        Web's have each a connection of its own (8.3.0 atc/worker/factory.go DisableKeepAlives,
        gardenruntime/gclient/connection), which the worker forwards.
        """
        ports = (GARDEN_PORT, BAGGAGECLAIM_PORT)
        return {one.inode for one in sockets.connections(pid) if one.port in ports}

    def _look_at_outputs(self, there: list[steps.Container]) -> None:
        """Note what web reads, and what of it is of each step that stands still."""
        self._open = outside.open_files(self._pid, _OUTPUT)
        self._read = {
            one.name: {
                *outside.open_files(outside.parent(one.init), _OUTPUT).values()
            }.intersection(self._open.values())
            for one in there
            if one.name in self._held
        }

    def _knows_outputs(self) -> bool:
        """Whether what web reads is of steps that stand still, and of each of them.

        Other output is of a process that begins or ends, and so is a step without any, unless web
        reads none at all.
        """
        own = [*self._read.values()]
        complete = all(own) or not self._open
        return complete and set[str]().union(*own) == {*self._open.values()}

    def _thaw_attached(self, frozen: freezer.Freezer, end: float) -> None:
        """Thaw each step when web has attached to it; steps without web's attachment at once."""
        seen: dict[str, float] = {}
        begun, number = time.monotonic(), len(self._held)
        while self._held and (now := time.monotonic()) < end:
            anew = self._opened_anew()
            forwarded = self._forwarded(services.main_pid(self._service))
            answered = not _told_or(0, sockets.expecting, forwarded)
            enough = _ATTACHING if answered else _UNANSWERED
            for name, path in [*self._held.items()]:
                if self._read.get(name, set()) <= anew:
                    seen.setdefault(name, now)
                if now - seen.get(name, now) >= enough:
                    if not answered:
                        _log.info("web may not know that %s runs", name)
                    frozen.thaw(path)
                    del self._held[name]
            time.sleep(0.05)
        if number:
            took, left = time.monotonic() - begun, len(self._held)
            _log.info("%d of %d steps attached after %.1f s", number - left, number, took)

    def _opened_anew(self) -> set[str]:
        """The output that another process has open, or the same by other descriptors."""
        pid = services.main_pid(self._service)
        there = outside.open_files(pid, _OUTPUT).items()
        return {path for _, path in (there - self._open.items() if pid == self._pid else there)}


def _told_or(
    otherwise: float, ask: collections.abc.Callable[[set[int]], float], connections: set[int]
) -> float:
    try:
        return ask(connections)
    except OSError as error:
        _log.warning("the kernel does not list connections: %s", error.strerror)
        return otherwise  # containers that are being created are still seen


def _is_being_made(container: steps.Container) -> bool:
    # An older container without a process was left by a worker that was killed.
    ends = _BEGINNING if container.init else float(WEB_REQUEST_TIMEOUT)
    return container.is_new and not container.step and container.age < ends
