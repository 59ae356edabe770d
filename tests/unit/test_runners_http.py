# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Conversations over real sockets: limits of time and size, redirects, proxies."""

import http.server
import itertools
import json
import socket
import threading
import time

import pytest

from ci.runners import http as runners_http
from ci.runners.service import Call, Fault, ServiceError

SECRET = "token 0123456789abcdef"
# Seconds; far longer than any limit in this file, far shorter than what it would be without one.
LONG = 20.0


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in ("HTTP", "HTTPS", "NO"):
        monkeypatch.delenv(f"JUJU_CHARM_{name}_PROXY", raising=False)


class Server(http.server.ThreadingHTTPServer):
    """Answers each request as `reply` does, which gets the handler; `seen` has the requests."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen = []
        self.reply = lambda handler: handler.say(200, b"{}")
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.command, self.path, dict(self.headers), body))
        self.server.reply(self)

    do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815

    def say(self, status, body, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def servers():
    """Begins servers, which end with the test."""
    begun = []

    def begin():
        begun.append(Server())
        threading.Thread(target=begun[-1].serve_forever, args=(0.01,), daemon=True).start()
        return begun[-1]

    yield begin
    for one in begun:
        one.shutdown()
        one.server_close()


@pytest.fixture
def server(servers):
    return servers()


def ask(*calls):
    """A conversation of these calls; it learns the answers."""
    answers = []
    for call in calls:
        answers.append((yield call))  # noqa: PERF401  none has a yield
    return answers


def fault(url, seconds=LONG, *calls):
    with pytest.raises(ServiceError) as error:
        runners_http.talk(url, ask(*(calls or (Call("GET", "/", SECRET),))), seconds)
    assert SECRET not in str(error.value)
    return error.value


def test_calls_come_as_they_are_and_answers_whatever_their_status(server):
    statuses = iter((200, 404, 204, 500))
    server.reply = lambda handler: handler.say(next(statuses), b"")
    calls = [
        Call("GET", "/a?b=c", SECRET),
        Call("POST", "/a", body={"x": ["é", 1]}),
        Call("PATCH", "/b", SECRET, {}),
        Call("DELETE", "/b", SECRET),
    ]
    answers = runners_http.talk(server.url, ask(*calls), LONG)
    assert [(one.status, one.body) for one in answers] == [
        (status, b"") for status in (200, 404, 204, 500)
    ]
    assert [seen[:2] for seen in server.seen] == [(call.method, call.path) for call in calls]
    headers = [seen[2] for seen in server.seen]
    assert [one.get("Authorization") for one in headers] == [SECRET, None, SECRET, SECRET]
    assert [one.get("Content-Type") for one in headers] == [
        *(None, "application/json", "application/json", None)
    ]
    assert {one["User-Agent"] for one in headers} == {"gpu-ci-worker"}
    assert json.loads(server.seen[1][3]) == {"x": ["é", 1]}


def drip(handler):
    """Answer a byte at a time, without end."""
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in itertools.count():
            handler.wfile.write(b" ")
            time.sleep(0.05)
    except OSError:
        pass


def drip_headers(handler):
    try:
        for byte in itertools.chain(b"HTTP/1.1 200 OK\r\nX: ", itertools.repeat(ord("x"))):
            handler.wfile.write(bytes([byte]))
            time.sleep(0.05)
    except OSError:
        pass


@pytest.mark.parametrize("reply", [drip, drip_headers])
def test_a_server_that_drips_bytes_does_not_hold_a_conversation(server, reply):
    server.reply = reply
    began = time.monotonic()
    assert fault(server.url, 0.5).fault is Fault.UNREACHABLE
    assert time.monotonic() - began < LONG


def test_the_time_is_that_of_the_whole_conversation(server):
    def slowly(handler):
        time.sleep(0.2)
        handler.say(200, b"{}")

    server.reply = slowly
    found = fault(server.url, 0.7, *[Call("GET", "/", SECRET)] * 100)
    assert found.fault is Fault.UNREACHABLE
    assert 1 < len(server.seen) < 10


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *(("7", 7), ("0", 0), ("999999", 3600), ("9" * 400, 0), ("-1", 0), ("1e9", 0)),
        *(("Wed, 21 Oct 2026 07:28:00 GMT", 0), ("٣", 0)),
    ],
)
def test_how_long_the_service_asks_to_wait(server, value, seconds):
    server.reply = lambda handler: handler.wfile.write(
        f"HTTP/1.0 429 Slow down\r\nRetry-After: {value}\r\n\r\n".encode()
    )
    (answer,) = runners_http.talk(server.url, ask(Call("GET", "/")), LONG)
    assert (answer.status, answer.retry_after) == (429, seconds)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed_since_the_token_would_travel(servers, status):
    server, other = servers(), servers()
    server.reply = lambda handler: handler.say(status, b"", Location=f"{other.url}/x")
    (answer,) = runners_http.talk(server.url, ask(Call("GET", "/", SECRET)), LONG)
    assert answer.status == status
    assert (len(server.seen), other.seen) == (1, [])


def test_an_answer_has_a_largest_size(server):
    server.reply = lambda handler: handler.say(200, b"x" * runners_http.LARGEST)
    (answer,) = runners_http.talk(server.url, ask(Call("GET", "/")), LONG)
    assert len(answer.body) == runners_http.LARGEST

    def without_end(handler):
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b"x" * 65536)
        except OSError:
            pass

    server.reply = without_end
    assert fault(server.url).fault is Fault.STRANGE


def test_nobody_there_is_unreachable():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        found = fault(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert found.fault is Fault.UNREACHABLE
    assert "refused" in str(found)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"SSH-2.0-OpenSSH_9.2\r\n"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000,
    ],
)
def test_what_is_no_whole_answer_is_unreachable(server, text):
    server.reply = lambda handler: handler.wfile.write(text)
    assert fault(server.url).fault is Fault.UNREACHABLE


def test_the_models_proxy_is_used_unless_the_model_exempts_the_host(servers, monkeypatch):
    server, proxy = servers(), servers()
    proxy.reply = lambda handler: handler.say(200, b"by proxy")
    monkeypatch.setenv("JUJU_CHARM_HTTP_PROXY", proxy.url)
    (answer,) = runners_http.talk(server.url, ask(Call("GET", "/a", SECRET)), LONG)
    assert answer.body == b"by proxy"
    assert (proxy.seen[0][1], server.seen) == (f"{server.url}/a", [])
    monkeypatch.setenv("JUJU_CHARM_NO_PROXY", "10.0.0.1,127.0.0.1")
    runners_http.talk(server.url, ask(Call("GET", "/a", SECRET)), LONG)
    assert (len(proxy.seen), len(server.seen)) == (1, 1)


def test_a_proxy_that_drips_bytes_does_not_hold_a_conversation(servers, monkeypatch):
    server, proxy = servers(), servers()
    proxy.reply = drip_headers
    monkeypatch.setenv("JUJU_CHARM_HTTP_PROXY", proxy.url)
    assert fault(server.url, 0.5).fault is Fault.UNREACHABLE
    assert server.seen == []
