# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Web's builds: which worker takes a step, and what becomes of it."""

import asyncio
import uuid
from typing import Any

from .common import StandinError, background, log
from .store import Row, Store
from .tsa import Tsa

SWEEP_SECONDS = 5
ADOPT_SECONDS = 2
PLACE_SECONDS = 1  # Concourse looks every 5 seconds.
NO_ROOM = b"no suitable workers found, waiting for worker...\n"
# As Concourse: atc/atccmd/command.go, the grace periods of gc for one-off and failed builds.
ONE_OFF_GRACE_SECONDS, FAILED_GRACE_SECONDS = 300, 120 * 3600


class Engine:
    """Runs builds one step after the other; every move is in the store, so a restart goes on."""

    def __init__(self, store: Store, tsa: Tsa, external_url: str, max_tasks: int) -> None:
        self._max_tasks = max_tasks
        self._store = store
        self._tsa = tsa
        self._external_url = external_url
        self._aborted: set[int] = set()
        self._running: set[int] = set()

    def start(self) -> None:
        """Take up the builds that no web has, now and later, and begin to collect containers."""
        background(self._adopt())
        background(self._sweep())

    async def _adopt(self) -> None:
        while True:
            for build in self._store.builds("status = 'started'"):
                self._take(build)
            await asyncio.sleep(ADOPT_SECONDS)

    def _take(self, build: Row) -> None:
        """Run a build, unless another web does, or this one."""
        if build["id"] not in self._running and self._store.lock(build["id"]):
            self._running.add(build["id"])
            background(self._run(build))

    def add(self, name: str, pipeline: str | None, job: str | None, plan: list[Row]) -> int:
        """Start a build; its id."""
        number = self._store.add_build(name, pipeline, job, plan)
        self._take(self._store.builds("id = :id", id=number)[0])
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

    async def hijack(self, number: int, name: str, args: list[str]) -> Row:
        """Run a process in the container of a build's step; its exit status and output."""
        builds = self._store.builds("id = :id", id=number)
        steps = builds[0]["plan"] if builds else []
        for step in steps:
            if step["name"] == name and "worker" in step:
                session = await self._tsa.session(step["worker"])
                async for message in session.request("hijack", step=step, args=args):
                    return message["done"]
        raise StandinError("no containers matched your search parameters!")

    async def _run(self, build: Row) -> None:
        number, exit_status = build["id"], 0
        log("build.started", build=number, position=build["position"])
        try:
            while build["position"] < len(build["plan"]):
                exit_status = await self._attempts(build, build["plan"][build["position"]])
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
        self._store.unlock(number)
        self._running.discard(number)

    async def _attempts(self, build: Row, step: Row) -> int:
        """Run the step as often as it may fail, in a container of its own each time."""
        while True:
            try:
                status = await self._step(build, step)
                self._end(build, step)
                if status == 0 or self._is_last(build, step):
                    return status
            except StandinError as error:
                self._end(build, step)
                if self._is_last(build, step):
                    raise
                self._store.add_event(build["id"], f"{error}\n".encode())
            self._store.forget_step(build["id"], build["position"])
            step["attempts"] -= 1
            step["earlier"].append(step["handle"])
            step["handle"] = str(uuid.uuid4())
            step.pop("worker", None)

    def _end(self, build: Row, step: Row) -> None:
        step["active"] = False
        self._store.move_build(build)

    def _is_last(self, build: Row, step: Row) -> bool:
        return step["attempts"] == 1 or build["id"] in self._aborted

    async def _step(self, build: Row, step: Row) -> int:
        """Run the step where it runs already, or on a worker that may take it; its status."""
        number, position = build["id"], build["position"]
        if "worker" not in step:
            step["worker"] = build["worker"] = await self._place(build, step)
            step["env"] = self._environment(build, step)
            step["active"] = True
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
                    return message["done"]["exit"]

    async def _place(self, build: Row, step: Row) -> str:
        """The worker of the build's last step if it may take this one, else the first that may.

        A task waits, as in Concourse 8.3, while all who may take it have as many as they may have.
        """
        waits = False
        while True:
            fitting = self._fitting(step)
            # A worker that restarts is away for a moment; who waits already goes on to wait.
            if not fitting and not waits:
                asked = ["platform 'linux'", *(f"tag '{tag}'" for tag in step["tags"])]
                if "type" in step["image"]:
                    asked.insert(0, f"resource type '{step['image']['type']}'")
                raise StandinError(f"no workers satisfying: {', '.join(asked)}")
            ready = [w["name"] for w in fitting if step["kind"] != "task" or self._has_room(w)]
            if ready:
                return build["worker"] if build["worker"] in ready else ready[0]
            if build["id"] in self._aborted:
                raise StandinError("interrupted")
            if not waits:
                self._store.add_event(build["id"], NO_ROOM)
            waits = True
            await asyncio.sleep(PLACE_SECONDS)

    def _fitting(self, step: Row) -> list[Row]:
        """The workers that run and may take this step, by their tags.

        The rule is ``tagsMatch`` of Concourse 8.2.5, atc/worker/pool.go: a step's tags must all be
        among the worker's, and a worker with tags takes no step without.
        """
        wanted = set(step["tags"])
        return [
            worker
            for worker in self._store.workers()
            if worker["state"] == "running"
            and wanted <= set(worker["tags"])
            and (wanted or not worker["tags"])
        ]

    def _has_room(self, worker: Row) -> bool:
        """Whether one more task may run there: ``limit-active-tasks`` of 8.3's placement.go."""
        limit = self._max_tasks and (worker["max_active_tasks"] or self._max_tasks)
        there = self._store.builds("status = 'started' AND worker = :name", name=worker["name"])
        steps = [build["plan"][build["position"]] for build in there]
        running = [step for step in steps if step["kind"] == "task" and step.get("active")]
        return not limit or len(running) < limit

    def _environment(self, build: Row, step: Row) -> list[str]:
        """The step's own environment, in Concourse's order (atc/exec/step_metadata.go:25-108)."""
        url = f"ATC_EXTERNAL_URL={self._external_url}"
        if step["kind"] == "task":
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
                failed=float(FAILED_GRACE_SECONDS),
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
            steps = [step for step in build["plan"] if step.get("worker") == name]
            handles = [handle for step in steps for handle in (*step["earlier"], step["handle"])]
            session = self._tsa.sessions[name]
            session.send(op="destroy", id=0, build=build["id"], handles=handles)
        self._store.query(
            "UPDATE standin_builds SET collected = true WHERE id = :id", id=build["id"]
        )
