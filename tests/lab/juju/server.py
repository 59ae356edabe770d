# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The Unix socket behind the hook commands, answered by the lab command that runs the hooks."""

import concurrent.futures
import contextlib
import pathlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator

from tests.lab.juju import relation_tools, secret_tools, tools
from tests.lab.juju.context import HookContext, ToolError

Tool = Callable[[HookContext, list[str], str], str]
Before = Callable[[HookContext], None]
MODULES = {
    tools: """
        config_get is_leader juju_log status_set application_version_set open_port close_port
        opened_ports resource_get network_get juju_reboot action_get action_set action_fail
        action_log
    """,
    relation_tools: "relation_ids relation_list relation_get relation_set",
    secret_tools: "secret_add secret_set secret_get secret_grant secret_remove",
}
TOOLS: dict[str, Tool] = {
    name.replace("_", "-"): getattr(module, name)
    for module, names in MODULES.items()
    for name in names.split()
}


def call(context: HookContext, tool: str, arguments: list[str], stdin: str = "") -> str:
    """Run one hook command and return what it prints.

    Raises:
        ToolError: it is refused.
    """
    with context.lock:
        return TOOLS[tool](context, arguments, stdin)


class HookServer:
    """Answers hook commands while hooks run; use as a context manager.

    Args:
        path: of the socket. All machines see its directory.
        execute: runs the commands of a `juju-exec` with these arguments in a context of their own,
            and returns its exit status, stdout and stderr.
    """

    def __init__(self, path: pathlib.Path, execute: Callable[[list[str]], tuple[int, str, str]]):
        self._path = path
        self._execute = execute
        self._contexts: dict[str, HookContext] = {}
        self._before: dict[str, Before] = {}
        self._server: socketserver.ThreadingUnixStreamServer | None = None

    def __enter__(self) -> "HookServer":
        self._path.unlink(missing_ok=True)
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                outer.answer(self.request)

        self._server = socketserver.ThreadingUnixStreamServer(str(self._path), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server:
            self._server.shutdown()
            self._server.server_close()
        self._path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def serving(self, context: HookContext, before: Before) -> Iterator[None]:
        """Answer a hook's commands while the block runs; call `before` first for each."""
        self._contexts[context.id] = context
        self._before[context.id] = before
        try:
            yield
        finally:
            del self._contexts[context.id], self._before[context.id]

    def answer(self, connection: socket.socket) -> None:
        """Read one request from a connection, carry it out, answer."""
        request = b"".join(iter(lambda: connection.recv(65536), b"")).decode(errors="replace")
        identity, tool, count, *rest = [*request.split("\0"), "", "", ""]
        size = int(count) if count.isdigit() else 0
        context = self._contexts.get(identity)
        if tool == "juju-exec":
            reply = self._run_commands(identity, rest[:size])
        elif not context:
            reply = _refusal(f'{tool}: no hook runs with context "{identity}"')
        elif tool not in TOOLS:
            reply = _refusal(f'unknown command "{tool}"')
        else:
            context.commands += 1
            self._before[identity](context)
            reply = _carried_out(context, tool, rest[:size], rest[size])
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(reply)

    def _run_commands(self, identity: str, arguments: list[str]) -> bytes:
        if identity:
            within = f'juju-exec cannot be called from within a hook, have context "{identity}"'
            return _refusal(within, 2)
        try:
            status, *said = self._execute(arguments)
        except concurrent.futures.CancelledError:
            return b""
        except ToolError as error:
            return _refusal(str(error), error.status)
        return b"\0".join(part.encode() for part in (str(status), *said))


def _carried_out(context: HookContext, tool: str, given: list[str], stdin: str) -> bytes:
    try:
        output = call(context, tool, given, stdin)
    except ToolError as error:
        return _refusal(str(error), error.status)
    return b"0\0" + output.encode() + b"\0"


def _refusal(message: str, status: int = 1) -> bytes:
    return f"{status}\0\0ERROR {message}\n".encode()
