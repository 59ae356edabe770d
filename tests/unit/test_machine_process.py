# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Programs get a clean environment and a time limit, and their failures are told in one line."""

import contextlib
import json
import logging
import os
import shlex
import signal
import sys
import threading
import time

import pytest

from machine import process

DUMP = [sys.executable, "-S", "-c", "import json, os; print(json.dumps(dict(os.environ)))"]


def test_environment_is_clean_but_for_the_proxies(monkeypatch):
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "SECRET", "PATH", "http_proxy"):
        monkeypatch.setenv(name, "/charm")
    monkeypatch.setenv("JUJU_CHARM_HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("JUJU_CHARM_NO_PROXY", "10.0.0.0/8")
    monkeypatch.setenv("JUJU_CHARM_HTTP_PROXY", "")
    got = json.loads(process.run(DUMP, timeout=20, env={"EXTRA": "1"}).stdout)
    assert got.pop("LC_CTYPE", None) in (None, "C.UTF-8")
    assert got == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "HOME": "/root",
        "https_proxy": "http://proxy:3128",
        "no_proxy": "10.0.0.0/8",
        "EXTRA": "1",
    }


def test_stdin_reaches_the_program_and_no_log(caplog):
    caplog.set_level(logging.DEBUG)
    done = process.run(["/bin/cat"], timeout=10, stdin="a secret")
    assert done == process.Completed(0, "a secret", "")
    assert "/bin/cat" in caplog.text
    assert "secret" not in caplog.text
    assert process.run(["/bin/cat"], timeout=10).stdout == ""


def test_what_only_looks_gets_no_line_of_the_log(caplog):
    caplog.set_level(logging.DEBUG)
    process.run(["/bin/true"], timeout=10, told=False)
    assert caplog.text == ""


def test_a_failure_shows_no_terminal_what_a_program_says_and_not_all_of_it():
    """It may be the words of a web, a database or a mirror that the program asks."""
    said = r"printf '\033]0;x\007\302\205\342\200\256y' >&2; exit 3"
    long = "head -c 50000 /dev/zero | tr '\\0' x >&2; exit 3"
    for script in (said, long):
        with pytest.raises(process.CommandError) as caught:
            process.run(["/bin/sh", "-c", script], timeout=10)
        text = str(caught.value)
        assert text.isprintable()
        assert len(text) < 500


def test_failure_is_one_line_that_names_command_and_reason():
    command = ["/bin/sh", "-c", "echo; echo first >&2; echo 'no such thing' >&2; exit 3"]
    with pytest.raises(process.CommandError) as caught:
        process.run(command, timeout=10)
    assert caught.value.returncode == 3
    assert str(caught.value) == f"{shlex.join(command)} failed with 3: first / no such thing"
    done = process.run(["/bin/sh", "-c", "exit 3"], timeout=10, check=False)
    assert done.returncode == 3


def test_program_that_is_not_there_is_a_command_error():
    with pytest.raises(process.CommandError, match="can't be started: No such file"):
        process.run(["/nowhere/at-all"], timeout=10)


def test_name_without_a_path_is_refused():
    with pytest.raises(ValueError, match="not an absolute path"):
        process.run(["ls"], timeout=10)


def test_what_runs_too_long_is_killed_with_its_children(tmp_path):
    pidfile = tmp_path / "pid"
    began = time.monotonic()
    with pytest.raises(
        process.CommandError, match=r"ran out of time: begun / no end within 0\.5 s"
    ):
        process.run(
            ["/bin/sh", "-c", f"echo begun >&2; sleep 60 & echo $! >{pidfile}; wait"], timeout=0.5
        )
    assert time.monotonic() - began < 30
    child = int(pidfile.read_text())
    deadline = time.monotonic() + 30
    while os.path.exists(f"/proc/{child}/exe") and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(FileNotFoundError):
        os.readlink(f"/proc/{child}/exe")


