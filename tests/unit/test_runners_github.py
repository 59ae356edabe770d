# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Conversations with GitHub, in the form that GitHub's description of its API has."""

import dataclasses
import pathlib
import re
import stat
import subprocess

import pytest

from ci.runners import github, github_api
from ci.runners.github import GitHub, Release
from ci.runners.service import Answer, Call, Fault, Job, Place, Remote, ServiceError
from ci.runners.services import make
from ci.runners.settings import Settings
from gpu_agent.model.ci_figures import Requests
from tests.unit import github_rig as rig
from tests.unit.github_rig import answer, converse

TOKEN = "ghp_thisIsTheSecret"
# 2026-08-01T12:00:00Z, as a server's header has it, and in seconds.
DATE, NOW = "Sat, 01 Aug 2026 12:00:00 GMT", 1785585600.0
JIT = "eyIucnVubmVyIjoiZXlK"


def org(group: str = "") -> GitHub:
    return GitHub("https://github.com", "acme", TOKEN, group, now=lambda: NOW)


def repository() -> GitHub:
    return GitHub("https://github.com", "acme/widgets", TOKEN, now=lambda: NOW)


def place(*labels: str) -> Place:
    return Place(
        "host-0-ab12", labels or ("self-hosted", "gpu"), "/run/credentials/u", "/home", {}
    )


def runner(number: int = 23, name: str = "host-0-ab12") -> dict[str, object]:
    return {
        "id": number, "runner_group_id": 1, "name": name, "os": "unknown", "status": "offline",
        "busy": False, "labels": [{"id": 0, "name": "gpu", "type": "custom"}], "ephemeral": True,
    }  # fmt: skip


def listed(*names: str) -> Answer:
    found = [runner(number, name) for number, name in enumerate(names, 1)]
    return answer(200, {"total_count": len(found), "runners": found})


def registered() -> Answer:
    return answer(201, {"runner": runner(), "encoded_jit_config": JIT})


def error(status: int, message: str = "Not Found", **headers: str) -> Answer:
    body = {"message": message, "documentation_url": "https://docs.github.com/rest"}
    return answer(status, body, **headers)


def runs(status: str, *numbers: int, **headers: str) -> Answer:
    found = [
        {
            "id": number, "node_id": "W", "head_branch": "main", "head_sha": "0", "run_number": 1,
            "event": "push", "status": status, "conclusion": None, "workflow_id": 1,
            "pull_requests": [], "created_at": "2026-08-01T11:00:00Z", "jobs_url": "",
            "name": "ci", "html_url": "https://github.com/acme/widgets/actions/runs/1",
        }
        for number in numbers
    ]  # fmt: skip
    return answer(200, {"total_count": len(found), "workflow_runs": found}, **headers)


def job(number: int, status: str, run: int = 7, at: str | None = None) -> dict[str, object]:
    at_once = "2026-08-01T11:00:00Z"
    return {
        "id": number, "run_id": run, "run_url": "", "node_id": "J", "head_sha": "0", "url": "",
        "html_url": "", "status": status, "conclusion": None, "created_at": at_once,
        "started_at": at_once, "completed_at": None, "name": f"test ({number})", "steps": [],
        "check_run_url": "", "labels": ["self-hosted", "GPU"], "runner_id": None,
        "runner_name": at, "runner_group_id": None, "runner_group_name": None,
        "workflow_name": "ci", "head_branch": "main", "run_attempt": 1,
    }  # fmt: skip


def jobs(*found: dict[str, object], **headers: str) -> Answer:
    return answer(200, {"total_count": len(found), "jobs": [*found]}, **headers)


def failure(conversation: object, *answers: Answer) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        converse(conversation, *answers)  # type: ignore[arg-type]
    assert TOKEN not in str(caught.value)
    return caught.value


# where


