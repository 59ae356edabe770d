# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm is woken once in 30 s at most, and nobody waits for it."""

import contextlib
import itertools

import pytest

from gpu_agent.health.charm_notifier import Waker
from gpu_agent.model.observations import Moment
from gpu_agent.reporting.notifier import device_watch as watch
from machine import process
from machine.process import Completed


class Juju:
    """juju-exec: how many calls there were, and what comes of the one that runs."""

    def __init__(self):
        self.calls, self.killed, self.answer = [], 0, None

    @contextlib.contextmanager
    def beside(self, argv):
        if isinstance(self.answer, Exception):
            raise self.answer
        self.calls.append(argv)
        try:
            yield self
        finally:
            self.killed += 1

    def completed(self):
        return self.answer


@pytest.fixture
def juju():
    return Juju()


@pytest.fixture
def note(tmp_path):
    return tmp_path / "untold"


def turn(waker, now):
    waker.turn(Moment(now, now, ()), ())


DONE = Completed(0, "", "")


def test_it_is_woken_at_once_and_then_at_most_once_in_30_s(juju, note):
    waker = Waker("worker/0", note, juju.beside)
    turn(waker, 100)
    assert juju.calls == []
    waker.want()
    assert note.exists()
    turn(waker, 101)
    assert juju.calls == [watch.command("worker/0")]
    juju.answer = DONE
    for now in range(102, 131):
        waker.want()
        turn(waker, now)
    assert len(juju.calls) == 1
    turn(waker, 131)
    assert len(juju.calls) == 2
    turn(waker, 133)
    assert not note.exists()
    assert not waker.is_waiting


def test_what_changes_while_it_looks_is_told_by_another_call(juju, note):
    waker = Waker("worker/0", note, juju.beside)
    waker.want()
    turn(waker, 100)
    waker.want()
    turn(waker, 500)
    assert len(juju.calls) == 1  # it waits for the machine's lock, and nobody waits for it
    juju.answer = DONE
    turn(waker, 501)
    assert len(juju.calls) == 2
    assert note.exists()


@pytest.mark.parametrize(
    "answer", [Completed(1, "", "no unit"), process.CommandError(["x"], 127, "not there")]
)
def test_one_that_fails_is_made_again_less_and_less_often(juju, note, answer, caplog):
    waker = Waker("worker/0", note, juju.beside)
    waker.want()
    began = []
    monkeys, juju.answer = juju.calls, answer
    for now in range(0, 2000, 2):
        before = len(caplog.records)
        turn(waker, float(now))
        if len(caplog.records) > before:
            began.append(now)
    gaps = [after - before for before, after in itertools.pairwise(began)]
    assert gaps == sorted(gaps)
    assert 25 <= gaps[0] <= 65
    assert max(gaps) <= 610
    assert len(monkeys) < 12
    assert note.exists()


def test_one_that_takes_too_long_is_ended(juju, note):
    waker = Waker("worker/0", note, juju.beside)
    waker.want()
    turn(waker, 100)
    turn(waker, 100 + watch.HOOKS)
    assert juju.killed == 1
    assert waker.is_waiting


def test_what_was_untold_when_it_ended_is_told(juju, note):
    first = Waker("worker/0", note, juju.beside)
    first.want()
    turn(first, 100)
    first.close()
    assert juju.killed == 1
    second = Waker("worker/0", note, juju.beside)
    turn(second, 101)
    assert len(juju.calls) == 2
