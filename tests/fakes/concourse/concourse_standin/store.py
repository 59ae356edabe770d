# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What web remembers, in PostgreSQL."""

import json
import ssl
from collections.abc import Mapping
from typing import Any

import pg8000.exceptions
import pg8000.native

from .common import StandinError, log, required

SCHEMA = """
CREATE TABLE IF NOT EXISTS standin_workers (
    name text PRIMARY KEY, state text NOT NULL, tags text NOT NULL, version text NOT NULL,
    platform text NOT NULL, max_active_tasks int NOT NULL);
CREATE TABLE IF NOT EXISTS standin_pipelines (
    name text PRIMARY KEY, config text NOT NULL, paused boolean NOT NULL DEFAULT true);
CREATE TABLE IF NOT EXISTS standin_builds (
    id serial PRIMARY KEY, name text NOT NULL, pipeline text, job text, plan text NOT NULL,
    status text NOT NULL DEFAULT 'started', exit_status int NOT NULL DEFAULT 0,
    position int NOT NULL DEFAULT 0, worker text, ended timestamptz,
    collected boolean NOT NULL DEFAULT false);
CREATE TABLE IF NOT EXISTS standin_events (
    id bigserial PRIMARY KEY, build int NOT NULL, step int, data bytea NOT NULL);
"""
# An advisory lock of two numbers is no build's, which has one.
CONNECTED = "0, hashtext(CAST(:name AS text))"
BUILD_COLUMNS = "id, name, pipeline, job, plan, status, exit_status, position, worker"

Row = dict[str, Any]