@pytest.mark.parametrize(
    ("pages", "address"),
    [
        ("https://github.com", "https://api.github.com"),
        ("https://www.GitHub.com", "https://api.github.com"),
        ("https://api.github.com", "https://api.github.com"),
        ("https://acme.ghe.com", "https://api.acme.ghe.com"),
        ("https://git.acme.example", "https://git.acme.example/api/v3"),
        ("https://git.acme.example:8443/api/v3", "https://git.acme.example:8443/api/v3"),
        ("https://notgithub.com", "https://notgithub.com/api/v3"),
    ],
)
def test_the_api_is_found_from_the_pages(pages: str, address: str) -> None:
    assert github_api.address(pages) == address
    assert GitHub(pages, "acme", TOKEN).url == address


@pytest.mark.parametrize("scope", ["", "acme/", "/widgets", "acme/widgets/ci"])
def test_another_scope_is_refused(scope: str) -> None:
    with pytest.raises(ValueError, match="neither an organisation"):
        GitHub("https://github.com", scope, TOKEN)


def test_a_repository_has_no_groups() -> None:
    with pytest.raises(ValueError, match="no runner groups"):
        GitHub("https://github.com", "acme/widgets", TOKEN, "gpus")


def test_each_call_names_the_token_and_the_version_of_the_api() -> None:
    _, (call,) = converse(org().runners(), listed())
    assert call.secret == f"Bearer {TOKEN}"
    assert call.headers["X-GitHub-Api-Version"] == "2022-11-28"
    assert TOKEN not in repr(call)


# registration


def test_an_organisations_runner_is_registered_in_the_default_group() -> None:
    made, (call,) = converse(
        org().register(place("self-hosted", "GPU", "gpu-model-A100")), registered()
    )
    assert (call.method, call.path) == ("POST", "/orgs/acme/actions/runners/generate-jitconfig")
    assert call.body == {
        "name": "host-0-ab12",
        "runner_group_id": 1,
        "labels": ["self-hosted", "gpu", "gpu-model-a100"],
        "work_folder": "_work",
    }
    assert (made.id, made.files) == ("23", {"jitconfig": JIT})
    assert JIT not in repr(made)


def test_a_repositorys_runner_is_registered_there() -> None:
    _, (call,) = converse(repository().register(place()), registered())
    assert call.path == "/repos/acme/widgets/actions/runners/generate-jitconfig"


def groups(**names: int) -> Answer:
    found = [
        {
            "id": number, "name": name, "visibility": "all", "default": number == 1,
            "runners_url": "", "inherited": False, "allows_public_repositories": False,
        }
        for name, number in names.items()
    ]  # fmt: skip
    return answer(200, {"total_count": len(found), "runner_groups": found})


def test_a_named_group_is_looked_up_once() -> None:
    service = org("gpus")
    _, (look, call) = converse(service.register(place()), groups(Default=1, gpus=5), registered())
    assert look.path.startswith("/orgs/acme/actions/runner-groups?")
    assert call.body
    assert call.body["runner_group_id"] == 5
    converse(service.register(place()), registered())


def test_a_group_that_is_missing_is_named_with_those_that_there_are() -> None:
    found = failure(org("gpus").register(place()), groups(Default=1, cpus=4))
    assert found.fault is Fault.NOT_FOUND
    assert "no runner group 'gpus'" in str(found)
    assert "Default, cpus" in str(found)


@pytest.mark.parametrize(
    ("status", "said", "fault", "text"),
    [
        (
            403,
            "Must have admin rights",
            Fault.FORBIDDEN,
            "may not register runners there, or not in",
        ),
        (404, "Not Found", Fault.NOT_FOUND, "no such group, or the token does not see"),
        (422, "Invalid group", Fault.STRANGE, "does not take the runner's group or its labels"),
    ],
)
def test_each_refusal_of_a_group_has_its_text(
    status: int, said: str, fault: Fault, text: str
) -> None:
    service = org("gpus")
    found = failure(service.register(place()), groups(gpus=5), error(status, said))
    assert found.fault is fault
    assert text in str(found)
    assert "group 'gpus' of acme" in str(found)
    assert said in str(found)
    # The number of the group may be old.
    converse(service.register(place()), groups(gpus=6), registered())


