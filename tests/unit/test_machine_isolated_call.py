# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A call that may hang, in a child: what comes back, and what becomes of one that does not."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from machine import isolated_call as apart

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def note(tmp_path):
    return tmp_path / "run/unanswered"


def children():
    found = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return set(found)


def test_what_it_returns_comes_back_and_nothing_else(note):
    before, changed = children(), []
    answer = apart.call(lambda: changed.append(1) or {"size": "x" * 300_000}, 30, note=note)
    assert answer == {"size": "x" * 300_000}
    assert not changed
    assert children() == before
    assert not note.parent.exists()


def test_what_it_raises_comes_back(note):
    def fail():
        raise PermissionError(13, "no", "/dev/nvidia0")

    with pytest.raises(PermissionError, match="nvidia0"):
        apart.call(fail, 30, note=note)


def test_one_that_crashes_is_no_answer(note):
    with pytest.raises(ChildProcessError, match="without an answer"):
        apart.call(lambda: os.kill(os.getpid(), signal.SIGKILL), 30, note=note)


def test_a_defect_does_not_run_the_callers_code_twice(note, tmp_path):
    log = tmp_path / "log"
    with pytest.raises(ChildProcessError):
        apart.call(lambda: 1 // 0, 30, note=note)
    with log.open("a") as file:
        file.write(f"{os.getpid()}\n")
    assert log.read_text() == f"{os.getpid()}\n"


def test_one_that_hangs_is_given_up_and_killed(note):
    before = children()
    with pytest.raises(apart.HungError, match=r"within 0\.2 s"):
        apart.call(lambda: time.sleep(600), 0.2, note=note)
    assert children() == before
    assert not note.exists()


def test_as_long_as_one_cannot_be_killed_no_other_is_started(note, monkeypatch):
    # What hangs in the kernel outlives SIGKILL: so does this one, where none is sent.
    monkeypatch.setattr(apart.os, "kill", lambda *_: None)
    with pytest.raises(apart.HungError):
        apart.call(lambda: time.sleep(600), 0.1, note=note)
    monkeypatch.undo()
    pid = int(note.read_text().split()[0])
    with pytest.raises(apart.HungError, match="earlier call"):
        apart.call(lambda: 1, 30, note=note)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert apart.call(lambda: 1, 30, note=note) == 1
    assert not note.exists()


def test_another_process_of_that_number_is_none_that_hangs(note):
    note.parent.mkdir()
    for text in (f"{os.getpid()} 1\n", "", "x", "1\n"):
        note.write_text(text)
        assert apart.call(lambda: 1, 30, note=note) == 1


def test_nobody_who_waits_for_the_end_of_a_pipe_waits_for_it(note):
    # As Juju's agent does with a hook's output; the child here outlives its parent.
    program = f"""
        import pathlib, time
        from machine import isolated_call as apart
        apart._GONE = 0
        apart.os.kill = lambda *_: None
        print("begun", flush=True)
        try:
            apart.call(lambda: time.sleep(600), 0.2, note=pathlib.Path({str(note)!r}))
        except apart.HungError:
            print("over")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={"PYTHONPATH": f"{ROOT}/src:{ROOT}/lib"},
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    assert done.stdout == b"begun\nover\n"
    pid = int(note.read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
