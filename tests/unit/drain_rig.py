# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The rooms' worker, clock and waker, as a drain meets them."""

from lifecycle import clock, waker


class Clock(clock.Clock):
    """Tells the boot and the times that the rooms have."""

    def __init__(self, rooms):
        self._rooms = rooms

    def boot(self):
        return self._rooms.boot

    def since_boot(self):
        return self._rooms.now

    def now(self):
        return self._rooms.today


class Waker(waker.Waker):
    """Notes when the charm is to run again."""

    def __init__(self, rooms):
        self._rooms = rooms

    def wake(self, unit, pid, seconds):
        self._rooms.woken.append((pid, seconds))

    def sleep(self):
        pass


class Worker:
    """A worker whose process and steps are the rooms', and whose builds have no names."""

    job = "build"

    def __init__(self, rooms):
        self._rooms = rooms

    def name(self):
        return self._rooms.worker_name

    def running(self):
        return self._rooms.steps

    def builds(self, ids):
        return {one: self._rooms.builds[one] for one in ids if one in self._rooms.builds}

    def pid(self):
        return self._rooms.pid

    def is_connected(self):
        return self._rooms.connected

    def land(self):
        self._rooms.calls.append("worker.land")
        return self._rooms.pid

    def halt(self):
        self._rooms.calls.append("worker.halt")
        self._rooms.pid = 0

    def resume(self, say):
        self._rooms.calls.append("worker.take_up")
