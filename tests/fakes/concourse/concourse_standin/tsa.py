# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Web's door for workers: an SSH server that knows workers by their keys, as TSA does."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncssh

from .common import KEEPALIVE_SECONDS, StandinError, background, log, private_key, public_keys
from .store import Store

STALL_SECONDS = 2  # Concourse needs a minute (two heartbeats); a lab should not wait for that.
POLL_SECONDS = 0.2
COMMANDS = ("forward-worker", "delete-worker", "retire-worker", "land-worker")


class Session:
    """One worker's connection: JSON lines, each request answered by any number of messages."""

    def __init__(self, process: asyncssh.SSHServerProcess[str]) -> None:
        self._process = process
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Queue[dict[str, Any] | None]] = {}

    def send(self, **message: Any) -> None:
        """Send a message that has no answer."""
        if not self._process.stdout.is_closing():
            self._process.stdout.write(json.dumps(message) + "\n")

    async def request(self, op: str, **fields: Any) -> AsyncIterator[dict[str, Any]]:
        """Send a request; its answers. They end without ``done`` if the connection is lost."""
        number = next(self._ids)
        queue = self._waiting[number] = asyncio.Queue()
        self.send(id=number, op=op, **fields)
        try:
            while (message := await queue.get()) is not None:
                yield message
                if "done" in message:
                    return
        finally:
            del self._waiting[number]

    async def read(self) -> None:
        """Hand out the worker's messages until it is gone."""
        try:
            while line := await self._process.stdin.readline():
                message = json.loads(line)
                if message["id"] in self._waiting:
                    self._waiting[message["id"]].put_nowait(message)
        finally:
            for queue in self._waiting.values():
                queue.put_nowait(None)


class Tsa:
    """The SSH server and the workers that are connected to it."""

    def __init__(self, host_key: str, authorized_keys: str | None, store: Store) -> None:
        self.sessions: dict[str, Session] = {}
        self._store = store
        self._host_key = private_key(host_key)
        self._authorized_file = authorized_keys
        self._authorized: set[bytes] = set()
        self.load_authorized_keys()

    def load_authorized_keys(self) -> None:
        """Read the authorized keys (again, at SIGHUP); those who are connected stay so."""
        keys = public_keys(self._authorized_file) if self._authorized_file else []
        self._authorized = {key.public_data for key in keys}
        log("tsa.authorized-keys", count=len(self._authorized))

    def reload(self) -> None:
        """SIGHUP: an unreadable file leaves the keys as they were."""
        try:
            self.load_authorized_keys()
        except StandinError as error:
            log("tsa.failed-to-reload-authorized-keys", error=str(error))

    async def listen(self, host: str, port: int) -> None:
        """Take workers from now on; those that do not come back after a restart are stalled."""
        authorized = self

        class Door(asyncssh.SSHServer):
            def public_key_auth_supported(self) -> bool:
                return True

            def validate_public_key(self, _username: str, key: asyncssh.SSHKey) -> bool:
                known = key.public_data in authorized._authorized
                if not known:
                    log("tsa.unknown-worker-key", fingerprint=key.get_fingerprint())
                return known

        try:
            await asyncssh.listen(
                host,
                port,
                server_factory=Door,
                server_host_keys=[self._host_key],
                process_factory=self._serve,
                keepalive_interval=KEEPALIVE_SECONDS,
            )
        except OSError as error:
            raise StandinError(f"cannot listen on {host}:{port}: {error}") from error
        for worker in self._store.workers():
            background(self._stall(worker["name"], 5 * STALL_SECONDS))

    async def session(self, worker: str) -> Session:
        """The worker's session, now or when it is back.

        Raises:
            StandinError: the worker has left the cluster.
        """
        while worker not in self.sessions:
            if self._store.worker_state(worker) is None:
                raise StandinError(f"worker '{worker}' disappeared")
            await asyncio.sleep(POLL_SECONDS)
        return self.sessions[worker]

    def settle(self, name: str) -> None:
        """Let a worker go that retires or lands, once no build runs on it any more."""
        state = self._store.worker_state(name)
        if state not in ("retiring", "landing"):
            return
        if self._store.builds("status = 'started' AND worker = :name", name=name):
            return
        if state == "retiring":
            self._delete(name)
        else:
            self._set_state(name, "landed")
            self._dismiss(name, "landed")

    async def _serve(self, process: asyncssh.SSHServerProcess[str]) -> None:
        command = process.command
        if command not in COMMANDS:
            process.exit(255)
            return
        worker = json.loads(await process.stdin.readline())
        name = worker["name"]
        state = self._store.worker_state(name)
        log("tsa.command", command=command, worker=name)
        if command == "forward-worker":
            await self._forward(process, worker)
        elif command == "delete-worker":
            self._delete(name)
        elif command == "retire-worker" and state in ("landed", "stalled"):
            # 8.3.0 atc/db/migration, addr_when_running: one without an address can't retire.
            process.exit(1)
            return
        elif command in ("retire-worker", "land-worker") and state is not None:
            self._set_state(name, "retiring" if command == "retire-worker" else "landing")
            self.settle(name)
        process.exit(0)

    async def _forward(
        self, process: asyncssh.SSHServerProcess[str], worker: dict[str, Any]
    ) -> None:
        name = worker["name"]
        self._store.save_worker(worker)
        session = self.sessions[name] = Session(process)
        self._store.hold_worker(name)
        self.settle(name)
        try:
            await session.read()
        except (asyncssh.Error, OSError) as error:
            log("tsa.connection-lost", worker=name, error=str(error))
        finally:
            if self.sessions.get(name) is session:
                del self.sessions[name]
                background(self._stall(name, STALL_SECONDS))
            self._store.let_worker_go(name)

    async def _stall(self, name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if name in self.sessions or self._store.worker_state(name) != "running":
            return
        if not self._store.is_worker_held_elsewhere(name):
            self._set_state(name, "stalled")

    def _set_state(self, name: str, state: str) -> None:
        log("tsa.worker-state", worker=name, state=state)
        self._store.query(
            "UPDATE standin_workers SET state = :state WHERE name = :name", state=state, name=name
        )

    def _delete(self, name: str) -> None:
        log("tsa.worker-deleted", worker=name)
        self._store.query("DELETE FROM standin_workers WHERE name = :name", name=name)
        self._dismiss(name, "retired")

    def _dismiss(self, name: str, event: str) -> None:
        if session := self.sessions.get(name):
            session.send(event=event)
