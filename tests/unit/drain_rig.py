# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The worker's process, as a drain sees it, in the rooms that only note."""

from ci.concourse.restart import running_steps as steps
from ci.concourse.worker import worker
from lifecycle import drain, drain_record


def replace(rooms, monkeypatch):
    """Have the worker's process, its steps, the clock and the waker be the rooms'."""

    def halt():
        rooms.calls.append("worker.halt")
        rooms.pid = 0

    def land():
        rooms.calls.append("worker.land")
        return rooms.pid

    for room, name, answer in (
        (worker, "main_pid", lambda: rooms.pid),
        (worker, "is_connected", lambda: rooms.connected),
        (worker, "has_tag", lambda _tag: False),
        (worker, "land", land),
        (worker, "halt", halt),
        (worker, "take_up", rooms.note("worker.take_up")),
        (steps, "running", lambda: rooms.steps),
        (drain_record, "now", lambda: rooms.now),
        (drain, "_wake", lambda _, pid, seconds: rooms.woken.append((pid, seconds))),
        (drain, "_let_sleep", lambda: None),
    ):
        monkeypatch.setattr(room, name, answer)