def test_a_registration_without_its_secret_is_strange() -> None:
    found = failure(org().register(place()), answer(200))
    assert found.fault is Fault.STRANGE
    empty = answer(201, {"runner": runner(), "encoded_jit_config": ""})
    assert failure(org().register(place()), empty).fault is Fault.STRANGE


# the list of runners


def test_runners_are_asked_for_page_by_page() -> None:
    full = listed(*(f"r{number}" for number in range(100)))
    found, calls = converse(org().runners(), full, listed("host-0-last"))
    assert [call.path.partition("?")[2] for call in calls] == [
        "per_page=100&page=1",
        "per_page=100&page=2",
    ]
    assert found[0] == Remote("1", "r0")
    assert found[100] == Remote("1", "host-0-last")


def test_a_page_that_has_not_changed_is_taken_from_before() -> None:
    service = org()
    first = listed("a")
    converse(service.runners(), Answer(200, first.body, headers={"etag": 'W/"1"'}))
    found, (call,) = converse(service.runners(), answer(304))
    assert call.headers["If-None-Match"] == 'W/"1"'
    assert found == (Remote("1", "a"),)
    # And once more: the answer 304 has not replaced it.
    found, _ = converse(service.runners(), answer(304))
    assert found == (Remote("1", "a"),)


def test_an_answer_304_that_nobody_asked_for_is_strange() -> None:
    assert failure(org().runners(), answer(304)).fault is Fault.STRANGE


def test_answers_are_not_kept_without_end() -> None:
    service = repository()
    for run in range(1, 60):
        lists = (runs("queued", run, etag=f'"q{run}"'), runs("in_progress", etag=f'"p{run}"'))
        _, calls = converse(service.jobs(), *lists, jobs(etag=f'"j{run}"'))
        # What is asked for each time is always there.
        assert ["If-None-Match" in call.headers for call in calls] == [run > 1, run > 1, False]
    _, calls = converse(service.jobs(), runs("queued", 1), runs("in_progress", 59), jobs(), jobs())
    assert ["If-None-Match" in call.headers for call in calls] == [True, True, False, True]


# jobs


def test_an_organisations_jobs_cannot_be_listed() -> None:
    assert not org().sees_jobs
    assert converse(org().jobs()) == ((), [])


def test_a_repositorys_jobs_are_those_that_wait_and_then_those_that_run() -> None:
    found, calls = converse(
        repository().jobs(),
        runs("queued", 9),
        runs("in_progress", 7),
        jobs(job(40, "queued", 9)),
        jobs(job(31, "in_progress", at="host-0-x"), job(30, "queued"), job(29, "completed")),
    )
    assert [(one.name, one.runner) for one in found] == [
        ("test (30)", ""),
        ("test (40)", ""),
        ("test (31)", "host-0-x"),
    ]
    labels = frozenset({"self-hosted", "gpu"})
    assert found[0] == Job("acme/widgets", "test (30)", "7", labels, "")
    assert calls[2].path == "/repos/acme/widgets/actions/runs/9/jobs?per_page=100&page=1"


def test_jobs_that_wait_behind_many_that_have_ended_are_found() -> None:
    ended = [job(number, "completed") for number in range(100)]
    lists = (runs("queued", 7), runs("in_progress"))
    more = (jobs(*ended), jobs(*ended), jobs(job(500, "queued"), *ended[:99]))
    # Three pages are full, and no fourth one is asked for.
    found, calls = converse(repository().jobs(), *lists, *more)
    assert [one.name for one in found] == ["test (500)"]
    assert [call.path.partition("&page=")[2] for call in calls[2:]] == ["1", "2", "3"]


def test_only_the_oldest_runs_are_looked_into() -> None:
    queued, running = range(120, 100, -1), range(20, 0, -1)
    lists = (runs("queued", *queued), runs("in_progress", *running))
    _, calls = converse(repository().jobs(), *lists, *[jobs()] * 8)
    looked = [
        int(match.group(1)) for call in calls if (match := re.search(r"runs/(\d+)/", call.path))
    ]
    assert looked == [101, 102, 103, 104, 1, 2, 3, 4]


