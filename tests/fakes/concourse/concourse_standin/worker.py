# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""``concourse worker``: containerd, the connection to web, health and signals."""

import asyncio
import ctypes
import json
import os
import random
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncssh

from .common import (
    KEEPALIVE_SECONDS,
    WORKER_VERSION,
    StandinError,
    background,
    log,
    private_key,
    public_keys,
    read_file,
    required,
    seconds,
    serve_http,
)
from .containers import Containers, Network

SOCKET = "/run/containerd/containerd.sock"
READY_SECONDS = 60
RECONNECT_SECONDS = 1
PR_SET_PDEATHSIG = 1
# As Concourse does, with fewer names: https://github.com/concourse/concourse 8.2.5,
# worker/workercmd/containerd.go. Version 2 is read by every containerd from 1.3 on.
CONTAINERD_CONFIG = """version = 2
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]
"""
RELEASE = Path(__file__).resolve().parents[2]


class Gateway:
    """The web nodes' TSA, as a worker's settings name it."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._key = private_key(required(settings, "tsa-worker-private-key"))
        path = settings.get("tsa-public-key")
        self._host_keys = public_keys(path) if path else []
        self._hosts = settings.get("tsa-host", "127.0.0.1:2222").split(",")

    async def dial(self) -> asyncssh.SSHClientConnection:
        """Connect to one of them."""
        host, _, port = random.choice(self._hosts).strip().rpartition(":")
        return await asyncssh.connect(
            host.strip("[]"),
            int(port),
            username="beacon",
            client_keys=[self._key],
            known_hosts=(self._host_keys, [], []),
            agent_path=None,
            config=None,
            keepalive_interval=KEEPALIVE_SECONDS,
            connect_timeout=10,
        )

    async def tell(self, command: str, facts: dict[str, Any]) -> None:
        """Each command dials anew, so web must still know this worker's key."""
        async with await self.dial() as connection:
            await connection.run(command, input=json.dumps(facts) + "\n", check=True)


