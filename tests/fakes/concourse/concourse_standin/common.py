# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What web and worker share."""

import asyncio
import json
import os
import ssl
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import asyncssh

WORKER_VERSION = "3.0"
KEEPALIVE_SECONDS = 5

_TASKS: set[asyncio.Task[None]] = set()  # The event loop itself keeps weak references only.

Answer = Callable[[str, str, Mapping[str, str], bytes], tuple[int, object]]


class StandinError(Exception):
    """Something that the operator or the build's author has to know; the text says it."""


def log(message: str, **facts: Any) -> None:
    """Write one JSON line to stderr, as Concourse logs."""
    line = {"level": "info", "source": "concourse-standin", "message": message, "data": facts}
    print(json.dumps(line), file=sys.stderr, flush=True)


def background(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run ``work`` beside the rest; if it fails, the process says so and ends."""

    def ended(task: asyncio.Task[None]) -> None:
        _TASKS.discard(task)
        if not task.cancelled() and (error := task.exception()):
            traceback.print_exception(error)
            sys.stderr.flush()
            os._exit(1)

    task = asyncio.get_running_loop().create_task(work)
    _TASKS.add(task)
    task.add_done_callback(ended)
    return task


def required(settings: Mapping[str, str], name: str) -> str:
    """The setting ``name``, or an error that names the flag as Concourse does."""
    if not settings.get(name):
        raise StandinError(f"the required flag `--{name}' was not specified")
    return settings[name]


def private_key(path: str) -> asyncssh.SSHKey:
    """The private key in the file."""
    try:
        return asyncssh.import_private_key(read_file(path))
    except asyncssh.KeyImportError as error:
        raise StandinError(f"{path}: {error}") from error


def public_keys(path: str) -> list[asyncssh.SSHKey]:
    """The keys in a file of authorized keys; a line that is none is an error."""
    lines = [line.strip() for line in read_file(path).splitlines()]
    try:
        return [asyncssh.import_public_key(x) for x in lines if x and not x.startswith("#")]
    except asyncssh.KeyImportError as error:
        raise StandinError(f"{path}: {error}") from error


def read_file(path: str) -> str:
    """The text of the file; a :class:`StandinError` if it cannot be read."""
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise StandinError(f"cannot read {path}: {error}") from error


def seconds(text: str) -> float:
    """A duration as Go writes it, of one unit: ``120h``, ``5m``, ``30s``."""
    units = {"h": 3600, "m": 60, "s": 1}
    if text[-1:] not in units or not text[:-1].isdigit():
        raise StandinError(f"invalid duration `{text}'")
    return float(text[:-1]) * units[text[-1]]


def serve_http(host: str, port: int, answer: Answer, tls: tuple[str, str] | None = None) -> None:
    """Answer each request with ``answer(method, path, headers, body)``'s status and JSON.

    ``tls`` names the files of a certificate and its key: HTTPS.
    """

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, document = answer(self.command, self.path, self.headers, body)
            plain = isinstance(document, str)
            reply = document.encode() if plain else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if plain else "application/json")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        do_GET = do_POST = do_PUT = _answer  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise StandinError(f"cannot listen on {host}:{port}: {error}") from error
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(*tls)
        except (OSError, ssl.SSLError) as error:
            raise StandinError(f"cannot use {tls}: {error}") from error
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