def test_a_run_in_both_lists_is_looked_into_once() -> None:
    converse(
        repository().jobs(), runs("queued", 7), runs("in_progress", 7), jobs(job(1, "queued"))
    )


def test_while_few_requests_are_left_no_jobs_are_asked_for() -> None:
    service = repository()
    low = Answer(
        200, listed().body, headers={"x-ratelimit-remaining": "999", "x-ratelimit-limit": "5000"}
    )
    converse(service.runners(), low)
    assert not service.sees_jobs
    assert converse(service.jobs()) == ((), [])
    # A runner can still be registered, and a new hour ends it.
    converse(service.register(place()), registered())
    more = Answer(
        200, listed().body, headers={"x-ratelimit-remaining": "4999", "x-ratelimit-limit": "5000"}
    )
    converse(service.runners(), more)
    assert service.sees_jobs
    converse(service.jobs(), runs("queued"), runs("in_progress"))


def test_the_last_answer_tells_how_many_requests_are_left() -> None:
    service = repository()
    assert service.requests is None
    counts = {"x-ratelimit-limit": "5000", "x-ratelimit-reset": "1784000000"}
    first = Answer(200, listed().body, headers={**counts, "x-ratelimit-remaining": "4000"})
    converse(service.runners(), first)
    assert service.requests == Requests(5000, 4000, 1784000000)
    made = dataclasses.replace(registered(), headers={**counts, "x-ratelimit-remaining": "3999"})
    converse(service.register(place()), made)
    assert service.requests == Requests(5000, 3999, 1784000000)
    # A proxy's answer, or that of a server without limits, tells nothing of them.
    converse(service.runners(), Answer(200, listed().body))
    assert service.requests == Requests(5000, 3999, 1784000000)
    gone = error(403, x_ratelimit_limit="5000", x_ratelimit_remaining="0")
    with pytest.raises(ServiceError):
        converse(service.runners(), gone)
    assert service.requests == Requests(5000, 0, 0)


# the end of a runner


@pytest.mark.parametrize(("status", "withdrawn"), [(204, True), (404, True), (422, False)])
def test_a_runner_is_withdrawn_unless_it_has_a_job(status: int, withdrawn: bool) -> None:
    given = answer(204) if status == 204 else error(status)
    found, (call,) = converse(repository().withdraw(Remote("23", "x")), given)
    assert found is withdrawn
    assert (call.method, call.path) == ("DELETE", "/repos/acme/widgets/actions/runners/23")


@pytest.mark.parametrize("status", [204, 404, 422])
def test_a_runner_is_removed_whatever_github_knows_of_it(status: int) -> None:
    given = answer(204) if status == 204 else error(status)
    converse(org().remove(Remote("23", "x")), given)


# refusals


def test_a_token_that_github_does_not_know() -> None:
    found = failure(org().runners(), error(401, "Bad credentials"))
    assert found.fault is Fault.CREDENTIAL
    assert "Bad credentials" in str(found)


def test_a_token_without_the_right_is_told_in_githubs_words() -> None:
    said = "Resource not accessible by personal access token"
    found = failure(org().runners(), error(403, said))
    assert (found.fault, found.retry_after) == (Fault.FORBIDDEN, 0)
    assert said in str(found)


@pytest.mark.parametrize("status", [403, 429])
def test_github_asks_to_wait(status: int) -> None:
    found = failure(org().runners(), error(status, "secondary rate limit", retry_after="90"))
    assert (found.fault, found.retry_after) == (Fault.BUSY, 90)
    assert "asks to wait 90 s" in str(found)


@pytest.mark.parametrize("status", [403, 429])
def test_the_hours_requests_are_used_up(status: int) -> None:
    # This machine's clock is an hour behind GitHub's; GitHub's counts.
    service = GitHub("https://github.com", "acme", TOKEN, now=lambda: NOW - 3600)
    over = {"x_ratelimit_remaining": "0", "x_ratelimit_reset": f"{NOW + 1200:.0f}", "date": DATE}
    found = failure(service.register(place()), error(status, "API rate limit exceeded", **over))
    assert (found.fault, found.retry_after) == (Fault.BUSY, 1200)