class Worker:
    """The worker node."""

    def __init__(self, settings: dict[str, str], tags: list[str]) -> None:
        if os.geteuid() != 0:
            raise StandinError("worker must be run as root")
        self._settings = settings
        self._gateway = Gateway(settings)
        self._work = Path(required(settings, "work-dir")).resolve()
        types = Path(settings.get("resource-types") or RELEASE / "resource-types")
        self._facts = {
            "name": settings.get("name") or socket.gethostname(),
            "tags": tags,
            "version": WORKER_VERSION,
            "platform": "linux",
            "max_active_tasks": int(settings.get("max-active-tasks") or 0),
            "resource_types": [_metadata(x) for x in sorted(types.iterdir())],
        }
        dns = settings.get("containerd-dns-server", "127.0.0.1").split(",")
        names = ("http_proxy", "https_proxy", "no_proxy")
        proxies = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
        patience = seconds(settings.get("containerd-request-timeout", "5m"))
        network = Network(dns, proxies, settings.get("certs-dir", ""))
        self._containers = Containers(RELEASE / "bin", self._work, types, network, patience)
        self._exit: asyncio.Future[int]
        self._retiring = False

    async def run(self) -> int:
        """Work until a signal, web, or containerd's end says otherwise; the exit status."""
        loop = asyncio.get_running_loop()
        self._exit = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGUSR1, self._leave, "land-worker")
        loop.add_signal_handler(signal.SIGUSR2, self._leave, "retire-worker")
        containerd = self._start_containerd()
        address = self._settings.get("healthcheck-bind-ip", "0.0.0.0")
        port = int(self._settings.get("healthcheck-bind-port", "8888"))
        serve_http(address, port, lambda *_: self._health())
        # Garden and Baggageclaim: they listen, and this stand-in's web asks them nothing.
        for name, usual in (("bind-port", "7777"), ("baggageclaim-bind-port", "7788")):
            port = int(self._settings.get(name, usual))
            serve_http("127.0.0.1", port, lambda *_: (200, {}))
        background(self._watch(containerd))
        background(self._beacon())
        status = await self._exit
        containerd.terminate()
        try:
            containerd.wait(5)
        except subprocess.TimeoutExpired:
            containerd.kill()
        return status

    def _finish(self, status: int, why: str) -> None:
        log("worker.exit", status=status, why=why)
        if not self._exit.done():
            self._exit.set_result(status)

    def _start_containerd(self) -> subprocess.Popen[bytes]:
        os.environ["PATH"] = f"{RELEASE / 'bin'}:{os.environ.get('PATH', '')}"
        self._work.mkdir(parents=True, exist_ok=True)
        config = self._work / "containerd.toml"
        config.write_text(CONTAINERD_CONFIG)
        config.chmod(0o755)
        libc = ctypes.CDLL(None)

        def before_exec() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.setpgid(0, 0)

        argv = [
            self._settings.get("containerd-bin") or "containerd",
            f"--address={SOCKET}",
            f"--root={self._work / 'containerd'}",
            f"--config={config}",
            "--log-level=info",
        ]
        try:
            # No thread of this process runs yet, so preexec_fn is safe.
            return subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=before_exec)  # noqa: PLW1509
        except OSError as error:
            raise StandinError(f"cannot start {argv[0]}: {error}") from error

    async def _watch(self, containerd: subprocess.Popen[bytes]) -> None:
        while containerd.poll() is None:
            await asyncio.sleep(0.5)
        self._finish(1, f"containerd exited with {containerd.returncode}")

    def _health(self) -> tuple[int, object]:
        """Whether containerd answers; called in a thread of its own."""
        argv = [str(RELEASE / "bin" / "ctr"), "--connect-timeout", "2s", "version"]
        try:
            done = subprocess.run(argv, capture_output=True, timeout=5, text=True, check=False)
            healthy, error = done.returncode == 0, done.stderr.strip()
        except subprocess.TimeoutExpired as expired:
            healthy, error = False, str(expired)
        garden = {"healthy": healthy, "response_error": error}
        baggageclaim = {"healthy": True, "response_error": ""}
        return 200 if healthy else 503, {"garden": garden, "baggageclaim": baggageclaim}

    async def _beacon(self) -> None:
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        while (await self._containers.ctr("version"))[0] != 0:
            if asyncio.get_running_loop().time() > deadline:
                self._finish(1, "containerd did not answer")
                return
            await asyncio.sleep(0.1)
        while True:
            try:
                await self._forward()
            except (asyncssh.Error, OSError) as error:
                log("beacon.failed", error=_ssh_text(error))
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _forward(self) -> None:
        """Register, then do what web asks until the connection ends."""
        async with await self._gateway.dial() as connection:
            process = await connection.create_process("forward-worker")
            process.stdin.write(json.dumps(self._facts) + "\n")
            log("beacon.registered", tags=self._facts["tags"])
            answering: set[asyncio.Task[None]] = set()
            try:
                while line := await process.stdout.readline():
                    message = json.loads(line)
                    if "event" in message:
                        self._finish(0, f"worker {message['event']}")
                        return
                    task = background(self._serve(message, process))
                    answering.add(task)
                    task.add_done_callback(answering.discard)
            finally:
                for task in answering:
                    task.cancel()

    async def _serve(
        self, message: dict[str, Any], process: asyncssh.SSHClientProcess[str]
    ) -> None:
        """Do one thing that web asks; what is not heard any more, web asks for again."""
        if message["op"] == "stop":
            await self._containers.stop(message["handle"])
        elif message["op"] == "hijack":
            done = await self._containers.hijack(message["step"], message["args"])
            process.stdin.write(json.dumps({"id": message["id"], "done": done}) + "\n")
        elif message["op"] == "destroy":
            try:
                await self._containers.destroy_build(message["build"], message["handles"])
            except StandinError as error:
                log("container.destroy-failed", build=message["build"], error=str(error))
        else:
            step, number = message["step"], message["id"]
            self._containers.start(step, message["build"])
            with suppress(BrokenPipeError):
                async for chunk in self._containers.follow(step["handle"], message["offset"]):
                    reply = {"id": number, "out": chunk.decode("latin-1")}
                    process.stdin.write(json.dumps(reply) + "\n")
                done = {"id": number, "done": self._containers.result(step["handle"])}
                process.stdin.write(json.dumps(done) + "\n")

    def _stop(self) -> None:
        if not self._retiring:
            self._finish(0, "signal")
            return
        background(self._delete_and_stop())

    async def _delete_and_stop(self) -> None:
        try:
            await asyncio.wait_for(self._tell("delete-worker"), 10)
        except (asyncssh.Error, OSError, asyncio.TimeoutError) as error:
            log("beacon.delete-failed", error=_ssh_text(error))
        self._finish(0, "signal while retiring")

    def _leave(self, command: str) -> None:
        self._retiring = command == "retire-worker"
        background(self._tell_until_heard(command))

    async def _tell_until_heard(self, command: str) -> None:
        while True:
            try:
                await self._tell(command)
                return
            except (asyncssh.Error, OSError) as error:
                log("beacon.failed", command=command, error=_ssh_text(error))
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _tell(self, command: str) -> None:
        await self._gateway.tell(command, self._facts)


def _metadata(folder: Path) -> dict[str, Any]:
    return json.loads(read_file(str(folder / "resource_metadata.json")))


def _ssh_text(error: Exception) -> str:
    """Concourse's words (tsa/client.go:398-409) for a host key that is not the expected one."""
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return "remote host public key mismatch"
    return f"failed to dial: {error}"
