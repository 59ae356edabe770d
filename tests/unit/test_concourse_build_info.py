# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whose step a container is: web on a real port, honest and hostile, and the program that asks.

The fields are those of Concourse 8.3.0 (atc/container.go, atc/api/present/container.go).
"""

import contextlib
import http.server
import json
import pathlib
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

import pytest

from ci.concourse.api import api
from ci.concourse.api import build_info as handles
from ci.concourse.api import build_info_program as names
from gpu_agent.model.observations import Moment
from gpu_agent.reporting.joblog import build_names
from gpu_agent.reporting.joblog.build_info import Naming
from gpu_agent.reporting.receipts.receipt import Names
from machine import systemd_escaping as escaping
from tests.unit.receipt_rig import holding

HANDLE = "4c0a7b3e-1111-4222-8333-000000000001"
OTHER = "4c0a7b3e-1111-4222-8333-000000000002"
PASSWORD = 'pa:ss"\\$word`&='
STEP = {
    "id": HANDLE, "worker_name": "worker-0", "state": "created", "type": "task",
    "step_name": "train", "attempt": "1", "pipeline_id": 1, "job_id": 2, "build_id": 3,
    "pipeline_name": "models", "job_name": "train", "build_name": "42",
    "working_directory": "/tmp/build/e55deab7",
}  # fmt: skip
TRAIN = Names("vision/eu", "models", "train", "42")


class Web:
    """Web's API: teams, and the containers of each."""

    def __init__(self, settings):
        self.teams = ["main", "vision/eu"]
        self.containers = {("vision/eu", HANDLE): STEP}
        self.asked, self.answers, self.token = [], {}, "header.payload.signature"
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self.reply(web.login(self.headers["Authorization"], urllib.parse.parse_qs(body)))

            def answer(self):
                web.asked.append(self.path)
                own = web.answers.get(self.path)
                if callable(own):
                    own(self)
                elif self.headers["Authorization"] != f"Bearer {web.token}":
                    self.reply((401, b""))
                else:
                    self.reply(own or web.get(self.path))

            do_GET = do_PUT = answer  # noqa: N815

            def reply(self, answer):
                self.send_response(answer[0])
                self.send_header("Content-Length", str(len(answer[1])))
                self.end_headers()
                self.wfile.write(answer[1])

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=[0.02], daemon=True).start()
        settings.write_text(
            f"CONCOURSE_BIND_PORT={self.server.server_port}\n"
            f"CONCOURSE_ADD_LOCAL_USER={escaping.environment_value('admin:' + PASSWORD)}\n"
        )

    def login(self, authorization, form):
        wanted = {"grant_type": ["password"], "username": ["admin"], "password": [PASSWORD]}
        if authorization != "Basic Zmx5OlpteDU=" or not wanted.items() <= form.items():
            return 401, b"{}"
        return 200, json.dumps({"access_token": self.token, "token_type": "bearer"}).encode()

    def get(self, path):
        words = [urllib.parse.unquote(word) for word in path.strip("/").split("/")]
        if words == ["api", "v1", "teams"]:
            return 200, json.dumps([{"id": 1, "name": name} for name in self.teams]).encode()
        found = self.containers.get((words[3], words[5]))
        return (404, b"") if found is None else (200, json.dumps(found).encode())


@pytest.fixture
def settings(tmp_path):
    return tmp_path / "web.env"


@pytest.fixture
def web(settings):
    web = Web(settings)
    yield web
    web.server.shutdown()
    web.server.server_close()


def mine(_inode):
    """Take each socket for web's: in these tests it is one of this process."""
    return True


def ask(settings, *containers, capsys, seconds=names.SECONDS):
    status = names.main(containers, settings, mine, seconds)
    said = capsys.readouterr()
    return status, said.out, said.err


def test_a_handle_becomes_team_pipeline_job_and_build(web, settings, capsys):
    status, out, err = ask(settings, HANDLE, OTHER, capsys=capsys)
    assert (status, err) == (0, "")
    assert build_names.read(out) == {HANDLE: TRAIN}
    assert web.asked[0] == "/api/v1/teams"
    assert f"/api/v1/teams/vision%2Feu/containers/{HANDLE}" in web.asked


def test_a_one_off_build_has_no_pipeline_and_no_job(web, settings, capsys):
    step = {key: text for key, text in STEP.items() if not key.startswith(("pipeline", "job"))}
    web.containers = {("main", HANDLE): step}
    _, out, _ = ask(settings, HANDLE, capsys=capsys)
    assert build_names.read(out) == {HANDLE: Names("main", "", "", "42")}


def test_nothing_secret_is_said_whatever_goes_wrong(web, settings, capsys):
    web.token = "t" * 20
    for answers in ({}, {"/api/v1/teams": (500, b"x")}, {"/api/v1/teams": (200, b"{}")}):
        web.answers = answers
        _, out, err = ask(settings, HANDLE, "-x", "../../etc", "a/b", capsys=capsys)
        assert PASSWORD not in out + err
        assert web.token not in out + err
    assert not any(".." in path or "a%2Fb" in path for path in web.asked)


