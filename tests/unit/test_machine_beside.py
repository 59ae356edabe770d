# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Programs that run beside this one are watched and ended, and locks have one holder."""

import os
import pathlib
import subprocess
import sys
import time

import pytest

from machine import locks, process

SHELL = "/bin/sh"


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ended(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_child_runs_meanwhile_and_tells_its_end(monkeypatch):
    monkeypatch.setenv("SECRET", "x")
    script = "echo first; printf half; sleep 0.3; echo; env; echo bad >&2; exit 3"
    with process.beside([SHELL, "-c", script], env={"EXTRA": "1"}) as child:
        until(lambda: child.last_line() == "first")
        assert child.completed() is None
        until(child.completed)
        done = child.completed()
    assert done.returncode == 3
    assert done.stdout.startswith("first\nhalf\n")
    assert done.stderr.endswith("bad\n")
    assert "EXTRA=1" in done.stdout
    assert "SECRET" not in done.stdout


def test_child_that_is_asked_to_end_does_and_one_that_does_not_is_killed():
    polite = "trap 'echo bye; exit 0' TERM; echo on; while :; do sleep 0.05; done"
    with process.beside([SHELL, "-c", polite]) as child:
        until(lambda: child.last_line() == "on")
        child.terminate()
        assert child.stop(5) == process.Completed(0, "on\nbye\n", "")
    deaf = "trap '' TERM; echo $$; while :; do sleep 0.05; done"
    with process.beside([SHELL, "-c", deaf]) as child:
        until(child.last_line)
        child.terminate()
        began = time.monotonic()
        assert child.stop(0.3).returncode == -9
        assert time.monotonic() - began < 30


def test_nothing_of_a_child_outlives_its_context():
    with process.beside([SHELL, "-c", "sleep 600 & echo $!; wait"]) as child:
        until(child.last_line)
        grandchild = child.last_line()
        assert not ended(grandchild)
    until(lambda: ended(grandchild))


def test_child_of_one_that_is_interrupted_is_killed():
    pids = []

    def interrupted():
        with process.beside([SHELL, "-c", "echo $$; sleep 600; :"]) as child:
            until(child.last_line)
            pids.append(child.last_line())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ended(pids[0])


def test_only_the_end_of_a_long_output_is_kept():
    command = [sys.executable, "-c", "for n in range(100000): print(n)"]
    with process.beside(command) as child:
        until(child.completed)
        assert child.last_line() == "99999"
        assert len(child.completed().stdout) <= 1 << 16


def test_child_that_can_not_be_started_is_an_error():
    with pytest.raises(process.CommandError, match="can't be started"):
        process.beside(["/nowhere/at-all"]).__enter__()
    with pytest.raises(ValueError, match="not an absolute path"):
        process.beside(["sleep", "1"]).__enter__()


HOLD = """
import pathlib, sys, time
from machine import locks
with locks.hold(pathlib.Path(sys.argv[1]), "pid 1, ü"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_lock_names_its_holder_and_is_gone_with_it(tmp_path):
    path = tmp_path / "lock"
    environment = {**os.environ, "PYTHONPATH": "lib"}
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(locks.LockedError, match="pid 1, ü"), locks.hold(path, "we"):
            pytest.fail("two have it")
        other.kill()
        other.wait()
    with locks.hold(path, "we"):
        assert path.read_text() == "we"
        # What is started meanwhile does not hold it on.
        process.run([SHELL, "-c", "sleep 5 >/dev/null 2>&1 &"], timeout=5)
    with locks.hold(path, "x"):
        assert path.read_text() == "x"


def test_lock_follows_no_link(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"), locks.hold(tmp_path / "lock", "we"):
        pytest.fail("it followed the link")
    assert not (tmp_path / "other").exists()
