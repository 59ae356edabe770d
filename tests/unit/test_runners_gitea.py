# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Conversations with Gitea, on answers that Gitea 1.26.0 has given."""

import json

import pytest

from ci.runners.gitea import Gitea
from ci.runners.service import Answer, Fault, Job, Place, Remote, ServiceError

URL = "https://git.example.com"
TOKEN, REGISTRATION, SECRET = "a" * 40, "sdV8cVEZxzO2HXuQL7knYRtFqgcugRUNETFkxlaL", "e" * 40
ADMIN = "/api/v1/admin/actions"
REGISTER = "/api/actions/runner.v1.RunnerService/Register"
PLACE = Place(
    name="worker-0-ab12-d217d862",
    labels=("self-hosted", "linux", "gpu"),
    files="/run/credentials/one.service",
    home="/var/lib/one",
    environment={"NVIDIA_VISIBLE_DEVICES": "GPU-1", "GPU_COUNT": "1"},
)
RUNNERS = (
    '{"runners":[{"id":3,"name":"worker-0-ab12-d62a6a2e","status":"online","busy":false,'
    '"disabled":false,"ephemeral":true,"labels":[{"id":0,"name":"self-hosted","type":"custom"}]},'
    '{"id":4,"name":"worker-0-ab12x","status":"offline","busy":false,"disabled":false,'
    '"ephemeral":true,"labels":[]}],"total_count":%d}\n'
)
QUEUED = (
    '{"jobs":[{"id":12,"url":"https://git.example.com/git/api/v1/repos/acme/infra/actions/jobs/12"'
    ',"html_url":"https://git.example.com/git/acme/infra/actions/runs/4/jobs/12","run_id":4,'
    '"run_url":"https://git.example.com/git/api/v1/repos/acme/infra/actions/runs/4",'
    '"name":"never","labels":["gpu-count-4"],"run_attempt":0,"head_sha":"7e4f","head_branch":'
    '"main","status":"queued","steps":[],"created_at":"2026-11-26T17:05:46Z"},'
    '{"id":2,"url":"https://git.example.com/git/api/v1/repos/root1/r92f5e039/actions/jobs/2",'
    '"run_id":1,"name":"many (1)","labels":["self-hosted","gpu"],"status":"queued"}],'
    '"total_count":2}\n'
)
RUNNING = (
    '{"jobs":[{"id":1,"url":"https://git.example.com/git/api/v1/repos/root1/r92f5e039/actions/'
    'jobs/1","run_id":1,"name":"one","labels":["self-hosted","linux","x64","gpu"],'
    '"run_attempt":1,"status":"in_progress","runner_id":1,"runner_name":"worker-0-ab12-d217d862",'
    '"steps":[{"name":"Run make","number":0,"status":"in_progress"}]}],"total_count":1}\n'
)
REGISTERED = (
    '{"runner":{"id":"4","uuid":"1b9b3a77-3f79-4be8-8cf8-2438f7510f2e","token":"%s",'
    '"name":"worker-0-ab12-d217d862","version":"gpu-ci-worker","labels":["self-hosted","linux"]%s}}'
)
EPHEMERAL = REGISTERED % (SECRET, ',"ephemeral":true')
NOT_FOUND = (
    '{"errors":null,"message":"Runner not found","url":"http://127.0.0.1:3900/api/swagger"}'
)
NO_TOKEN = '{"code":"unknown","message":"runner registration token not found"}'


def play(conversation, *exchanges):
    """Have a conversation; each exchange is a call's method, path, status and answer.

    Returns what the conversation has learned, and its calls.
    """
    calls, send = [], None
    for method, path, status, text in exchanges:
        call = conversation.send(send)
        assert (call.method, call.path) == (method, path)
        calls.append(call)
        send = Answer(status, text.encode())
    with pytest.raises(StopIteration) as done:
        conversation.send(send)
    return done.value.value, calls


def fault(conversation, answer):
    """The error of a conversation whose first call is answered so."""
    next(conversation)
    with pytest.raises(ServiceError) as error:
        conversation.send(answer)
    return error.value


def gitea(scope="", registration=""):
    return Gitea(URL, scope, TOKEN, registration)


def page(path, number):
    return f"{path}{'&' if '?' in path else '?'}page={number}&limit=50"


