# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What juju-exec in the machines asks for: commands in a unit's context, in turn with its hooks.

Juju 4.0.15, cmd/internal/run/run.go and internal/worker/uniter/runlistener.go: the client waits,
and when it dies the commands are run all the same.
"""

import concurrent.futures

from tests.lab.juju.context import ArgumentError, HookContext, ToolError
from tests.lab.juju.store import Row, Store

RUN_COMMANDS = "run-commands"
_Answer = tuple[int, str, str]


class Commands:
    """The commands that wait for their turn, or run; they live no longer than the agents run.

    Args:
        store: the model, whose queues they are in.
    """

    def __init__(self, store: Store):
        self._store = store
        self._waiting: dict[int, tuple[str, concurrent.futures.Future[_Answer]]] = {}

    def execute(self, arguments: list[str]) -> _Answer:
        """Queue the commands of a `juju-exec -u UNIT COMMANDS`, and wait for what comes of them.

        Raises:
            ToolError: they can't be run.
            concurrent.futures.CancelledError: the agents have ended.
        """
        if len(arguments) != 3 or arguments[0] != "-u":
            raise ArgumentError("the lab's juju-exec knows -u UNIT COMMANDS only")
        unit = arguments[1]
        future: concurrent.futures.Future[_Answer] = concurrent.futures.Future()
        with self._store.transaction():
            if not self._store.value("SELECT 1 FROM unit WHERE name = ?", unit):
                raise ToolError(f'unit "{unit}" not found on this machine')
            sql = "INSERT INTO event (unit, kind) VALUES (?, ?)"
            self._waiting[self._store.do(sql, unit, RUN_COMMANDS)] = arguments[2], future
        return future.result()

    def text(self, event: Row) -> str:
        """The commands themselves; empty for every other event."""
        return self._waiting[event["id"]][0] if event["kind"] == RUN_COMMANDS else ""

    def answer(self, event: Row, context: HookContext, succeeded: bool) -> None:
        """Tell who waits for these what came of them."""
        _, future = self._waiting.pop(event["id"])
        future.set_result((context.exit_status or int(not succeeded), *context.said))

    def end(self) -> None:
        """Leave all that still wait without an answer: they ask the agents of the next command."""
        self._store.do("DELETE FROM event WHERE kind = ?", RUN_COMMANDS)
        while self._waiting:
            _, (_, future) = self._waiting.popitem()
            future.cancel()
