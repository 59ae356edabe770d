# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-run's door: how many connections of one user are served, how fast, and what the others get.

What serves a connection here notes its start, says a word, and stays until its caller hangs up.
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.functional.lease_site import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it looks at other users' processes")

ROOT = pathlib.Path(__file__).parents[2]
NOBODY = 65534
SERVES = "echo $$ >>{}; printf served >&0; exec cat >/dev/null"
DOOR = """
import json, os, resource, socket, sys
from gpu_agent.gpu_run import door
number, line, values, files = json.loads(sys.argv[1])
if not line:
    def fork():
        raise BlockingIOError(11, "Resource temporarily unavailable")
    os.fork = fork
for name, value in values.items():
    setattr(door, name, value)
if files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
serve = lambda: os.execv('/bin/sh', ['sh', '-c', line])
door.Door(socket.socket(fileno=number), serve).serve()
"""
# Of another user: connects so many times, and prints what each hears.
ANOTHER = """
import socket, sys
many = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(int(sys.argv[2]))]
for one in many: one.settimeout(30); one.connect(sys.argv[1])
for one in many: print(one.recv(4096).decode())
"""
FULL = "gpu-run-user-limit"


class Door:
    """The door, and connections of root's to it."""

    def __init__(self, folder):
        self.path, self.noted, self.process = f"{folder}/socket", folder / "noted", None
        self.made = []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        os.chmod(self.path, 0o666)
        self.listener.listen(4096)
        self.noted.touch()

    def begin(self, *, files=0, starts=True, around=(), **values):
        number = self.listener.fileno()
        told = [number, starts and SERVES.format(self.noted), values, files]
        env = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}/lib"}
        words = [*around, sys.executable, "-c", DOOR, json.dumps(told)]
        self.process = subprocess.Popen(words, env=env, pass_fds=[number], start_new_session=True)

    def connect(self):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.made.append(one)
        # With a limit on its time, one that finds the kernel's line full would not wait at all.
        one.connect(self.path)
        one.settimeout(30)
        return one

    def ask(self):
        """What a connection that is closed at once hears."""
        with self.connect() as one:
            return heard(one)

    def starts(self):
        return self.noted.read_text().split()

    def another(self, count=1, *before):
        words = [*before, sys.executable, "-I", "-S", "-c", ANOTHER, self.path, str(count)]
        user = {} if before else {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        done = subprocess.run(words, stdout=-1, text=True, check=True, timeout=60, **user)
        return done.stdout.splitlines()

    def end(self):
        if self.process and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for one in (self.listener, *self.made):
            one.close()


@pytest.fixture
def door():
    done = subprocess.run(["mktemp", "-d", "/tmp/gpuci-door-XXXX"], stdout=-1, check=True)
    folder = pathlib.Path(done.stdout.decode().strip())
    folder.chmod(0o755)
    found = Door(folder)
    yield found
    found.end()
    subprocess.run(["rm", "-rf", "--", folder], check=True)


def heard(one):
    data = one.recv(4096)
    return data.decode() if data[:1] != b"{" else json.loads(data)["code"]


def test_one_user_has_eight_places_and_another_has_his_own(door):
    many = [door.connect() for _ in range(12)]
    door.begin()
    said = [heard(one) for one in many]
    assert said == [*["served"] * 8, *[FULL] * 4]
    assert door.another() == ["served"]
    many[0].close()
    until(lambda: door.ask() == "served", 30)


def test_all_users_have_a_number_of_places_together(door):
    many = [door.connect() for _ in range(3)]
    door.begin(_MOST_OF_ALL=2)
    assert [heard(one) for one in many] == ["served"] * 2 + ["gpu-run-total-limit"]
    assert json.loads(door.another()[0])["code"] == "gpu-run-total-limit"


def test_after_the_first_four_a_user_is_served_at_a_rate_and_others_at_once(door):
    door.begin()
    for _ in range(4):
        with door.connect() as one:
            assert heard(one) == "served"
    begun = time.monotonic()
    slow = [door.connect() for _ in range(3)]
    assert door.another() == ["served"]
    assert time.monotonic() - begun < 2.5
    assert [heard(one) for one in slow] == ["served"] * 3
    assert time.monotonic() - begun > 1.5


def test_a_storm_of_connections_that_hang_up_starts_next_to_nothing(door):
    door.begin()
    end = time.monotonic() + 2
    storm = 0
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.connect(door.path)
        storm += 1
    with door.connect() as one:
        assert heard(one) == "served"
    assert storm > 1000
    # A connection is served only if it was there still when it was taken.
    assert len(door.starts()) < 4 + 2 + 2


def test_who_speaks_before_he_is_asked_or_hangs_up_while_he_waits_has_no_place(door):
    with door.connect() as early:
        early.send(b"x" * 4000)
        door.begin(_EVERY=1000)
        with pytest.raises(ConnectionResetError):
            early.recv(4096)
    for _ in range(4):
        with door.connect() as one:
            assert heard(one) == "served"
    for _ in range(3):
        waiting = [door.connect() for _ in range(8)]
        assert door.ask() == FULL
        for one in waiting:
            one.close()
        until(lambda: not pending(door), 30)
    assert len(door.starts()) == 4


def pending(door):
    """Whether a further connection is refused."""
    with door.connect() as one:
        one.settimeout(0.3)
        try:
            return heard(one)
        except TimeoutError:
            return ""


def test_who_is_in_a_user_namespace_has_no_place_under_any_number(door):
    door.begin()
    unshare = ["/usr/bin/unshare", "--user", "--map-root-user"]
    (said,) = door.another(1, *unshare)
    assert json.loads(said)["code"] == "gpu-run-in-container"
    assert door.starts() == []


def test_who_can_not_be_looked_at_is_not_said_to_be_in_a_container(door):
    """The door in a system container, the caller of the machine around it."""
    door.begin(around=["/usr/bin/unshare", "--user", "--map-root-user"])
    assert door.ask() == "worker-fault"
    assert door.starts() == []


def test_what_serves_and_is_killed_leaves_its_place(door):
    many = [door.connect() for _ in range(8)]
    door.begin()
    assert {heard(one) for one in many} == {"served"}
    for pid in door.starts():
        os.kill(int(pid), signal.SIGKILL)
    assert {one.recv(100) for one in many} == {b""}
    until(lambda: door.ask() == "served", 30)


def test_without_descriptors_it_goes_on_and_serves_after(door):
    many = [door.connect() for _ in range(30)]
    door.begin(files=20, _MOST=50, _AT_ONCE=50)
    until(lambda: len(door.starts()) > 5, 30)
    time.sleep(0.5)
    assert len(door.starts()) < 20
    assert door.process.poll() is None
    for one in many:
        one.close()
    until(lambda: door.ask() == "served", 30)


def test_what_can_not_be_started_is_said(door):
    door.begin(starts=False)
    with door.connect() as one:
        assert heard(one) == "worker-fault"


def test_it_ends_once_there_is_nobody_and_not_before(door):
    one = door.connect()
    door.begin(_IDLE=0.3)
    assert heard(one) == "served"
    time.sleep(1)
    assert door.process.poll() is None
    one.close()
    assert door.process.wait(30) == 0
