# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""GitHub Actions: conversations with GitHub, and the command of its runner. Pure.

Paths and fields: GitHub's REST API of version 2022-11-28 (github/rest-api-description). The
runner: actions/runner 2.336.
"""

import collections.abc
import dataclasses
import json
import pathlib
import re
import time
import typing
import urllib.parse

from ci.runners import github_api as api
from ci.runners.github_app import App
from ci.runners.service import (
    Answer,
    Call,
    Fault,
    Job,
    Place,
    Registered,
    Remote,
    ServiceError,
    Talk,
    content,
)
from gpu_agent.model.ci_figures import Requests

NAME: typing.Final = "github"

# The most that GitHub gives at once; of runs, which have some 15 kB each, fewer are asked for.
_PAGE: typing.Final = 100
_RUNS: typing.Final = 30
# More pages are not asked for in one conversation; nor the jobs of more runs, nor more of one run:
# a matrix has up to 256 jobs, and those that have ended are listed, too.
_MOST_PAGES: typing.Final = 20
_MOST_RUNS: typing.Final = 8
_JOB_PAGES: typing.Final = 3
# How many answers are kept, to ask whether they still hold.
_MOST_SEEN: typing.Final = 32
# The part of an hour's requests that is kept for runners: below it no jobs are asked for.
_RESERVE: typing.Final = 0.2
# Each organisation's default group, and the only one of a repository.
_DEFAULT_GROUP: typing.Final = 1
_JIT: typing.Final = "jitconfig"
# The runner's program writes one such line when it has taken a job (JobDispatcher.cs).
_HAS_JOB: typing.Final = re.compile(
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}Z: Running job: ", re.MULTILINE
)
_VERSION: typing.Final = re.compile(r"-([0-9]+\.[0-9]+\.[0-9]+)\.tar\.gz")
_SHA256: typing.Final = re.compile("[0-9a-f]{64}")
# The program writes into its own folder: its registration, its logs, newer releases of itself. So
# each runner has a copy. Hard links would not do: what one writes into, such as run-helper.sh,
# would change for all; and a runner's user may not link to files of root (proc_sys_fs(5),
# protected_hardlinks). The registration goes in by the environment, which only the runner's user
# and root can read, and not by an argument, which everybody can. The program removes the variable
# before it starts a job (CommandSettings.cs). A job can still read its own runner's registration,
# which is the same user's: it is good for this one job.
_BEGIN: typing.Final = """\
/bin/cp -R --reflink=auto -- "$1" "$2" || exit
ACTIONS_RUNNER_INPUT_JITCONFIG=$(/bin/cat -- "$3") || exit
export ACTIONS_RUNNER_INPUT_JITCONFIG
export ACTIONS_RUNNER_RETURN_VERSION_DEPRECATED_EXIT_CODE=1
exec "$2/run.sh"
"""
# Why a runner is not registered, by GitHub's code.
_REFUSED: typing.Final = {
    403: (Fault.FORBIDDEN, "the token may not register runners there, or not in this group"),
    404: (Fault.NOT_FOUND, "there is no such group, or the token does not see where it is"),
    422: (Fault.STRANGE, "GitHub does not take the runner's group or its labels"),
}


@dataclasses.dataclass(frozen=True)
class Release:
    """A release of the runner's program.

    Attributes:
        url: of its archive, a .tar.gz.
        version: such as `2.336.0`.
        sha256: of the archive, in hexadecimal; None: GitHub does not say.
    """

    url: str
    version: str
    sha256: str | None


class GitHub:
    """GitHub, as the owner of a credential sees an organisation or a repository.

    Attributes:
        url: where the API is.
    """

    # run.sh, run-helper.sh and Runner.Listener (actions/runner 2.336 src/Misc/layoutroot).
    idle_processes = 3

    def __init__(
        self,
        url: str,
        scope: str,
        credential: str | App,
        group: str = "",
        now: collections.abc.Callable[[], float] = time.time,
    ) -> None:
        """Begin without any answer of GitHub.

        Args:
            url: where the pages are: `https://github.com`, or a GitHub Enterprise Server.
            scope: whose jobs the runners take: `owner/repository` or an organisation.
            credential: a personal access token, or an App.
            group: the name of the runner group; empty: the default one.
            now: returns the seconds since 1970.

        Raises:
            ValueError: there is no such scope, or it has no groups.
        """
        parts = scope.split("/")
        if not all(parts) or len(parts) > 2:
            raise ValueError(
                f"{scope!r} is neither an organisation of GitHub nor owner/repository"
            )
        self._is_repository = len(parts) == 2
        if group and self._is_repository:
            raise ValueError("a repository of GitHub has no runner groups, its organisation has")
        self.url, self._scope, self._group, self._now = api.address(url), scope, group, now
        self._credential = credential
        kind = "/repos/" if self._is_repository else "/orgs/"
        where = "/".join(urllib.parse.quote(part, safe="") for part in parts)
        self._base = f"{kind}{where}/actions"
        self._group_id: int | None = None if group else _DEFAULT_GROUP
        self.requests: Requests | None = None
        # Answers by path, the last used last.
        self._seen: dict[str, Answer] = {}

    @property
    def sees_jobs(self) -> bool:
        """Whether it is a repository, and not few of this hour's requests are left."""
        few = self.requests and self.requests.left < self.requests.limit * _RESERVE
        return self._is_repository and not few

    def runners(self) -> Talk[tuple[Remote, ...]]:
        """Ask for all runners of this organisation or repository."""
        found = yield from self._pages("/runners", "runners")
        return tuple(Remote(_text(one, "id"), _text(one, "name")) for one in found)

    def jobs(self) -> Talk[tuple[Job, ...]]:
        """Ask for the jobs of a repository that wait for a runner, the oldest first, or run.

        GitHub cannot list an organisation's jobs. It is not asked for the jobs of more than a few
        runs at once, and for none while few of this hour's requests are left.
        """
        if not self.sees_jobs:
            return ()
        runs: list[str] = []
        for status, most in (("queued", _MOST_RUNS // 2), ("in_progress", _MOST_RUNS)):
            path = f"/runs?status={status}&exclude_pull_requests=true&per_page={_RUNS}"
            told = yield from self._get(path, "to list the runs")
            found = sorted(_entries(told, "workflow_runs"), key=_id)
            # Those that ended in between are in both lists, or in none.
            runs += [run for one in found if (run := _text(one, "id")) not in runs][:most]
        jobs: list[dict[str, object]] = []
        for run in runs[:_MOST_RUNS]:
            jobs += yield from self._pages(f"/runs/{run}/jobs", "jobs", _JOB_PAGES)
        waiting = sorted((one for one in jobs if one.get("status") == "queued"), key=_id)
        running = [one for one in jobs if one.get("status") == "in_progress"]
        return tuple(
            Job(
                repository=self._scope,
                name=_text(one, "name"),
                run=_text(one, "run_id"),
                labels=frozenset(str(label).lower() for label in _list(one, "labels")),
                runner="" if one in waiting else _text(one, "runner_name"),
            )
            for one in (*waiting, *running)
        )

    def register(self, place: Place) -> Talk[Registered]:
        """Register a runner for one job.

        GitHub adds no label by itself, and keeps labels in lower case.

        Raises:
            ServiceError: GitHub has no such runner group, or refuses.
        """
        what = "to register a runner"
        wanted: dict[str, object] = {
            "name": place.name, "runner_group_id": (yield from self._find_group()),
            "labels": [label.lower() for label in place.labels], "work_folder": "_work",
        }  # fmt: skip
        answer = yield from self._send("POST", f"{self._base}/runners/generate-jitconfig", wanted)
        if answer.status in _REFUSED and not api.wait(answer, self._now()):
            if self._group:
                # Its number may have changed.
                self._group_id = None
            fault, why = _REFUSED[answer.status]
            where = f"group {self._group!r} of {self._scope}" if self._group else self._scope
            said = api.message(answer)
            text = f"{what} ({where}): GitHub answers {answer.status} ({said}): {why}"
            raise ServiceError(fault, text)
        made = content(self._checked(answer, what, known=(201,)), what)
        runner: object = made.get("runner")
        known = typing.cast("dict[str, object]", runner) if isinstance(runner, dict) else {}
        identity, registration = _text(known, "id"), _text(made, "encoded_jit_config")
        if not identity or not registration:
            raise ServiceError(Fault.STRANGE, f"{what}: the answer has no registration")
        return Registered(identity, {_JIT: registration})

    def withdraw(self, remote: Remote) -> Talk[bool]:
        """Let GitHub give a runner no job: remove it, which GitHub refuses if it has one."""
        answer = yield from self._send("DELETE", f"{self._base}/runners/{remote.id}")
        self._checked(answer, "to withdraw a runner", known=(204, 404, 422))
        return answer.status != 422

    def remove(self, remote: Remote) -> Talk[None]:
        """Have GitHub forget a runner; GitHub keeps a busy one until its job has ended."""
        answer = yield from self._send("DELETE", f"{self._base}/runners/{remote.id}")
        self._checked(answer, "to remove a runner", known=(204, 404, 422))

    def command(self, program: str, place: Place) -> tuple[str, ...]:
        """Return the command of a registered runner; `program` is run.sh in its folder."""
        folder = str(pathlib.PurePath(program).parent)
        copy, registration = f"{place.home}/runner", f"{place.files}/{_JIT}"
        return "/bin/sh", "-c", _BEGIN, "gpu-ci-runner", folder, copy, registration

    def has_job(self, log: str) -> bool:
        """Whether the log of a runner's program tells that it has taken a job."""
        return bool(_HAS_JOB.search(log))

    def program(self, architecture: str) -> Talk[Release]:
        """Ask for the release of the runner's program that GitHub wants to be used now.

        Args:
            architecture: `x64` or `arm64`.

        Raises:
            ServiceError: there is none.
        """
        what = f"to find the runner's program for linux-{architecture}"
        answer = yield from self._get("/runners/downloads", what)
        try:
            told: object = json.loads(answer.body)
        except (ValueError, RecursionError):
            told = None
        for one in _objects(told):
            if (one.get("os"), one.get("architecture")) != ("linux", architecture):
                continue
            url, sha256 = _text(one, "download_url"), _text(one, "sha256_checksum")
            version = _VERSION.search(_text(one, "filename"))
            is_sound = not sha256 or _SHA256.fullmatch(sha256)
            if version and url.startswith("https://") and is_sound:
                return Release(url, version.group(1), sha256 or None)
        raise ServiceError(Fault.STRANGE, f"{what}: the answer names none")

    def _find_group(self) -> Talk[int]:
        """Return the number of the runner group."""
        if self._group_id is None:
            groups = yield from self._pages("/runner-groups", "runner_groups")
            found = [_text(one, "id") for one in groups if one.get("name") == self._group]
            if not found:
                raise ServiceError(
                    Fault.NOT_FOUND,
                    f"{self._scope} has no runner group {self._group!r} that the token sees: "
                    f"there are {', '.join(_text(one, 'name') for one in groups) or 'none'}",
                )
            self._group_id = int(found[0])
        return self._group_id

    def _pages(
        self, path: str, key: str, most: int = _MOST_PAGES
    ) -> Talk[list[dict[str, object]]]:
        """Ask for a list, page by page."""
        found: list[dict[str, object]] = []
        for page in range(1, most + 1):
            asked = f"{path}?per_page={_PAGE}&page={page}"
            more = _entries((yield from self._get(asked, f"to list the {key}")), key)
            found += more
            if len(more) < _PAGE:
                break
        return found

    def _get(self, path: str, what: str) -> Talk[Answer]:
        """Ask for what may have changed; GitHub does not count the question if it has not."""
        secret = yield from self._secret()
        seen, headers = self._seen.pop(path, None), api.HEADERS
        if seen:
            headers = {**headers, "If-None-Match": seen.headers["etag"]}
        answer = yield Call("GET", self._base + path, secret, headers=headers)
        self._count(answer)
        if seen and answer.status == 304:
            answer = seen
        self._checked(answer, what)
        if "etag" in answer.headers:
            self._seen[path] = answer
        while len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]
        return answer

    def _send(self, method: str, path: str, body: dict[str, object] | None = None) -> Talk[Answer]:
        secret = yield from self._secret()
        answer = yield Call(method, path, secret, body, api.HEADERS)
        self._count(answer)
        return answer

    def _count(self, answer: Answer) -> None:
        """Note how many requests are left; an answer of a proxy does not say."""
        left, limit, reset = (
            api.number(answer, f"x-ratelimit-{name}") for name in ("remaining", "limit", "reset")
        )
        if limit:
            self.requests = Requests(limit, left, reset)

    def _secret(self) -> Talk[str]:
        if isinstance(self._credential, App):
            return (yield from self._credential.secret())
        return f"Bearer {self._credential}"

    def _checked(self, answer: Answer, what: str, *, known: tuple[int, ...] = (200,)) -> Answer:
        if answer.status == 401 and isinstance(self._credential, App):
            self._credential.forget()
        return api.checked(answer, what, self._now(), known=known)


def _entries(answer: Answer, key: str) -> list[dict[str, object]]:
    """Return the objects of a list in an answer."""
    return _objects(content(answer, f"to list the {key}").get(key))


def _objects(found: object) -> list[dict[str, object]]:
    listed = typing.cast("list[object]", found) if isinstance(found, list) else []
    return [typing.cast("dict[str, object]", one) for one in listed if isinstance(one, dict)]


def _list(found: collections.abc.Mapping[str, object], key: str) -> list[object]:
    value = found.get(key)
    return typing.cast("list[object]", value) if isinstance(value, list) else []


def _text(found: collections.abc.Mapping[str, object], key: str) -> str:
    """Return a text or number of an answer as text; empty if it is missing."""
    value = found.get(key)
    return str(value) if isinstance(value, str | int) else ""


def _id(found: collections.abc.Mapping[str, object]) -> int:
    """Return GitHub's number of something; a greater one is younger."""
    value = found.get("id")
    return value if isinstance(value, int) else 0