def endless(handler):
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b" " * 65536)


def drip(handler):
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.02)


def drip_headers(handler):
    """Each byte comes in time, and no line ends."""
    with contextlib.suppress(OSError):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.02)


def silent(_handler):
    time.sleep(3)


PATH = f"/api/v1/teams/main/containers/{HANDLE}"


@pytest.mark.parametrize("path", ["/api/v1/teams", PATH])
@pytest.mark.parametrize(
    "answer",
    [
        endless, drip, silent, (200, b""), (200, b"["), (200, b"7"), (200, b"[" * 100_000),
        (500, b"{}"), (302, b""), (200, b'"\xff"'),
    ],
    ids=range(10),
)  # fmt: skip
def test_a_web_that_answers_nonsense_slowly_or_without_end_is_given_up(
    web, settings, capsys, path, answer
):
    web.answers[path] = answer
    status, out, err = ask(settings, HANDLE, capsys=capsys, seconds=1.0)
    assert (status, out) == (1, "")
    assert err.startswith(("web ", "web's answer ", "the answer is not ", "an answer of web "))
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"pipeline_name": "a\n\x1b[2J\u202eb"}, "a??[2J?b"),
        ({"pipeline_name": "x" * 1000}, "x" * 197 + "..."),
        ({"pipeline_name": "größe"}, "größe"),
    ],
    ids=["control characters", "long", "letters"],
)
def test_a_name_that_its_author_chose_is_one_short_printable_line(
    web, settings, capsys, change, expected
):
    web.containers = {("main", HANDLE): {**STEP, **change}}
    _, out, _ = ask(settings, HANDLE, capsys=capsys)
    assert build_names.read(out)[HANDLE].pipeline == expected


@pytest.mark.parametrize("change", [{"job_name": 7}, {"build_name": None}, {"pipeline_name": []}])
def test_a_container_that_is_none_is_refused(web, settings, capsys, change):
    web.containers = {("main", HANDLE): {**STEP, **change}}
    status, out, err = ask(settings, HANDLE, capsys=capsys)
    assert (status, out) == (1, "")
    assert "is not a text" in err


def test_an_answer_about_another_container_names_none(web, settings, capsys):
    web.containers = {("main", HANDLE): {**STEP, "id": OTHER}}
    assert ask(settings, HANDLE, capsys=capsys)[:2] == (0, "{}\n")


def test_very_many_teams_are_asked_within_bounds(web, settings, capsys):
    web.teams = [f"team-{number}" for number in range(5000)]
    web.containers = {}
    handles = (f"h{number}" for number in range(100))
    # On a machine with much else to do, 500 questions may take longer than the program has.
    status, _, err = ask(settings, *handles, capsys=capsys, seconds=300.0)
    assert (status, err) == (1, "it takes too many questions\n")
    assert len(web.asked) <= 500


def test_before_web_is_set_up_no_container_has_a_name(settings, capsys):
    assert ask(settings, HANDLE, capsys=capsys) == (0, "{}\n", "")


@pytest.mark.parametrize("text", ["", "CONCOURSE_BIND_PORT=x\nCONCOURSE_ADD_LOCAL_USER=admin:x\n"])
def test_without_what_web_needs_in_its_settings_it_says_so(settings, capsys, text):
    settings.write_text(text)
    status, _, err = ask(settings, HANDLE, capsys=capsys)
    assert status == 1
    assert str(settings) in err


def test_a_wrong_password_is_told_without_it(web, settings, capsys):
    settings.write_text(settings.read_text().replace("admin:", "admin:not"))
    assert ask(settings, HANDLE, capsys=capsys) == (1, "", "web answers 401\n")


class Thief:
    """A program of another user that has web's port, and keeps what comes."""

    def __init__(self, settings, accepts=True):
        self.stolen = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        port = self.listener.getsockname()[1]
        settings.write_text(
            f"CONCOURSE_BIND_PORT={port}\nCONCOURSE_ADD_LOCAL_USER=admin:{'secret' * 4}\n"
        )
        self.thread = threading.Thread(target=self.take, daemon=True)
        if accepts:
            self.thread.start()

    def take(self):
        one, _ = self.listener.accept()
        with one:
            one.settimeout(10)
            self.stolen.append(one.recv(65536))

    def close(self):
        self.thread.join(20)
        self.listener.close()


def test_another_program_on_webs_port_is_sent_nothing(settings, capsys):
    thief = Thief(settings)
    assert names.main([HANDLE], settings) == 1
    thief.close()
    assert thief.stolen == [b""], "a closed connection"
    assert "another program's, not web's" in capsys.readouterr().err


def test_a_program_that_takes_no_connection_to_webs_port_is_sent_nothing(settings):
    thief = Thief(settings, accepts=False)
    with pytest.raises(api.WebError, match="no process takes a connection"):
        api.Api(settings, 60.0, patience=1.0)
    thief.thread.start()
    thief.close()
    assert thief.stolen == [b""], "a closed connection"


