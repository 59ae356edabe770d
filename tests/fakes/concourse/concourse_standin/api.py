# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What of Concourse's own API the charm asks: a token for a password, teams, workers, containers.

Paths and fields are those of 8.3.0: fly/commands/login.go, atc/routes.go, atc/container.go,
atc/worker.go, atc/api/present. All is team main's; a token is any that was given, for as long as
this web lives.
"""

import base64
import secrets
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote

from .store import Row, Store

FLY = "Basic " + base64.b64encode(b"fly:Zmx5").decode()
TEAM = "main"


class Api:
    """Tokens, and what is shown for one."""

    def __init__(self, store: Store, allowed: Callable[[str, str], bool]) -> None:
        self._store, self._allowed = store, allowed
        self._tokens: set[str] = set()

    def token(self, headers: Mapping[str, str], body: bytes) -> tuple[int, object]:
        """Answer ``POST /sky/issuer/token``."""
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        if headers.get("Authorization") != FLY or form.get("grant_type") != "password":
            return 401, {"error": "invalid_client"}
        if not self._allowed(form.get("username", ""), form.get("password", "")):
            return 401, {"error": "access_denied"}
        token = secrets.token_urlsafe(32)
        self._tokens.add(token)
        return 200, {"access_token": token, "token_type": "bearer", "expires_in": 86399}

    def knows(self, headers: Mapping[str, str]) -> bool:
        """Whether a request comes with a token."""
        return headers.get("Authorization", "").removeprefix("Bearer ") in self._tokens

    async def get(self, words: list[str]) -> tuple[int, object]:
        """Answer ``GET /api/v1/<words>``."""
        match [unquote(word) for word in words]:
            case ["workers"]:
                return 200, [_worker(one) for one in self._store.workers()]
            case ["teams"]:
                return 200, [{"id": 1, "name": TEAM}]
            case ["teams", team, "containers"] if team == TEAM:
                return 200, self._containers()
            case ["teams", team, "containers", handle] if team == TEAM:
                found = [one for one in self._containers() if one["id"] == handle]
                return (200, found[0]) if found else (404, None)
            case _:
                return 404, {"stand_in_for": "Concourse"}

    async def put(self, words: list[str]) -> tuple[int, object]:
        """Answer ``PUT /api/v1/<words>``."""
        match [unquote(word) for word in words]:
            case ["workers", name, "prune"]:
                state = self._store.worker_state(name)
                if state == "running":
                    return 400, {"stderr": "cannot prune running worker"}
                if state is None:
                    return 404, None
                self._store.query("DELETE FROM standin_workers WHERE name = :name", name=name)
                return 200, None
            case _:
                return 404, {"stand_in_for": "Concourse"}

    def _containers(self) -> list[dict[str, Any]]:
        builds = self._store.builds("NOT collected")
        steps = [(build, step) for build in builds for step in build["plan"]]
        return [_container(build, step) for build, step in steps if "worker" in step]


def _worker(row: Row) -> dict[str, Any]:
    """It as JSON (8.3.0 atc/worker.go, where a worker without tags has null)."""
    names = ("name", "state", "version", "platform")
    return {**{name: row[name] for name in names if name in row}, "tags": row["tags"] or None}


def _container(build: Row, step: Row) -> dict[str, Any]:
    """It as JSON; what is empty is left out, as Go's omitempty does."""
    names = {"pipeline_name": build["pipeline"], "job_name": build["job"]}
    return {
        "id": step["handle"],
        "worker_name": step["worker"],
        "state": "created",
        "type": step["kind"],
        "step_name": step["name"],
        "build_id": build["id"],
        "build_name": build["name"],
        **{name: text for name, text in names.items() if text},
    }
