# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""`python3 -m ci.runners.containers ENGINE NAME SLICE GROUP RUNTIME`: an engine, for one job.

systemd passes the socket and starts this program at the job's first request (sd_listen_fds(3)).
The arguments are the path of the engine's socket, the name of the job's runner, its slice, that
slice's control group, and the runtime that every container of the job gets, or an empty one. If
this program fails, the job has no containers.
"""

import asyncio
import contextlib
import json
import socket
import sys
import typing
from asyncio import StreamReader, StreamWriter

from ci.runners.containers import requests
from ci.runners.containers.requests import BadRequestError, Body

_FIRST: typing.Final = 3  # the descriptor of the socket (sd_listen_fds(3), SD_LISTEN_FDS_START)
# In seconds: for the head and the body of a request, and for an answer of the engine to us.
_PATIENCE: typing.Final = 60.0
_CHUNK: typing.Final = 64 << 10


class Door:
    """The engine, as one job has it."""

    def __init__(self, listens: str, name: str, unit: str, group: str, runtime: str) -> None:
        """Do nothing yet.

        Args:
            listens: the path of the engine's socket.
            name: the name of the job's runner.
            unit: the runner's slice.
            group: the slice's control group.
            runtime: the runtime of every container; empty: the job's choice.
        """
        self._listens, self._name = listens, name
        self._unit, self._group = unit, group
        self._tasks = set[object]()
        self._place: Body = {"Runtime": runtime} if runtime else {}

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one connection."""
        # Once the job has said all, asyncio refers to this task no more, and could collect it.
        task = asyncio.current_task()
        self._tasks.add(task)
        with contextlib.suppress(ConnectionError):
            try:
                await self._serve(reader, writer)
            except BadRequestError as refusal:
                await _refuse(writer, refusal.status, str(refusal))
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await _refuse(writer, 400, "this is not a whole request")
            except (OSError, ValueError, LookupError, asyncio.TimeoutError) as error:
                await _refuse(writer, 503, f"the container engine does not answer: {error}")
        writer.close()
        self._tasks.discard(task)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        head = requests.parse(await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _PATIENCE))
        if kind := head.makes:
            size = requests.length(head)
            given = await asyncio.wait_for(reader.readexactly(size), _PATIENCE)
            place = await self._find_place() if kind == "containers" else {}
            body = requests.marked(kind, given, self._name, place)
            if kind == "containers":
                for volume in requests.volumes(body):
                    await self._ask("POST", "/volumes/create", volume)
            text = json.dumps(body).encode()
            sent = head.as_bytes(len(text)) + text
        else:
            sent = head.as_bytes()
        theirs, ours = await asyncio.open_unix_connection(self._listens)
        ours.write(sent)
        up = asyncio.create_task(_copy(reader, ours))
        try:
            await _copy(theirs, writer)
        finally:
            # The answer is over: nothing that comes now is for it.
            up.cancel()
            ours.close()

    async def _find_place(self) -> Body:
        """Return the parent of containers' control groups, as the engine's driver takes it."""
        if "CgroupParent" not in self._place:
            is_systemd = (await self._ask("GET", "/info"))["CgroupDriver"] == "systemd"
            # Without systemd's driver podman takes no parent that is called like a slice.
            self._place["CgroupParent"] = self._unit if is_systemd else f"{self._group}/job"
        return self._place

    async def _ask(self, method: str, path: str, body: Body | None = None) -> Body:
        """Return the engine's answer to a request of our own.

        Raises:
            OSError, ValueError, LookupError: it does not answer as an engine does, or refuses.
        """
        text = json.dumps(body).encode() if body else b""
        fields = (("Host", "localhost"), ("Content-Type", "application/json"))
        head = requests.Head(method, path, "HTTP/1.0", fields)
        theirs, ours = await asyncio.open_unix_connection(self._listens)
        ours.write(head.as_bytes(len(text)) + text)
        try:
            said = await asyncio.wait_for(theirs.read(-1), _PATIENCE)
        finally:
            ours.close()
        first, _, rest = said.partition(b"\r\n\r\n")
        answer = typing.cast("Body", json.loads(rest))
        if first.split(b" ")[1][:1] != b"2":
            raise OSError(f"{method} {path}: {answer.get('message', '')}")
        return answer


async def _copy(source: StreamReader, target: StreamWriter) -> None:
    """Pass on all that comes, and then that nothing more comes."""
    with contextlib.suppress(ConnectionError):
        while data := await source.read(_CHUNK):
            target.write(data)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()


async def _refuse(writer: StreamWriter, status: int, why: str) -> None:
    """Answer as the engine does."""
    text = json.dumps({"message": f"gpu-ci-worker: {why}"})
    writer.write(
        f"HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode()
    )
    await writer.drain()


async def _main(door: Door) -> None:
    with socket.socket(fileno=_FIRST) as passed:
        server = await asyncio.start_unix_server(door.serve, sock=passed, limit=requests.LONGEST)
        async with server:
            await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(Door(*sys.argv[1:])))