@pytest.fixture
def left_over(tmp_path):
    """Where a program writes the number of a process that it leaves behind; that is ended."""
    path = tmp_path / "left"
    yield path
    for pid in map(int, path.read_text().split()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def began(path, line):
    """Text of a shell that has setsid run a line, in a session of its own, with its pipes."""
    return f"setsid sh -c 'echo $$ >>{path}; {line}' & while ! test -s {path}; do :; done"


@pytest.mark.parametrize("line", ["exec sleep 60", "trap : PIPE TERM; while :; do echo x; done"])
def test_what_is_left_in_a_session_of_its_own_holds_no_limit_up(left_over, line):
    start = time.monotonic()
    script = f"echo begun >&2; {began(left_over, line)}; sleep 60"
    with pytest.raises(process.CommandError, match=r"ran out of time: .*no end within 0\.5 s"):
        process.run(["/bin/sh", "-c", script], timeout=0.5)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("stdin", [None, "x" * 300_000])
def test_daemon_that_a_program_leaves_with_its_pipes_is_not_waited_for(left_over, stdin):
    start = time.monotonic()
    script = f"{began(left_over, 'exec sleep 60')}; echo done; echo well >&2; exit 3"
    done = process.run(["/bin/sh", "-c", script], timeout=50, check=False, stdin=stdin)
    assert done == process.Completed(3, "done\n", "well\n")
    assert time.monotonic() - start < 5


def test_what_comes_shortly_after_the_end_is_read(left_over):
    script = began(left_over, "sleep 0.2; echo late; exec sleep 60")
    assert process.run(["/bin/sh", "-c", script], timeout=50).stdout == "late\n"


def test_many_lines_before_a_limit_are_told_at_its_end():
    script = "i=0; while test $i -lt 5000; do i=$((i+1)); echo line $i >&2; done; sleep 60"
    with pytest.raises(process.CommandError, match="line 4999 / line 5000 / no end within 2 s"):
        process.run(["/bin/sh", "-c", script], timeout=2)


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_program_that_nothing_can_kill_holds_no_limit_up(monkeypatch):
    """As one in an uninterruptible call of the kernel."""
    deaf = []
    monkeypatch.setattr(os, "killpg", lambda pid, _: deaf.append(pid))
    start, argv = time.monotonic(), ["/bin/sh", "-c", "echo begun >&2; exec sleep 60"]
    try:
        for run in (process.run, process.run_detaching, process.run_on_files):
            with pytest.raises(process.CommandError, match=r"no end within 0\.2 s"):
                run(argv, timeout=0.2)
        with process.beside(argv) as child:
            assert child.stop(0.1).returncode == -signal.SIGKILL
        assert time.monotonic() - start < 10
        assert len(set(deaf)) == 4
    finally:
        for pid in set(deaf):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


# Says who it leaves behind, as a container's runtime does by a pid file.
LEAVES = """
import os, subprocess, sys
child = subprocess.Popen(["/bin/sh", "-c", sys.argv[2]], start_new_session=True)
with open(sys.argv[1], "w") as file:
    file.write(str(child.pid))
print("left", flush=True)
sys.exit(3)
"""


def leave(tmp_path, line):
    """Runs it in a process of its own, which is the one to adopt; what that found."""
    script = """
import json, pathlib, sys
from machine import process
process.adopt_orphans()
folder = pathlib.Path(sys.argv[1])
argv = [sys.executable, "-S", "-c", sys.argv[2], str(folder / "pid"), sys.argv[3]]
status = process.run_detaching(argv, timeout=20, stdout=folder / "out", stderr=folder / "err")
pid = int((folder / "pid").read_text())
print(json.dumps([status, process.wait(pid, 0.0), process.wait(pid, 20.0)]))
"""
    argv = [sys.executable, "-c", script, str(tmp_path), LEAVES, line]
    return json.loads(process.run(argv, timeout=60, env={"PYTHONPATH": ":".join(sys.path)}).stdout)


def test_what_a_program_leaves_behind_is_waited_for(tmp_path):
    assert leave(tmp_path, "sleep 0.5; echo late; echo bad >&2; exit 7") == [3, None, 7]
    assert (tmp_path / "out").read_text() == "left\nlate\n"
    assert (tmp_path / "err").read_text() == "bad\n"


def test_how_it_was_killed_is_told(tmp_path):
    assert leave(tmp_path, "sleep 0.5; kill -9 $$") == [3, None, -9]


def test_a_program_that_detaches_nothing_in_time_is_killed():
    with pytest.raises(process.CommandError, match=r"no end within 0\.2 s"):
        process.run_detaching(["/bin/sleep", "60"], timeout=0.2)


def test_threads_that_end_meanwhile_keep_no_program_from_its_start():
    over = threading.Event()

    def come_and_go():
        while not over.is_set():
            threads = [threading.Thread(target=time.sleep, args=(0,)) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    busy = threading.Thread(target=come_and_go)
    busy.start()
    try:
        for _ in range(100):
            process.run(["/bin/true"], timeout=10)
    finally:
        over.set()
        busy.join()


# It is ended, but what stood for it in Python is gone before it is told.
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_program_that_begins_while_this_one_is_interrupted_is_ended(monkeypatch, tmp_path):
    """Else a container's making would go on after all that is left of it was taken away."""

    def interrupted(*_):
        raise KeyboardInterrupt

    # There subprocess waits for word of the child, which is there by then.
    monkeypatch.setattr(os, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.run(["/bin/sh", "-c", f"sleep 0.2; touch {tmp_path}/ran"], timeout=60)
    monkeypatch.undo()
    time.sleep(0.5)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("run", [process.run, process.run_on_files])
def test_program_that_complains_without_end_is_killed(run):
    """It would fill the memory, or the disk, until its limit."""
    start = time.monotonic()
    with pytest.raises(process.CommandError, match="it writes more than 64 MiB"):
        run(["/bin/sh", "-c", "yes line >&2"], timeout=60)
    assert time.monotonic() - start < 30