def test_runners_are_listed_page_by_page():
    path = f"{ADMIN}/runners"
    first = tuple(
        Remote(*one) for one in (("3", "worker-0-ab12-d62a6a2e"), ("4", "worker-0-ab12x"))
    )
    found, calls = play(gitea().runners(), ("GET", page(path, 1), 200, RUNNERS % 2))
    assert found == first
    assert calls[0].secret == f"token {TOKEN}"
    found, _ = play(
        gitea().runners(),
        ("GET", page(path, 1), 200, RUNNERS % 4),
        ("GET", page(path, 2), 200, RUNNERS % 4),
    )
    assert found == first * 2
    # One has gone meanwhile.
    found, _ = play(
        gitea().runners(),
        ("GET", page(path, 1), 200, RUNNERS % 3),
        ("GET", page(path, 2), 200, '{"runners":[],"total_count":2}'),
    )
    assert found == first


def test_a_list_without_end_is_cut_off():
    answers = [("GET", page(f"{ADMIN}/runners", n), 200, RUNNERS % 10**6) for n in range(1, 21)]
    found, _ = play(gitea().runners(), *answers)
    assert len(found) == 40


def test_jobs_that_wait_come_first_and_the_oldest_of_them_first():
    found, _ = play(
        gitea().jobs(),
        ("GET", page(f"{ADMIN}/jobs?status=queued", 1), 200, QUEUED),
        ("GET", page(f"{ADMIN}/jobs?status=in_progress", 1), 200, RUNNING),
    )
    many = frozenset({"self-hosted", "gpu"})
    assert found == (
        Job("root1/r92f5e039", "many (1)", "1", many, ""),
        Job("acme/infra", "never", "4", frozenset({"gpu-count-4"}), ""),
        Job(
            "root1/r92f5e039", "one", "1", many | {"linux", "x64"}, "worker-0-ab12-d217d862"
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("scope", "base"),
    [
        ("", "/api/v1/admin/actions"),
        ("acme", "/api/v1/orgs/acme/actions"),
        ("acme/infra", "/api/v1/repos/acme/infra/actions"),
        ("a?b/c d", "/api/v1/repos/a%3Fb/c%20d/actions"),
    ],
)
def test_a_scope_is_the_server_an_organisation_or_a_repository(scope, base):
    assert next(gitea(scope).runners()).path == page(f"{base}/runners", 1)


def test_a_runner_is_registered_for_one_job_and_its_files_have_no_other_secret():
    token = f'{{"token":"{REGISTRATION}"}}\n'
    made, calls = play(
        gitea().register(PLACE),
        ("POST", f"{ADMIN}/runners/registration-token", 200, token),
        ("POST", REGISTER, 200, EPHEMERAL),
    )
    assert [call.secret for call in calls] == [f"token {TOKEN}", ""]
    assert calls[1].body == {
        "name": PLACE.name, "token": REGISTRATION, "version": "gpu-ci-worker",
        "labels": ["self-hosted", "linux", "gpu"], "ephemeral": True,
    }  # fmt: skip
    assert made.id == "4"
    assert made.files.keys() == {"runner", "config.yaml"}
    assert json.loads(made.files["runner"]) == {
        "id": 4, "uuid": "1b9b3a77-3f79-4be8-8cf8-2438f7510f2e", "name": PLACE.name,
        "token": SECRET, "address": URL, "ephemeral": True,
        "labels": ["self-hosted:host", "linux:host", "gpu:host"],
    }  # fmt: skip
    config = json.loads(made.files["config.yaml"])
    assert config["runner"]["file"] == f"{PLACE.files}/runner"
    assert config["runner"]["capacity"] == 1
    assert config["runner"]["envs"] == PLACE.environment
    assert config["host"]["workdir_parent"] == f"{PLACE.home}/work"
    files = "".join(made.files.values())
    assert TOKEN not in files
    assert REGISTRATION not in files
    for secret in (TOKEN, REGISTRATION, SECRET):
        assert secret not in repr((made, calls))


def test_a_registration_token_of_the_operator_is_used_as_it_is():
    made, calls = play(gitea("acme", "mine").register(PLACE), ("POST", REGISTER, 200, EPHEMERAL))
    assert made.id == "4"
    assert calls[0].body["token"] == "mine"


def test_a_server_without_runners_for_one_job_keeps_none():
    conversation = gitea("", REGISTRATION).register(PLACE)
    next(conversation)
    removal = conversation.send(Answer(200, (REGISTERED % (SECRET, "")).encode()))
    assert (removal.method, removal.path) == ("DELETE", f"{ADMIN}/runners/4")
    with pytest.raises(ServiceError, match=r"1\.24") as error:
        conversation.send(Answer(204))
    assert error.value.fault is Fault.STRANGE


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (NO_TOKEN, Fault.CREDENTIAL),
        ('{"code":"unknown","message":"can\'t create new runner"}', Fault.BUSY),
        ("<html>", Fault.STRANGE),
    ],
)
def test_a_refused_registration_says_why(text, kind):
    error = fault(gitea("", REGISTRATION).register(PLACE), Answer(500, text.encode()))
    assert error.fault is kind
    assert REGISTRATION not in str(error)