@pytest.mark.parametrize(("reset", "seconds"), [(NOW + 90000, 3600), (NOW - 5, 1)])
def test_a_wait_has_limits(reset: float, seconds: float) -> None:
    over = {"x_ratelimit_remaining": "0", "x_ratelimit_reset": f"{reset:.0f}"}
    assert failure(org().runners(), error(403, **over)).retry_after == seconds


def test_429_without_a_time_is_a_minute() -> None:
    assert failure(org().runners(), error(429)).retry_after == 60


def test_403_that_leaves_requests_is_no_wait() -> None:
    left = {"x_ratelimit_remaining": "41", "x_ratelimit_reset": "1"}
    assert failure(org().runners(), error(403, **left)).fault is Fault.FORBIDDEN


@pytest.mark.parametrize("status", [301, 307])
def test_a_repository_with_a_new_name(status: int) -> None:
    found = failure(repository().runners(), error(status, "Moved Permanently"))
    assert found.fault is Fault.NOT_FOUND
    assert "another name" in str(found)


def test_githubs_words_are_one_short_line() -> None:
    found = failure(org().runners(), error(403, "a\n\n" + "b" * 5000))
    assert "\n" not in str(found)
    assert len(str(found)) < 400


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"runners": 5}', b'{"message": 5}'])
def test_no_answer_breaks_a_conversation(body: bytes) -> None:
    for status in (200, 201, 403, 500):
        conversation = org().runners()
        next(conversation)
        with pytest.raises((ServiceError, StopIteration)):
            conversation.send(Answer(status, body))


# the runner's program


def downloads(*found: dict[str, str]) -> Answer:
    return answer(200, [*found])


def archive(architecture: str, version: str = "2.336.0", **more: str) -> dict[str, str]:
    name = f"actions-runner-linux-{architecture}-{version}.tar.gz"
    url = f"https://github.com/actions/runner/releases/download/v{version}/{name}"
    return {
        "os": "linux", "architecture": architecture, "download_url": url, "filename": name, **more,
    }  # fmt: skip


def test_the_release_for_this_machine_is_found() -> None:
    windows = {**archive("x64"), "os": "win"}
    found, (call,) = converse(
        repository().program("arm64"),
        downloads(windows, archive("x64"), archive("arm64", sha256_checksum="a" * 64)),
    )
    assert call.path == "/repos/acme/widgets/actions/runners/downloads"
    url = archive("arm64")["download_url"]
    assert found == Release(url, "2.336.0", "a" * 64)


def test_a_release_may_have_no_checksum() -> None:
    found, _ = converse(org().program("x64"), downloads(archive("x64")))
    assert found.sha256 is None


@pytest.mark.parametrize(
    "more",
    [
        {"architecture": "arm64"},
        {"download_url": "http://github.com/x.tar.gz"},
        {"sha256_checksum": "a" * 63},
        {"filename": "actions-runner.zip"},
    ],
)
def test_a_release_that_is_not_sound_is_none(more: dict[str, str]) -> None:
    found = failure(org().program("x64"), downloads({**archive("x64"), **more}))
    assert found.fault is Fault.STRANGE


# the runner's command


@pytest.fixture
def release(tmp_path: pathlib.Path) -> pathlib.Path:
    """Make an unpacked release, whose program writes its variables and arguments there."""
    folder = tmp_path / "release"
    (folder / "bin").mkdir(parents=True)
    program = folder / "run.sh"
    program.write_text(
        '#!/bin/sh\ncd "$(dirname "$0")"\necho written > bin/helper\n'
        "printenv | grep ^ACTIONS_RUNNER_ > environment\ntr '\\0' ' ' < /proc/$$/cmdline > argv\n"
    )
    program.chmod(0o755)
    (folder / "bin/helper").write_text("as released\n")
    return program


def command(program: pathlib.Path, tmp_path: pathlib.Path) -> tuple[str, ...]:
    here = Place("host-0-ab12", (), str(tmp_path / "files"), str(tmp_path / "home"), {})
    return org().command(str(program), here)


