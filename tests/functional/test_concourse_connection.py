# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whether a worker is connected to web, told from real sockets of real processes."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ci.concourse.worker import connection
from machine import tcp_connections as sockets

ROOT = Path(__file__).parents[2]
PATIENCE = 4
# A worker that dials each line's address, and keeps the connection until the next line.
WORKER = """
import socket, sys
for line in sys.stdin:
    host, port = line.split()
    open = None
    if port != "0":
        open = socket.create_connection((host, int(port)), timeout=5)
    print("done", flush=True)
"""


@pytest.fixture(autouse=True)
def seen(tmp_path, monkeypatch):
    """Where what was seen is noted; and shorter times, of the same order."""
    monkeypatch.setattr(connection, "SEEN", tmp_path / "run/worker-connection")
    monkeypatch.setattr(connection, "_LASTING", 1.0)
    return connection.SEEN


@pytest.fixture
def worker():
    """A process that dials what it is told."""
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def dial(host="0", port=0):
            process.stdin.write(f"{host} {port}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"
            return process.pid

        yield dial
        process.kill()


@contextlib.contextmanager
def tsa(address="127.0.0.1", lets_in=True):
    """A port that takes connections, and ends each at once where it lets nobody in."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        server.settimeout(0.1)
        ending, taken = threading.Event(), []

        def serve():
            while not ending.is_set():
                with contextlib.suppress(TimeoutError):
                    taken.append(server.accept()[0])
                    if not lets_in:
                        taken.pop().close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            ending.set()
            thread.join()
            for one in taken:
                one.close()


@pytest.mark.parametrize(
    ("dialled", "host"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("127.0.0.1", "ci.example.com")],
)
def test_a_connection_that_lasts(worker, dialled, host):
    with tsa(dialled) as port:
        assert connection.lasts(
            worker(dialled, port), (f"10.9.9.9:{port}", f"{host}:{port}"), PATIENCE
        )


def test_it_is_watched_once_and_then_known(worker, seen, monkeypatch):
    with tsa() as port:
        pid, hosts = worker("127.0.0.1", port), (f"127.0.0.1:{port}",)
        began = time.monotonic()
        assert connection.lasts(pid, hosts, PATIENCE)
        assert time.monotonic() - began >= 1
        monkeypatch.setattr(connection, "_LASTING", 3600)
        assert connection.lasts(pid, hosts, 1)
        worker("127.0.0.1", port)
        assert not connection.lasts(pid, hosts, 1), "this is another one"
    assert seen.exists()
    assert connection.forget()
    assert not seen.parent.exists()
    assert not connection.forget()


def test_none_at_all_is_waited_for_and_then_told(worker):
    began = time.monotonic()
    assert not connection.lasts(worker(), ("127.0.0.1:2222",), PATIENCE)
    assert time.monotonic() - began >= 4


def test_one_that_comes_in_time_counts(worker):
    pid = worker()
    with tsa() as port:
        dial = threading.Timer(0.5, worker, ("127.0.0.1", port))
        dial.start()
        assert connection.lasts(pid, (f"127.0.0.1:{port}",), PATIENCE)
        dial.join()


def test_a_worker_that_is_turned_away_again_and_again_is_not_connected(worker):
    """As one whose key web does not know: each dial gets through, and ends soon."""
    with tsa(lets_in=False) as port:
        pid, ending = worker(), threading.Event()

        def dial():
            while not ending.wait(0.2):
                worker("127.0.0.1", port)

        dialling = threading.Thread(target=dial)
        dialling.start()
        try:
            assert not connection.lasts(pid, (f"127.0.0.1:{port}",), PATIENCE)
        finally:
            ending.set()
            dialling.join()


def test_neither_another_port_nor_address_nor_process_counts(worker):
    with tsa() as port, tsa() as other:
        pid = worker("127.0.0.1", port)
        assert not connection.lasts(pid, (f"127.0.0.1:{other}", f"127.0.0.2:{port}"), PATIENCE)
        assert not connection.lasts(os.getpid(), (f"127.0.0.1:{port}",), PATIENCE)


def test_a_process_that_has_ended_has_none(worker):
    with subprocess.Popen(["/bin/true"]) as ended:
        ended.wait()
    assert sockets.connections(ended.pid) == ()


VANISHING = """
import os, socket, subprocess, time
from machine import tcp_connections as sockets
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
server = socket.create_server(("127.0.0.1", 2222))
client = socket.create_connection(("127.0.0.1", 2222))
peer, _ = server.accept()
def told():
    return [one.unanswered for one in sockets.connections(os.getpid()) if one.port == 2222]
print(told())
subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
client.send(b"keepalive")
time.sleep(2.5)
print([unanswered >= 3 for unanswered in told()])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_a_web_that_vanished_without_a_word_does_not_count():
    """The kernel calls the connection established for many minutes more."""
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", VANISHING],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}/src:{ROOT}/lib"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[0]", "[True]"]


HIERARCHY = Path("/sys/fs/cgroup/systemd")
TOP = HIERARCHY if HIERARCHY.exists() else Path("/sys/fs/cgroup")
LISTENS = """
import os, socket, sys, time
with open(sys.argv[1], "w") as group:
    group.write(str(os.getpid()))
listener = socket.create_server(("127.0.0.1", 0))
print(os.fstat(listener.fileno()).st_ino, flush=True)
time.sleep(1000)
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(TOP, os.W_OK), reason="control groups need root"
)
@pytest.mark.parametrize("end", ["\r", "\x0c", "\x1e", "\u2028", "\udcff"])
def test_no_name_of_a_users_group_makes_a_process_one_of_a_service(end):
    """A user's service manager names its groups at will: two lines of /proc/PID/cgroup of one."""
    base = TOP / f"gpuci-connection-{os.getpid()}"
    group = base / f"x{end}1:name=systemd:" / "system.slice" / "concourse-web.service"
    group.mkdir(parents=True)
    try:
        argv = [sys.executable, "-c", LISTENS, os.fsencode(group / "cgroup.procs")]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as user:
            inode = int(user.stdout.readline())
            try:
                assert not sockets.is_open_in("concourse-web.service", inode)
            finally:
                user.kill()
    finally:
        deadline = time.monotonic() + 10
        for path in (group, *group.parents[:3]):
            while path.exists() and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    path.rmdir()


TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:B5D2 0100007F:08AE 01 00000000:00000000 02:00000DC5 00000000     0        0 41 2 0
   1: 0100007F:B5D3 0700000A:08AE 01 00000024:00000000 01:00000DC5 00000005     0        0 42 2 0
   2: 0100007F:B5D4 0700000A:08AE 02 00000001:00000000 01:00000DC5 00000005     0        0 43 2 0
   3: 0100007F:B5D5 0700000A:08AE 08 00000000:00000000 00:00000000 00000000     0        0 44 2 0
"""


@pytest.mark.skipif(sys.byteorder != "little", reason="the table is of a little-endian machine")
def test_the_kernels_table_is_read():
    assert sockets.established(TABLE) == [
        sockets.Connection(41, "127.0.0.1", 2222, 0),
        sockets.Connection(42, "10.0.0.7", 2222, 5),
    ]
    six = "0: X:1 0000000000000000FFFF00000700000A:08AE 01 0:0 00:0 0 0 0 45"
    assert sockets.established(f"header\n{six}") == [sockets.Connection(45, "10.0.0.7", 2222, 0)]