def test_time_that_is_over_while_a_connection_waits_is_told_as_that(settings, capsys):
    thief = Thief(settings, accepts=False)
    assert names.main([HANDLE], settings, seconds=0.5) == 1
    thief.listener.close()
    assert capsys.readouterr().err == "web takes longer than 0.5 s\n"


def test_each_question_is_proved_since_the_token_is_a_secret_too(web, settings, capsys):
    proofs = iter([True, False])
    assert names.main([HANDLE], settings, lambda _inode: next(proofs)) == 1
    assert "another program's" in capsys.readouterr().err
    assert web.asked == []


SOURCE = "{0}/src:{0}/lib".format(pathlib.Path(names.__file__).parents[4])


def program(settings):
    """The program with settings of the test's own: arguments of Python."""
    code = (
        "import pathlib, sys; from ci.concourse.api import build_info_program as names; "
        f"sys.exit(names.main(sys.argv[1:], pathlib.Path({str(settings)!r}), bool))"
    )
    return "-S", "-c", code


def test_the_program_needs_the_standard_library_alone():
    done = subprocess.run(
        [sys.executable, "-B", "-S", "-m", "ci.concourse.api.build_info_program", HANDLE],
        env={"PYTHONPATH": SOURCE}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if not handles.SETTINGS.exists():
        assert (done.stdout, done.stderr) == ("{}\n", "")
    assert "Traceback" not in done.stderr


class Watch:
    """Turns of the part, on a clock that a test moves; children run in real time."""

    def __init__(self, *argv):
        self.now, self.held = 1000.0, ()
        self.part = Naming(argv)

    def turn(self, seconds=0.0, held=None):
        self.held = self.held if held is None else held
        self.now += seconds
        self.part.turn(Moment(self.now, self.now, (), holdings=self.held), ())

    def until(self, condition):
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.02)
            self.turn()


@pytest.fixture
def watch(settings):
    watch = Watch(*program(settings))
    yield watch
    watch.part.close()


def test_the_watch_learns_names_beside_its_turns(web, watch):
    watch.turn(held=(holding(HANDLE), holding("gpu-ci-selftest-1", ours=True)))
    assert watch.part(HANDLE) is None
    watch.until(lambda: watch.part(HANDLE))
    assert watch.part(HANDLE) == TRAIN
    asked = len(web.asked)
    watch.turn(seconds=1000)
    watch.turn(seconds=1000)
    assert len(web.asked) == asked
    assert not any("selftest" in path for path in web.asked)
    watch.turn(held=())
    assert watch.part(HANDLE) is None


def test_a_step_that_has_just_ended_is_asked_for_too(web, watch):
    watch.turn(held=(holding(HANDLE, in_use=False),))
    watch.until(lambda: watch.part(HANDLE))


def test_a_container_that_web_does_not_know_is_asked_for_less_and_less(tmp_path):
    calls = tmp_path / "calls"
    watch = Watch("-S", "-c", f"open({str(calls)!r}, 'a').write('x '); print('{{}}')")
    watch.held = (holding(HANDLE),)
    for _ in range(3600):
        watch.turn(seconds=2)
        if watch.part._child:
            watch.until(lambda: watch.part._child is None)
    assert 6 <= len(calls.read_text().split()) <= 20  # in two hours


def test_a_program_that_hangs_or_fails_is_told_once_and_ended(caplog):
    watch = Watch("-S", "-c", "import time; time.sleep(600)")
    watch.turn(held=(holding(HANDLE),))
    before = time.monotonic()
    for _ in range(5):
        watch.turn(seconds=30)
        watch.turn(seconds=30)
    assert time.monotonic() - before < 20
    assert caplog.text.count("no answer within 20 s") == 1
    watch.part.close()
    watch.part = Naming(("-S", "-c", "import sys; sys.exit('web answers 500')"))
    watch.turn()
    watch.until(lambda: "web answers 500" in caplog.text)


@pytest.mark.parametrize("said", ["", "[]", '{"x": 1}', '{"x": ["a"]}', '{"x": [1, 2, 3, 4]}'])
def test_an_answer_that_is_none_is_left_aside(caplog, said):
    watch = Watch("-S", "-c", f"print({said!r})")
    watch.turn(held=(holding(HANDLE),))
    watch.until(lambda: "cannot learn the names" in caplog.text)
    assert watch.part(HANDLE) is None


def test_where_no_program_knows_names_none_is_asked(caplog):
    watch = Watch()
    watch.turn(held=(holding(HANDLE),))
    watch.turn(seconds=100)
    assert watch.part._child is None
    assert caplog.text == ""


def test_the_handles_of_a_strange_store_are_no_arguments(tmp_path):
    out = tmp_path / "arguments"
    code = f"import sys; open({str(out)!r}, 'w').write(' '.join(sys.argv[1:])); print('{{}}')"
    watch = Watch("-S", "-c", code)
    watch.turn(held=(holding("--evil"), holding("a/b"), holding("c d"), holding(HANDLE)))
    watch.until(lambda: out.exists() and out.read_text())
    assert out.read_text() == HANDLE
    watch.part.close()