def test_a_runner_begins_in_a_copy_with_its_registration(
    release: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    for name in ("files", "home"):
        (tmp_path / name).mkdir()
    (tmp_path / "files/jitconfig").write_text(JIT)
    argv = command(release, tmp_path)
    assert JIT not in " ".join(argv)
    subprocess.run(argv, check=True, timeout=10, env={})
    copy = tmp_path / "home/runner"
    assert (copy / "environment").read_text().split() == [
        f"ACTIONS_RUNNER_INPUT_JITCONFIG={JIT}",
        "ACTIONS_RUNNER_RETURN_VERSION_DEPRECATED_EXIT_CODE=1",
    ]
    assert JIT not in (copy / "argv").read_text()
    assert (copy / "bin/helper").read_text() == "written\n"
    assert (release.parent / "bin/helper").read_text() == "as released\n"
    assert stat.S_IMODE((copy / "run.sh").stat().st_mode) & 0o100


@pytest.mark.parametrize("missing", ["files", "home"])
def test_a_runner_does_not_begin_without_its_copy_and_its_registration(
    release: pathlib.Path, tmp_path: pathlib.Path, missing: str
) -> None:
    (tmp_path / ({"files", "home"} - {missing}).pop()).mkdir()
    done = subprocess.run(
        command(release, tmp_path), check=False, timeout=10, env={}, capture_output=True
    )
    assert done.returncode
    assert not (tmp_path / "home/runner/environment").exists()


def test_a_runner_does_not_begin_in_half_a_copy(
    release: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    for name in ("files", "home"):
        (tmp_path / name).mkdir()
    (tmp_path / "files/jitconfig").write_text(JIT)
    (release.parent / "large").write_bytes(bytes(5000))
    # Python ignores the signal SIGXFSZ. So for cp, such a file is an error like a full disk.
    limited = ("/usr/bin/prlimit", "--fsize=4096", *command(release, tmp_path))
    done = subprocess.run(
        limited, check=False, timeout=10, env={}, restore_signals=False, capture_output=True
    )
    assert done.returncode
    assert (tmp_path / "home/runner/run.sh").exists()
    assert not (tmp_path / "home/runner/environment").exists()


# What the program of release 2.336 writes to its output (Runner.cs, JobDispatcher.cs).
LOG = """\

√ Connected to GitHub

Current runner version: '2.336.0'
2026-08-01 12:00:00Z: Listening for Jobs
"""


def test_the_log_tells_whether_there_is_a_job() -> None:
    assert not org().has_job("")
    assert not org().has_job(LOG)
    assert org().has_job(LOG + "2026-08-01 12:00:07Z: Running job: test (3.12)\n")
    # The name of a job is its author's.
    assert not org().has_job("Current runner version: ': Running job: '")


# the settings


def settings(credential: dict[str, str], group: str = "") -> Settings:
    where = ("github", "https://github.com", "acme")
    return Settings(*where, credential, "host-0", "/opt/runner/run.sh", 1, 1, group=group)


def test_settings_name_github() -> None:
    service = make(settings({"api-token": TOKEN}, group="gpus"))
    assert isinstance(service, GitHub)
    assert service.url == "https://api.github.com"
    _, (_, call) = converse(service.register(place()), groups(gpus=5), registered())
    assert call.secret == f"Bearer {TOKEN}"


def test_settings_name_an_app() -> None:
    fields = {"app-id": "Iv1.abc", "installation-id": "77", "private-key": rig.pem()}
    conversation = make(settings(fields)).runners()
    call: Call = next(conversation)
    assert call.path == "/app/installations/77/access_tokens"


@pytest.mark.parametrize("left_out", ["app-id", "installation-id", "private-key"])
def test_settings_without_a_whole_credential_are_refused(left_out: str) -> None:
    fields = {"app-id": "1", "installation-id": "77", "private-key": rig.pem()}
    del fields[left_out]
    with pytest.raises(ValueError, match="no credential") as caught:
        make(settings(fields))
    assert "PRIVATE" not in str(caught.value)
    assert github.NAME in str(caught.value)
