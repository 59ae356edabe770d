# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Web's builds: which worker takes a step, and what becomes of it."""

import asyncio
import json
from typing import Any

from .common import StandinError, background, log
from .store import Row, Store
from .tsa import Tsa

SWEEP_SECONDS = 5
ONE_OFF_GRACE_SECONDS = 300  # as Concourse: atc/atccmd/command.go, gc one-off grace period


class Engine:
    """Runs builds one step after the other; every move is in the store, so a restart goes on."""

    def __init__(self, store: Store, tsa: Tsa, external_url: str, failed_grace: float) -> None:
        self._store = store
        self._tsa = tsa
        self._external_url = external_url
        self._failed_grace = failed_grace
        self._aborted: set[int] = set()

    def start(self) -> None:
        """Take up the builds that ran when web stopped, and begin to collect containers."""
        for build in self._store.builds("status = 'started'"):
            background(self._run(build))
        background(self._sweep())

    def add(self, name: str, pipeline: str | None, job: str | None, plan: list[Row]) -> int:
        """Start a build; its id."""
        number = self._store.add_build(name, pipeline, job, plan)
        background(self._run(self._store.builds("id = :id", id=number)[0]))
        return number

    def abort(self, number: int) -> None:
        """Stop the build's running step."""
        builds = self._store.builds("id = :id AND status = 'started'", id=number)
        if not builds:
            raise StandinError(f"build {number} is not running")
        self._aborted.add(number)
        session = self._tsa.sessions.get(builds[0]["worker"])
        if session:
            session.send(
                op="stop", id=0, handle=builds[0]["plan"][builds[0]["position"]]["handle"]
            )

    async def _run(self, build: Row) -> None:
        number, exit_status = build["id"], 0
        log("build.started", build=number, position=build["position"])
        try:
            while build["position"] < len(build["plan"]):
                exit_status = await self._step(build, build["plan"][build["position"]])
                if exit_status != 0:
                    break
                build["position"] += 1
            status = "failed" if exit_status else "succeeded"
        except StandinError as error:
            self._store.add_event(number, f"{error}\n".encode())
            status = "errored"
        if number in self._aborted:
            self._aborted.discard(number)
            status = "aborted"
        log("build.finished", build=number, status=status)
        self._store.query(
            "UPDATE standin_builds SET status = :status, exit_status = :exit, ended = now() "
            "WHERE id = :id",
            status=status,
            exit=exit_status,
            id=number,
        )
        if build["worker"]:
            self._tsa.settle(build["worker"])

    async def _step(self, build: Row, step: Row) -> int:
        """Run the step where it runs already, or on a worker that may take it; its status."""
        number, position = build["id"], build["position"]
        if "worker" not in step:
            step["worker"] = build["worker"] = self._place(step, build["worker"])
            step["env"] = self._environment(build, step)
            self._store.move_build(build)
            title = f"{step['kind']} {step['name']}: selected worker: {step['worker']}\n"
            self._store.add_event(number, title.encode())
        while True:
            session = await self._tsa.session(step["worker"])
            offset = self._store.step_bytes(number, position)
            async for message in session.request("step", step=step, build=number, offset=offset):
                if "out" in message:
                    data = message["out"].encode("latin-1")
                    self._store.add_event(number, data, position)
                elif "error" in message["done"]:
                    raise StandinError(message["done"]["error"])
                else:
                    return self._finish(build, step, message["done"])

    def _finish(self, build: Row, step: Row, done: Row) -> int:
        """Hand the version that a check or put reports to the get that follows it."""
        if step["request"] is None or done["exit"] != 0:
            return done["exit"]
        try:
            reply = json.loads(done["stdout"])
            version = reply[-1] if step["kind"] == "check" else reply["version"]
        except (ValueError, LookupError, TypeError) as error:
            raise StandinError(f"{step['kind']} {step['name']}: no version: {error}") from error
        if step["kind"] != "get":
            build["plan"][build["position"] + 1]["request"]["version"] = version
        return 0

    def _place(self, step: Row, last: str | None) -> str:
        """The worker of the build's last step if it may take this one, else the first that may.

        The rule is ``tagsMatch`` of Concourse 8.2.5, atc/worker/pool.go: a step's tags must all be
        among the worker's, and a worker with tags takes no step without.
        """
        wanted = set(step["tags"])
        fitting = [
            worker["name"]
            for worker in self._store.workers()
            if worker["state"] == "running"
            and wanted <= set(worker["tags"])
            and (wanted or not worker["tags"])
        ]
        if not fitting:
            asked = ["platform 'linux'", *(f"tag '{tag}'" for tag in step["tags"])]
            if "type" in step["image"]:
                asked.insert(0, f"resource type '{step['image']['type']}'")
            raise StandinError(f"no workers satisfying: {', '.join(asked)}")
        return last if last in fitting else fitting[0]

    def _environment(self, build: Row, step: Row) -> list[str]:
        """The step's own environment, in Concourse's order (atc/exec/step_metadata.go:25-108)."""
        url = f"ATC_EXTERNAL_URL={self._external_url}"
        if step["request"] is None:
            return [url, *(f"{name}={value}" for name, value in step["params"].items())]
        known: dict[str, Any] = {
            "BUILD_ID": build["id"],
            "BUILD_NAME": build["name"],
            "BUILD_TEAM_ID": 1,
            "BUILD_TEAM_NAME": "main",
            "BUILD_JOB_NAME": build["job"],
            "BUILD_PIPELINE_NAME": build["pipeline"],
        }
        given = [f"{name}={value}" for name, value in known.items() if value]
        return [*given, url, f"BUILD_URL={self._external_url}/builds/{build['id']}"]

    async def _sweep(self) -> None:
        """Destroy the containers of builds that ended long enough ago."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            old = self._store.builds(
                "NOT collected AND ended < now() - make_interval(secs => CASE "
                "WHEN job IS NULL THEN CAST(:one_off AS float8) WHEN status = 'succeeded' THEN 0 "
                "ELSE CAST(:failed AS float8) END)",
                one_off=float(ONE_OFF_GRACE_SECONDS),
                failed=self._failed_grace,
            )
            for build in old:
                self._collect(build)

    def _collect(self, build: Row) -> None:
        """Have the build's workers destroy what is left of it; later if one is away."""
        names = {step["worker"] for step in build["plan"] if "worker" in step}
        present = {name for name in names if self._store.worker_state(name) is not None}
        if not present <= self._tsa.sessions.keys():
            return
        for name in present:
            handles = [step["handle"] for step in build["plan"] if step.get("worker") == name]
            session = self._tsa.sessions[name]
            session.send(op="destroy", id=0, build=build["id"], handles=handles)
        self._store.query(
            "UPDATE standin_builds SET collected = true WHERE id = :id", id=build["id"]
        )