class Store:
    """One connection, made again once when it was lost. Not for more than one thread."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._connection = self._connect()
        for statement in SCHEMA.split(";\n"):
            if statement.strip():
                self.query(statement)

    def _connect(self) -> pg8000.native.Connection:
        get = self._settings.get
        port, socket = int(get("postgres-port", "5432")), get("postgres-socket")
        places: list[Row] = [
            {"host": host, "port": port} for host in get("postgres-host", "127.0.0.1").split(",")
        ]
        if socket:
            places = [{"unix_sock": f"{socket}/.s.PGSQL.{port}"}]
        for where in places:
            try:
                return pg8000.native.Connection(
                    required(self._settings, "postgres-user"),
                    password=get("postgres-password"),
                    database=get("postgres-database", "atc"),
                    ssl_context=_tls(get("postgres-sslmode", "disable"), get("postgres-ca-cert")),
                    timeout=10,
                    **where,
                )
            except (pg8000.exceptions.Error, OSError) as error:
                failed = error
        raise StandinError(f"failed to open the database at {places}: {failed}") from failed

    def query(self, sql: str, **values: Any) -> list[Row]:
        """Run one statement; its rows by column name."""
        try:
            rows = self._connection.run(sql, **values)
        except (pg8000.exceptions.InterfaceError, OSError) as error:
            log("database connection lost", error=str(error))
            self._connection = self._connect()
            rows = self._connection.run(sql, **values)
        names = [column["name"] for column in self._connection.columns or ()]
        return [dict(zip(names, row, strict=True)) for row in rows or ()]

    def save_worker(self, worker: Row) -> None:
        """Register the worker. One that was to land or retire runs again, as in Concourse.

        (95872ce1a atc/db/worker_factory.go, saveWorker.)
        """
        self.query(
            "INSERT INTO standin_workers VALUES "
            "(:name, 'running', :tags, :version, :platform, :max_active_tasks) "
            "ON CONFLICT (name) DO UPDATE SET tags = :tags, version = :version, "
            "platform = :platform, max_active_tasks = :max_active_tasks, "
            "state = 'running'",
            name=worker["name"],
            tags=json.dumps(worker["tags"]),
            version=worker["version"],
            platform=worker["platform"],
            max_active_tasks=worker["max_active_tasks"],
        )

    def workers(self) -> list[Row]:
        """All workers, by name."""
        rows = self.query("SELECT * FROM standin_workers ORDER BY name")
        return [{**row, "tags": json.loads(row["tags"])} for row in rows]

    def worker_state(self, name: str) -> str | None:
        """The worker's state; None if there is no such worker."""
        rows = self.query("SELECT state FROM standin_workers WHERE name = :name", name=name)
        return rows[0]["state"] if rows else None

    def hold_worker(self, name: str) -> None:
        """Have the other webs know that the worker is connected, as long as this one lives."""
        self.query(f"SELECT pg_advisory_lock_shared({CONNECTED})", name=name)

    def let_worker_go(self, name: str) -> None:
        """The worker is not connected to this web any more."""
        self.query(f"SELECT pg_advisory_unlock_shared({CONNECTED})", name=name)

    def is_worker_held_elsewhere(self, name: str) -> bool:
        """Whether the worker is connected to another web."""
        if not self.query(f"SELECT pg_try_advisory_lock({CONNECTED}) AS got", name=name)[0]["got"]:
            return True
        self.query(f"SELECT pg_advisory_unlock({CONNECTED})", name=name)
        return False

    def add_build(self, name: str, pipeline: str | None, job: str | None, plan: object) -> int:
        """Start a build; its id. A ``name`` of "" is the next number of that job."""
        rows = self.query(
            "INSERT INTO standin_builds (name, pipeline, job, plan) SELECT COALESCE(NULLIF("
            "CAST(:name AS text), ''), (count(*) + 1)::text), CAST(:pipeline AS text), "
            "CAST(:job AS text), CAST(:plan AS text) FROM standin_builds "
            "WHERE pipeline = CAST(:pipeline AS text) AND job = CAST(:job AS text) RETURNING id",
            name=name,
            pipeline=pipeline,
            job=job,
            plan=json.dumps(plan),
        )
        return rows[0]["id"]

    def lock(self, build: int) -> bool:
        """Have the build for this web alone, for as long as its connection lasts."""
        sql = "SELECT pg_try_advisory_lock(CAST(:id AS bigint)) AS got"
        return bool(self.query(sql, id=build)[0]["got"])

    def unlock(self, build: int) -> None:
        """Let go of a build."""
        self.query("SELECT pg_advisory_unlock(CAST(:id AS bigint))", id=build)

    def builds(self, condition: str = "true", **values: Any) -> list[Row]:
        """The builds for which the SQL condition holds, newest first."""
        rows = self.query(
            f"SELECT {BUILD_COLUMNS} FROM standin_builds WHERE {condition} ORDER BY id DESC",
            **values,
        )
        return [{**row, "plan": json.loads(row["plan"])} for row in rows]

    def move_build(self, build: Row) -> None:
        """Remember the step at which the build is, and on which worker."""
        self.query(
            "UPDATE standin_builds SET plan = :plan, position = :position, worker = :worker "
            "WHERE id = :id",
            plan=json.dumps(build["plan"]),
            position=build["position"],
            worker=build["worker"],
            id=build["id"],
        )

    def add_event(self, build: int, data: bytes, step: int | None = None) -> None:
        """Append to the build's log; ``step`` if the bytes are that step's own output."""
        self.query(
            "INSERT INTO standin_events (build, step, data) VALUES (:build, :step, :data)",
            build=build,
            step=step,
            data=data,
        )

    def forget_step(self, build: int, step: int) -> None:
        """What is in the log of the step's own output is an earlier attempt's."""
        self.query(
            "UPDATE standin_events SET step = NULL WHERE build = :build AND step = :step",
            build=build,
            step=step,
        )

    def step_bytes(self, build: int, step: int) -> int:
        """How many bytes of the step's own output are in the log already."""
        rows = self.query(
            "SELECT COALESCE(sum(length(data)), 0)::bigint AS size FROM standin_events "
            "WHERE build = :build AND step = :step",
            build=build,
            step=step,
        )
        return rows[0]["size"]


def _tls(mode: str, ca_file: str | None) -> ssl.SSLContext | None:
    """libpq's meaning of sslmode: only verify-ca and verify-full look at the certificate."""
    if mode == "disable":
        return None
    context = ssl.create_default_context(cafile=ca_file or None)
    context.check_hostname = mode == "verify-full"
    if not mode.startswith("verify-"):
        context.verify_mode = ssl.CERT_NONE
    return context