@pytest.mark.parametrize("status", [200, 404, 405])
def test_a_withdrawn_runner_may_have_a_job_already_or_be_forgotten(status):
    runner = Remote("4", "worker-0-ab12-d217d862")
    found, calls = play(
        gitea().withdraw(runner), ("PATCH", f"{ADMIN}/runners/4", status, NOT_FOUND)
    )
    assert found is True
    assert calls[0].body == {"disabled": True}


@pytest.mark.parametrize(("status", "text"), [(204, ""), (404, NOT_FOUND)])
def test_a_removed_runner_may_be_forgotten(status, text):
    play(gitea().remove(Remote("4", "x")), ("DELETE", f"{ADMIN}/runners/4", status, text))


@pytest.mark.parametrize(
    ("answer", "kind", "wait"),
    [
        (Answer(401, b'{"message":"invalid username, password or token"}'), Fault.CREDENTIAL, 0),
        (Answer(403, b'{"message":"token does not have scope"}'), Fault.FORBIDDEN, 0),
        (Answer(403, b"", 30.0), Fault.BUSY, 30),
        (Answer(404, b'{"message":"GetOrgByName"}'), Fault.NOT_FOUND, 0),
        (Answer(408), Fault.BUSY, 0),
        (Answer(429, b"", 7.0), Fault.BUSY, 7),
        (Answer(500), Fault.BUSY, 0),
        (Answer(503, b"", 5.0), Fault.BUSY, 5),
        (Answer(302), Fault.STRANGE, 0),
        (Answer(400), Fault.STRANGE, 0),
        (Answer(200, b"<html>"), Fault.STRANGE, 0),
        (Answer(200, b"[]"), Fault.STRANGE, 0),
        (Answer(200, b"\xff"), Fault.STRANGE, 0),
        (Answer(200, b"[" * 100_000), Fault.STRANGE, 0),
    ],
)
def test_each_bad_answer_has_its_fault(answer, kind, wait):
    for conversation in (
        gitea().runners(),
        gitea().jobs(),
        gitea().register(PLACE),
    ):
        error = fault(conversation, answer)
        assert (error.fault, error.retry_after) == (kind, wait)
        assert TOKEN not in str(error)


@pytest.mark.parametrize("entries", ["null", "{}", '["x", 3, null]', "[]"])
def test_what_is_no_list_of_runners_is_none(entries):
    text = f'{{"runners":{entries},"total_count":0}}'
    assert play(gitea().runners(), ("GET", page(f"{ADMIN}/runners", 1), 200, text))[0] == ()


@pytest.mark.parametrize(
    ("conversation", "text"),
    [
        (gitea().runners(), '{"runners":[{"id":1}],"total_count":"many"}'),
        (gitea("", REGISTRATION).register(PLACE), '{"runner":{"ephemeral":true}}'),
    ],
)
def test_numbers_that_are_none_are_strange(conversation, text):
    assert fault(conversation, Answer(200, text.encode())).fault is Fault.STRANGE


def test_the_log_of_its_program_tells_whether_a_runner_has_a_job():
    before = (
        'time="2026-11-26T16:46:13Z" level=info msg="Starting runner daemon"\n'
        'time="2026-11-26T16:46:13Z" level=info msg="runner: worker-0-ab12-e03fb5d3, with version:'
        ' v1.0.8, with labels: [self-hosted linux], declare successfully"\n'
    )
    line = (
        'time="2026-11-26T16:46:13Z" level=info msg="task 2 repo is root1/r30367d9b'
        ' https://github.com http://127.0.0.1:3900"\n'
    )
    assert not gitea().has_job(before)
    assert gitea().has_job(before + line)


def test_the_command_names_the_configuration_and_no_secret():
    command = gitea().command("/opt/gitea-runner", PLACE)
    config = f"{PLACE.files}/config.yaml"
    assert command == ("/opt/gitea-runner", "daemon", "--config", config)
