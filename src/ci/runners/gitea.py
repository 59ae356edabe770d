# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Gitea Actions: conversations with the server, and the command of its runner. Pure.

Paths and fields: Gitea 1.26 routers/api/v1/api.go (addActionsRoutes), modules/structs
(repo_actions.go), routers/api/actions/runner (Register). The runner: gitea/runner 1.0.8.
"""

import collections.abc
import json
import re
import typing
import urllib.parse

from ci.runners.service import (
    Call,
    Fault,
    Job,
    Place,
    Registered,
    Remote,
    ServiceError,
    Talk,
    check,
    content,
)

NAME: typing.Final = "gitea"

_PAGE: typing.Final = 50  # the most that Gitea gives at once unless its operator changed it
# What more than this many runners or jobs are is not asked for in one conversation.
_MOST_PAGES: typing.Final = 20
_VERSION: typing.Final = "gpu-ci-worker"
# The runner's program writes one such line when it has taken a job (internal/app/run/runner.go).
_HAS_JOB: typing.Final = re.compile(r"\btask [0-9]+ repo is ")
# Longer than any job: the server has a time limit of its own for jobs.
_LONGEST: typing.Final = "240h"
_LINK: typing.Final = re.compile(r"/repos/([^/]+/[^/]+)/actions/")


class Gitea:
    """A Gitea server, as the owner of a token sees it.

    Args:
        url: where it is, without a slash at its end.
        scope: whose jobs the runners take: `owner/repository`, an organisation or, if empty, those
            of the whole server.
        token: an API token with the right to write the scope's settings.
        registration: a registration token; empty: the server is asked for one.

    Attributes:
        url: where it is.
        requests: None: it has no limit.
        sees_jobs: True: it lists all jobs.
    """

    idle_processes = 1
    requests = None
    sees_jobs = True

    def __init__(self, url: str, scope: str, token: str, registration: str = "") -> None:
        self.url, self._registration = url, registration
        self._secret = f"token {token}"
        where = "/".join(urllib.parse.quote(part, safe="") for part in scope.split("/"))
        kind = "/repos/" if "/" in scope else "/orgs/"
        self._base = "/api/v1" + (kind + where if scope else "/admin") + "/actions"

    def runners(self) -> Talk[tuple[Remote, ...]]:
        """Ask for all runners that the server knows in this scope."""
        found = yield from self._pages("/runners", "runners")
        return tuple(Remote(_text(one, "id"), _text(one, "name")) for one in found)

    def jobs(self) -> Talk[tuple[Job, ...]]:
        """Ask for the jobs that wait for a runner, the oldest first, and those that run."""
        waiting = yield from self._pages("/jobs?status=queued", "jobs")
        running = yield from self._pages("/jobs?status=in_progress", "jobs")
        waiting.sort(key=lambda one: _number(one, "id", "to list the jobs"))
        return tuple(map(_job, (*waiting, *running)))

    def register(self, place: Place) -> Talk[Registered]:
        """Register a runner for one job.

        Raises:
            ServiceError: the server has no such runners, or refuses.
        """
        what = "to register a runner"
        token = self._registration or (yield from self._registration_token())
        wanted: dict[str, object] = {
            "name": place.name, "token": token, "version": _VERSION,
            "labels": [*place.labels], "ephemeral": True,
        }  # fmt: skip
        path = "/api/actions/runner.v1.RunnerService/Register"
        answer = check((yield Call("POST", path, body=wanted)), what, known=(200, 500))
        if answer.status == 500:
            # It answers so for a token that it does not know (connect's code `unknown`).
            why = str(content(answer, what).get("message", ""))[:200]
            fault = Fault.CREDENTIAL if "token" in why else Fault.BUSY
            raise ServiceError(fault, f"{what}: the server answers: {why}")
        made = content(answer, what).get("runner")
        runner = typing.cast("dict[str, object]", made) if isinstance(made, dict) else {}
        identity, uuid, secret = (_text(runner, key) for key in ("id", "uuid", "token"))
        if runner.get("ephemeral") is not True:
            yield from self.remove(Remote(identity, place.name))
            raise ServiceError(
                Fault.STRANGE,
                "this Gitea has no runners for one job: upgrade it to 1.24 or later",
            )
        registration = {
            "id": _number(runner, "id", what), "uuid": uuid, "name": place.name, "token": secret,
            "address": self.url, "labels": [f"{label}:host" for label in place.labels],
            "ephemeral": True,
        }  # fmt: skip
        files = {"runner": json.dumps(registration), "config.yaml": _config(place)}
        return Registered(identity, files)

    def withdraw(self, remote: Remote) -> Talk[bool]:
        """Let the server give a runner no job.

        It may have one already: the server does not tell.
        """
        path, what = f"{self._base}/runners/{remote.id}", "to disable a runner"
        answer = yield Call("PATCH", path, self._secret, {"disabled": True})
        # 404, 405: it has forgotten the runner, or is older than 1.26 and can't disable one.
        check(answer, what, known=(200, 404, 405))
        return True

    def remove(self, remote: Remote) -> Talk[None]:
        """Have the server forget a runner."""
        answer = yield Call("DELETE", f"{self._base}/runners/{remote.id}", self._secret)
        check(answer, "to remove a runner", known=(204, 404))

    def command(self, program: str, place: Place) -> tuple[str, ...]:
        """Return the command of a registered runner."""
        return program, "daemon", "--config", f"{place.files}/config.yaml"

    def has_job(self, log: str) -> bool:
        """Whether the log of a runner's program tells that it has taken a job."""
        return bool(_HAS_JOB.search(log))

    def _registration_token(self) -> Talk[str]:
        what = "to get a registration token"
        answer = yield Call("POST", f"{self._base}/runners/registration-token", self._secret)
        return _text(content(check(answer, what), what), "token")

    def _pages(self, path: str, key: str) -> Talk[list[dict[str, object]]]:
        """Ask for a list, page by page."""
        found: list[dict[str, object]] = []
        what = f"to list the {key}"
        for page in range(1, _MOST_PAGES + 1):
            mark = "&" if "?" in path else "?"
            call = Call("GET", f"{self._base}{path}{mark}page={page}&limit={_PAGE}", self._secret)
            told = content(check((yield call), what), what)
            entries: object = told.get(key)
            more = typing.cast("list[object]", entries) if isinstance(entries, list) else []
            found += [typing.cast("dict[str, object]", e) for e in more if isinstance(e, dict)]
            if not more or len(found) >= _number(told, "total_count", what):
                break
        return found


