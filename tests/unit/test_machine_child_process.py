# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Programs that run beside this one are spoken to, given up and never waited for."""

import os
import pathlib
import select
import socket
import subprocess
import sys
import time

import pytest

from machine import child_process as children
from machine import sd_notify as notify

PATIENCE = 30
ROOT = pathlib.Path(__file__).resolve().parents[2]
PRELUDE = f"import sys, time; sys.path.insert(0, {str(ROOT / 'lib')!r})\n"


def python(code):
    return children.Child([sys.executable, "-c", PRELUDE + code], dict(os.environ))


def spoken(child, number=1):
    lines, end = [], time.monotonic() + PATIENCE
    while len(lines) < number and time.monotonic() < end:
        select.select([child], [], [], 1)
        lines += child.lines()
    return lines


def wait(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_there(pid):
    return pathlib.Path("/proc", str(pid)).exists()


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    wait(lambda: not children.left())


def test_lines_go_both_ways_and_halves_wait_for_their_ends():
    child = python("""
from machine import child_process as children
for line in sys.stdin.buffer:
    children.tell_parent(line.strip() * 2)
    sys.stdout.write("half"); sys.stdout.flush(); time.sleep(0.2)
    children.tell_parent(b" and half")
""")
    child.say(b"one")
    assert spoken(child, 2) == [b"oneone", b"half and half"]
    assert child.lines() == []
    assert child.waited() >= 0
    child.kill()


def test_its_last_words_come_before_its_end():
    child = python("print('last words'); sys.exit(3)")
    assert spoken(child) == [b"last words"]
    wait(child.is_gone)
    with pytest.raises(children.EndedError, match="it ended with 3"):
        child.lines()
    with pytest.raises(children.EndedError):
        child.say(b"more")
    child.kill()


def test_who_speaks_without_an_end_is_not_heard_to_his_end():
    child = python("sys.stdout.write('x' * 10_000_000)")
    with pytest.raises(children.EndedError, match="without an end"):
        spoken(child)
    child.kill()


def test_who_does_not_listen_is_not_waited_for():
    child = python("time.sleep(60)")

    def talk():
        for _ in range(100):
            child.say(b"x" * 4000)

    with pytest.raises(children.EndedError):
        talk()
    child.kill()


def test_one_that_is_killed_leaves_nothing_behind():
    child = python("import signal; signal.signal(15, signal.SIG_IGN); print(1); time.sleep(60)")
    spoken(child)
    begun = time.monotonic()
    child.kill()
    assert time.monotonic() - begun < 30
    wait(lambda: not children.left())
    assert not is_there(child.pid)
    assert child.waited() == 0


@pytest.mark.parametrize("late", [False, True])
def test_it_dies_with_the_one_that_started_it(late):
    child = f"""
import os, sys, time
from machine import child_process as children
parent = os.getppid()
if {late}: time.sleep(1)
children.end_with(parent, 'a-name')
children.tell_parent(open("/proc/self/comm", "rb").read().strip())
time.sleep(60)
"""
    parent = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT / "lib")!r})
from machine import child_process as children
child = children.Child([sys.executable, "-c", {(PRELUDE + child)!r}], dict(os.environ))
print(child.pid, flush=True)
if not {late}:
    while not (told := child.lines()): time.sleep(0.02)
    assert told == [b"a-name"], told
os.kill(os.getpid(), 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", parent], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == -9, done.stderr
    pid = int(done.stdout)
    # Whoever is its parent now may be slow to reap it.
    state = pathlib.Path("/proc", str(pid), "stat")
    wait(lambda: not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX")


def test_a_program_that_is_not_there_is_an_error():
    with pytest.raises(OSError, match="No such file"):
        children.Child(["/nonexistent"], {})


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(tmp_path, monkeypatch, abstract):
    name = f"@gpuci-test-{os.getpid()}" if abstract else str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + name[1:] if abstract else name)
        systemd.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify.ready()
        notify.alive()
        notify.status("two\nlines")
        notify.stopping()
        told = [systemd.recv(100) for _ in range(4)]
    assert told == [b"READY=1", b"WATCHDOG=1", b"STATUS=two lines", b"STOPPING=1"]
    notify.alive()  # nobody listens any more


def test_without_systemd_nobody_is_told(monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify.ready()


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, 0.5),
        ({"WATCHDOG_USEC": "x"}, None),
    ],
)
def test_how_often_systemd_wants_to_hear(monkeypatch, variables, seconds):
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert notify.watchdog_seconds() == seconds


UNKILLABLE = f"""
import ctypes, os, pathlib, subprocess, sys, time
sys.path.insert(0, {str(ROOT / "lib")!r})
from machine import child_process as children
if ctypes.CDLL(None, use_errno=True).unshare(0x20000000):  # CLONE_NEWPID
    sys.exit(77)
sleeper = "print(1, flush=True); import time; time.sleep(600)"
child = children.Child([sys.executable, "-c", sleeper], dict(os.environ))
while not child.lines(): time.sleep(0.02)
# The first process of a namespace does not end before all others are reaped, whatever it is sent.
other = subprocess.Popen(["/bin/sleep", "600"])
begun = time.monotonic()
child.kill()
print(time.monotonic() - begun < 30)
time.sleep(1)
print(children.left(), pathlib.Path("/proc", str(child.pid)).exists())
other.kill(); other.wait()
end = time.monotonic() + {PATIENCE}
while children.left() and time.monotonic() < end: time.sleep(0.02)
print(children.left(), pathlib.Path("/proc", str(child.pid)).exists())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of processes needs root")
def test_one_that_no_signal_ends_is_left_alone_and_reaped_when_it_ends():
    done = subprocess.run(
        [sys.executable, "-c", UNKILLABLE], capture_output=True, text=True, timeout=2 * PATIENCE
    )
    if done.returncode == 77:
        pytest.skip("this container gets no namespaces of its own")
    assert done.stdout.split("\n") == ["True", "1 True", "0 False", ""], done.stderr
