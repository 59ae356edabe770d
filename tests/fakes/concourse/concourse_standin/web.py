# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""``concourse web``: PostgreSQL, the workers' door, builds, and HTTP for the stand-in's fly."""

import asyncio
import base64
import binascii
import crypt
import hmac
import json
import signal
from collections.abc import Mapping
from typing import Any

import pg8000.exceptions

from .api import Api
from .common import (
    WORKER_VERSION,
    StandinError,
    log,
    private_key,
    required,
    serve_http,
)
from .engine import Engine
from .main import VERSION
from .plan import job_plan, one_off, read_yaml
from .store import Store
from .tsa import Tsa


class Web:
    """The web node."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings
        if "session-signing-key" in settings:
            private_key(settings["session-signing-key"])
        host_key = required(settings, "tsa-host-key")
        port = settings.get("bind-port", "8080")
        url = settings.get("external-url") or f"http://127.0.0.1:{port}"
        self._users = self._local_users()
        self._store = Store(settings)
        self._api = Api(self._store, self._is_user)
        self._tsa = Tsa(host_key, settings.get("tsa-authorized-keys"), self._store)
        # Each worker's own limit holds only where this one is set, as in Concourse.
        limit = "limit-active-tasks" in _list(settings.get("container-placement-strategy"))
        tasks = int(settings.get("max-active-tasks-per-worker") or 0) if limit else 0
        self._engine = Engine(self._store, self._tsa, url, tasks)

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT; builds live on, on their workers."""
        loop = self._loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._tsa.reload)
        self._tsa.reload()  # for a SIGHUP that came while it was ignored
        bind_ip = self._settings.get("bind-ip", "0.0.0.0")
        await self._tsa.listen(bind_ip, int(self._settings.get("tsa-bind-port", "2222")))
        self._engine.start()
        self._serve(bind_ip)
        log("web.listening")
        await stop.wait()
        return 0

    def _serve(self, bind_ip: str) -> None:
        get = self._settings.get
        serve_http(bind_ip, int(get("bind-port", "8080")), self._answer)
        if tls := get("tls-bind-port"):
            if not get("external-url", "").startswith("https:"):
                raise StandinError("must specify HTTPS external-url to use TLS")
            pair = required(self._settings, "tls-cert"), required(self._settings, "tls-key")
            serve_http(bind_ip, int(tls), self._answer, pair)
        if metrics := get("prometheus-bind-port"):
            text = 'concourse_workers_registered{state="running"} 0\n'
            serve_http(
                get("prometheus-bind-ip", "127.0.0.1"), int(metrics), lambda *_: (200, text)
            )

    def _local_users(self) -> dict[str, str]:
        """Users who may do things: those of the main team, with their passwords."""
        pairs = [pair.split(":", 1) for pair in _list(self._settings.get("add-local-user"))]
        if any(len(pair) != 2 for pair in pairs):
            raise StandinError("--add-local-user: expected username:password")
        members = _list(self._settings.get("main-team-local-user"))
        if not members:
            raise StandinError("auth is not configured: set --main-team-local-user")
        return {user: password for user, password in pairs if user in members}

    def _answer(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, object]:
        """Answer one HTTP request; called in a thread of its own."""
        path, _, query = path.partition("?")
        words = path.strip("/").split("/")
        if words == ["api", "v1", "info"]:
            return 200, {
                "version": VERSION,
                "worker_version": WORKER_VERSION,
                "external_url": self._settings.get("external-url", ""),
            }
        if words == ["api", "v1", "health"]:
            return self._health()
        if (method, words) == ("POST", ["sky", "issuer", "token"]):
            return self._api.token(headers, body)
        answers = {"GET": self._api.get, "PUT": self._api.put}
        if method in answers and words[:2] == ["api", "v1"]:
            if not self._api.knows(headers):
                return 401, None
            work = answers[method](words[2:])
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)
        if words[0] != "standin":
            return 200 if words == [""] else 404, {"stand_in_for": "Concourse"}
        if not self._allowed(headers.get("Authorization", "")):
            return 401, {"error": "invalid username and password"}
        work = self._act(method, words[1:], query, json.loads(body or b"null"))
        try:
            return 200, asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)
        except StandinError as error:
            return 400, {"error": str(error)}
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            return 400, {"error": f"invalid configuration: {error!r}"}

    def _health(self) -> tuple[int, object]:
        """Of Concourse's own answer what the charm reads: whether the database can be used."""

        async def ask() -> str:
            try:
                self._store.query("SELECT 1 AS one")
            except (StandinError, pg8000.exceptions.Error, OSError):
                return "unhealthy"
            return "healthy"

        status = asyncio.run_coroutine_threadsafe(ask(), self._loop).result(timeout=60)
        error = {} if status == "healthy" else {"error": "database unreachable"}
        return 200 if not error else 503, {"database": {"status": status, **error}}

    def _allowed(self, authorization: str) -> bool:
        try:
            given = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        except (binascii.Error, UnicodeDecodeError):
            return False
        user, _, password = given.partition(":")
        return self._is_user(user, password)

    def _is_user(self, user: str, password: str) -> bool:
        known = self._users.get(user, "")
        if known.startswith("$2"):
            password = crypt.crypt(password, known) or ""
        return bool(known) and hmac.compare_digest(known.encode(), password.encode())

    async def _act(self, method: str, words: list[str], query: str, body: Any) -> object:
        match method, words:
            case "GET", ["user"]:
                return {}
            case "GET", ["workers"]:
                return self._store.workers()
            case _, ["builds", *_]:
                return await self._act_on_builds(method, words, query, body)
            case _, ["pipelines", name, *rest]:
                return self._act_on_pipeline(method, name, rest, body)
            case _:
                raise StandinError(f"the stand-in knows no {method} /{'/'.join(words)}")

    async def _act_on_builds(self, method: str, words: list[str], query: str, body: Any) -> object:
        match method, words:
            case "POST", ["builds"]:
                plan = one_off(read_yaml(body["task"]), body["tags"])
                return {"id": self._engine.add("one-off", None, None, plan)}
            case "GET", ["builds"]:
                return [_without_plan(build) for build in self._store.builds()]
            case "GET", ["builds", number, "events"]:
                return self._events(int(number), int(query.removeprefix("since=") or 0))
            case "PUT", ["builds", number, "abort"]:
                return self._engine.abort(int(number))
            case "POST", ["builds", number, "hijack"]:
                return await self._engine.hijack(int(number), body["step"], body["args"])
            case _:
                raise StandinError(f"the stand-in knows no {method} /{'/'.join(words)}")

    def _act_on_pipeline(self, method: str, name: str, words: list[str], body: Any) -> object:
        match method, words:
            case "PUT", []:
                return self._set_pipeline(name, body["config"])
            case "PUT", ["unpause"]:
                self._pipeline(name)
                return self._store.query(
                    "UPDATE standin_pipelines SET paused = false WHERE name = :name", name=name
                )
            case "POST", ["jobs", job, "builds"]:
                pipeline = self._pipeline(name)
                if pipeline["paused"]:
                    raise StandinError(f"pipeline '{name}' is paused: fly unpause-pipeline")
                plan = job_plan(read_yaml(pipeline["config"]), job)
                return {"id": self._engine.add("", name, job, plan)}
            case _:
                raise StandinError(f"the stand-in knows no {method} /{'/'.join(words)}")

    def _events(self, number: int, since: int) -> object:
        # The build first: what it wrote before it ended is then surely among the rows.
        builds = self._store.builds("id = :id", id=number)
        if not builds:
            raise StandinError(f"build {number} not found")
        rows = self._store.query(
            "SELECT id, data FROM standin_events WHERE build = :build AND id > :since ORDER BY id",
            build=number,
            since=since,
        )
        return {
            "text": b"".join(row["data"] for row in rows).decode("latin-1"),
            "last": rows[-1]["id"] if rows else since,
            **_without_plan(builds[0]),
        }

    def _set_pipeline(self, name: str, config: str) -> None:
        pipeline = read_yaml(config)
        for job in pipeline.get("jobs", ()):
            job_plan(pipeline, job["name"])
        self._store.query(
            "INSERT INTO standin_pipelines (name, config) VALUES (:name, :config) "
            "ON CONFLICT (name) DO UPDATE SET config = :config",
            name=name,
            config=config,
        )

    def _pipeline(self, name: str) -> dict[str, Any]:
        rows = self._store.query("SELECT * FROM standin_pipelines WHERE name = :name", name=name)
        if not rows:
            raise StandinError(f"pipeline '{name}' not found")
        return rows[0]


def _without_plan(build: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in build.items() if key != "plan"}


def _list(text: str | None) -> list[str]:
    return [word for word in (text or "").split(",") if word]