def _config(place: Place) -> str:
    """Return the configuration of a runner's program; JSON is YAML."""
    return json.dumps(
        {
            "log": {"level": "info"},
            "runner": {
                "file": f"{place.files}/runner",
                "capacity": 1,
                "envs": dict(place.environment),
                "env_file": "",
                "timeout": _LONGEST,
                # After SIGTERM it takes no job, and a running job goes on to its end.
                "shutdown_timeout": _LONGEST,
                "fetch_interval": "2s",
                "fetch_interval_max": "2s",
            },
            # Its cache would be gone with the runner, and listen to the network.
            "cache": {"enabled": False},
            "container": {"docker_host": "-"},
            "host": {"workdir_parent": f"{place.home}/work"},
        }
    )


def _job(found: collections.abc.Mapping[str, object]) -> Job:
    link = _LINK.search(urllib.parse.urlsplit(_text(found, "url")).path)
    labels: object = found.get("labels")
    named = typing.cast("list[object]", labels) if isinstance(labels, list) else []
    return Job(
        repository=link.group(1) if link else "",
        name=_text(found, "name"),
        run=_text(found, "run_id"),
        labels=frozenset(str(one) for one in named),
        runner=_text(found, "runner_name") if found.get("status") == "in_progress" else "",
    )


def _number(found: collections.abc.Mapping[str, object], key: str, what: str) -> int:
    """Return a number of an answer, which may be written as text.

    Raises:
        ServiceError: there is none.
    """
    text = _text(found, key)
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ServiceError(Fault.STRANGE, f"{what}: the answer has no {key}")
    return int(text)


def _text(found: collections.abc.Mapping[str, object], key: str) -> str:
    """Return a text or number of an answer as text; empty if it is missing."""
    value = found.get(key)
    return str(value) if isinstance(value, str | int) else ""
