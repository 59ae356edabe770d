# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The metrics over HTTP: those who ask slowly, wrongly or without end hinder nobody."""

import collections
import contextlib
import http.client
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

import pytest

from gpu_agent.reporting.metrics import server as serving
from machine import tcp_connections as sockets
from tests.unit.situations import DEFAULTS


@pytest.fixture
def server():
    server = serving.Server(0, lambda: "gpuci_gpus 2\n")
    yield server
    server.close()


def get(server, path="/metrics", method="GET"):
    connection = http.client.HTTPConnection(serving.HOST, server.port, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())


def connected(server):
    return socket.create_connection((serving.HOST, server.port), timeout=30)


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def test_metrics(server):
    status, body, headers = get(server)
    assert (status, body) == (200, b"gpuci_gpus 2\n")
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert get(server, "/metrics?x=1")[0] == 200


def test_a_job_of_a_runner_is_not_served_and_others_are(tmp_path):
    server = serving.Server(0, lambda: "gpuci_gpus 2\n", users=tmp_path)
    with contextlib.closing(server):
        name = tmp_path / str(os.getuid())
        name.write_text("grafana-agent")
        assert get(server)[0] == 200
        name.write_text("gpu-ci-runner-6b39f6622cc1")
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            get(server)
        name.unlink()
        name.mkdir()
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            get(server)
        name.rmdir()
        assert get(server)[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/metrics/../../etc/passwd", 404),
        ("GET", "http://other/metrics", 404),
        ("HEAD", "/metrics", 405),
        ("POST", "/metrics", 405),
        ("DELETE", "/metrics", 405),
    ],
)
def test_nothing_else_is_answered(server, method, path, status):
    assert get(server, path, method)[0] == status


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\n\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 20_000, b"431"),
        (b"GET /metrics HTTP/1.0\n\n", b"200"),
    ],
    ids=["empty", "0.9", "tls", "long", "1.0"],
)
def test_odd_requests(server, request_, status):
    with connected(server) as client, contextlib.suppress(ConnectionResetError):
        client.sendall(request_)
        assert client.recv(100).split()[1] == status
    assert get(server)[0] == 200


def test_a_request_in_pieces(server):
    with connected(server) as client:
        for piece in (b"GET /met", b"rics HTTP/1.1\r\n", b"Host: x\r\n\r", b"\n"):
            client.sendall(piece)
            time.sleep(0.02)
        assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_those_who_say_nothing_are_left_and_hinder_nobody(server):
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connected(server)) for _ in range(100)]
        assert get(server)[0] == 200
        until(lambda: len(server._connections) <= serving._MOST)
        # The oldest had to go.
        assert silent[0].recv(1) == b""


def test_no_user_can_take_the_usual_port_before_the_watch():
    usual = DEFAULTS["gpu-metrics-port"]
    assert 0 < usual < 1024
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    if os.geteuid() or first <= usual:
        pytest.skip("needs root, and ports that are root's")
    squat = f"import os, socket; os.setuid(65534); socket.create_server(('127.0.0.1', {usual}))"
    argv = [sys.executable, "-I", "-S", "-c", squat]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert "PermissionError" in done.stderr


def test_a_port_that_another_program_has_is_seen():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert sockets.is_taken(port, "gpu-ci-health.service")
    assert not sockets.is_taken(port, "gpu-ci-health.service")


# What a user does who wants no one else to be served, and says so when it has begun.
FLOOD = """
import os, socket, sys, time
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
kept, begun = [], False
while True:
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex(("127.0.0.1", int(sys.argv[1])))
    kept.append(one)
    if len(kept) > 900:
        for one in kept[:300]:
            one.close()
        del kept[:300]
        if not begun:
            print("begun", flush=True)
        begun = True
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be two users")
@pytest.mark.parametrize("users", [(65534, 65534), (1000, 70000)])
def test_users_who_connect_without_end_keep_a_collector_from_nothing(server, users):
    with contextlib.ExitStack() as stack:
        for user in users:
            argv = [sys.executable, "-I", "-S", "-c", FLOOD, str(server.port), str(user)]
            child = stack.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE))
            stack.callback(child.kill)
            assert child.stdout.readline() == b"begun\n"
        for _ in range(4):
            assert get(server)[0] == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be two users")
def test_a_user_who_takes_all_places_leaves_those_of_other_users():
    server = serving.Server(0, lambda: "x")
    with contextlib.closing(server), contextlib.ExitStack() as stack:
        for user, count in ((1001, 3), (1000, 100), (0, 3), (999, 100)):
            before = os.geteuid()
            os.seteuid(user)
            try:
                for _ in range(count):
                    stack.enter_context(connected(server))
            finally:
                os.seteuid(before)
            until(lambda: server._connections)
        until(lambda: sum(one.user == 999 for one in server._connections) == 29)
        users = collections.Counter(one.user for one in server._connections)
        assert users == {1001: 3, 1000: 29, 0: 3, 999: 29}


def test_patience_ends():
    server = serving.Server(0, lambda: "x", patience=0.05)
    with contextlib.closing(server):
        with connected(server) as client:
            client.sendall(b"GET /metrics HT")
            assert client.recv(1) == b""
        until(lambda: not server._connections)


def test_a_client_that_reads_nothing_is_left():
    server = serving.Server(0, lambda: "x" * (32 << 20), patience=0.3)
    with contextlib.closing(server), connected(server) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        until(lambda: server._connections)
        until(lambda: not server._connections)
        came = 0
        with contextlib.suppress(ConnectionResetError):
            while piece := client.recv(1 << 20):
                came += len(piece)
        assert came < 32 << 20


def test_a_long_text_arrives_whole():
    server = serving.Server(0, lambda: "x" * (8 << 20))
    with contextlib.closing(server):
        assert len(get(server)[1]) == 8 << 20


def test_many_at_once(server):
    answers = []
    ask = [threading.Thread(target=lambda: answers.append(get(server)[0])) for _ in range(20)]
    for one in ask:
        one.start()
    for one in ask:
        one.join(60)
    assert answers == [200] * 20


def test_the_text_is_made_once_a_second_at_most():
    made = []
    server = serving.Server(0, lambda: made.append(1) or "x", same=1000)
    with contextlib.closing(server):
        for _ in range(5):
            get(server)
    assert len(made) == 1


def test_a_port_that_is_taken_is_said_once_and_tried_again(caplog):
    with contextlib.closing(socket.socket()) as other:
        other.bind((serving.HOST, 0))
        other.listen()
        taken = other.getsockname()[1]
        server = serving.Server(taken, lambda: "x", again=0.02)
        assert server.port == 0
        time.sleep(0.2)
    with contextlib.closing(server):
        until(lambda: server.port == taken)
        assert get(server)[0] == 200
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 1
    assert f"port {taken}" in said[0]
    assert "gpu-metrics-port" in said[0]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12, of threads
def test_a_child_that_hangs_for_ever_does_not_keep_the_port(server):
    get(server)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, b"left" if server._listener.fileno() < 0 else b"kept")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 4) == b"left"
    os.close(reader)
    os.close(writer)
    assert get(server)[0] == 200


def test_it_listens_on_this_machine_alone(server):
    assert server._listener.getsockname()[0] == "127.0.0.1"


def test_no_descriptor_stays_open():
    before = len(os.listdir("/proc/self/fd"))
    server = serving.Server(0, lambda: "x")
    get(server)
    with connected(server):
        server.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_port_0_serves_nobody():
    assert serving.serve(0, lambda: "x") is None
