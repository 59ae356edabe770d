# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A service that does not answer for minutes is ended, and no other, and none that came back."""

import http.server
import signal
import threading

import pytest

from machine import unanswered

UNIT = "x.service"


class World:
    """A unit with a process, and a clock that a sleep puts forward."""

    def __init__(self, monkeypatch):
        self.now, self.process, self.answers, self.script = 0.0, "MainPID=1\n", True, {}
        self.ended = []
        monkeypatch.setattr(unanswered.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(unanswered.time, "sleep", self.sleep)
        monkeypatch.setattr(unanswered, "answers", lambda _: self.answers)
        monkeypatch.setattr(unanswered, "process_of", lambda _: self.process)
        monkeypatch.setattr(unanswered, "end", self.end)

    def sleep(self, seconds):
        self.now += seconds
        for moment in [moment for moment in self.script if moment <= self.now]:
            vars(self).update(self.script.pop(moment))
        if self.now > 2000:
            raise KeyboardInterrupt

    def end(self, unit, sig, silent):
        assert unit == UNIT
        self.ended.append((self.now, sig))

    def watch(self, script):
        """The signals that it gets, when; `script` says what is when."""
        self.script = script
        with pytest.raises(KeyboardInterrupt):
            unanswered.watch(UNIT, 1, 300)
        return self.ended


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def test_one_that_answers_is_left_alone(world):
    assert world.watch({}) == []


def test_one_that_was_busy_for_less_than_its_time_is_left_alone(world):
    assert world.watch({100: {"answers": False}, 390: {"answers": True}}) == []


def test_one_that_hangs_is_ended_once_and_has_all_its_time_again(world):
    anew = {405: {"process": "MainPID=2\n"}, 500: {"answers": True}}
    assert world.watch({100: {"answers": False}, **anew}) == [(390, signal.SIGABRT)]
    world.now, world.ended, world.process = 0, [], "MainPID=1\n"
    assert world.watch({100: {"answers": False}, 405: {"process": "MainPID=2\n"}})[:2] == [
        (390, signal.SIGABRT),
        (705, signal.SIGABRT),
    ]


def test_one_that_does_not_even_end_is_killed(world):
    ended = world.watch({100: {"answers": False}, 455: {"answers": True}})
    assert ended == [(390, signal.SIGABRT), (450, signal.SIGKILL)]


def test_one_that_does_not_run_is_nobodys_business(world):
    assert world.watch({100: {"answers": False, "process": ""}}) == []


@pytest.mark.parametrize(("status", "well"), [(200, True), (503, False), (404, False)])
def test_what_an_answer_is(status, well):
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        assert unanswered.answers(port) is well
        server.shutdown()
    assert not unanswered.answers(port)
