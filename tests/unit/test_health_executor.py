# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The clerk: what was decided is written, or stays to be done; the memory is saved after it."""

import json
import logging

import pytest

from gpu_agent import paths
from gpu_agent.availability import quarantine, retests
from gpu_agent.health import executor as clerk
from gpu_agent.health import settings
from gpu_agent.health.executor import Clerk
from gpu_agent.model import decisions as decided
from gpu_agent.model.card import Card
from gpu_agent.model.decisions import BringBack, Suspect, TakeOut, Tell
from gpu_agent.model.observations import Moment

CARD = Card("GPU-0", 3, "0000:01:00.0", "A100", ("GPU-0",))
OUT = TakeOut("GPU-0", "off-bus", "off the bus: it has fallen off", "isolation", "reboot")
BACK = BringBack("GPU-0", "off-bus")
TEST = decided.Test("GPU-0", "quick", "Xid 31 twice")


class Memory:
    """As gpu_agent.fault_policy.state's."""

    def __init__(self):
        self.at, self.words = 0.0, "nothing"

    def as_json(self):
        return json.dumps({"at": self.at, "wall": self.at, "words": self.words})


class Desk:
    """A clerk, what it writes to, and whom it tells."""

    def __init__(self, folder, mode):
        self.memory, self.changes, self.now = Memory(), 0, 100.0
        self.state, self.run = folder / "state", folder / "run"
        self.run.mkdir()
        self.clerk = Clerk(mode, lambda: self.memory, self.change, state=self.state, run=self.run)

    def change(self):
        self.changes += 1

    def turn(self, *decisions, later=1.0):
        self.now += later
        self.memory.at = self.now
        self.clerk.turn(Moment(self.now, self.now, (CARD,)), decisions)

    def saved(self):
        return json.loads((self.state / "memory.json").read_text())


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "QUARANTINE", tmp_path / "quarantine")
    monkeypatch.setattr(retests, "PATH", tmp_path / "retests")
    return tmp_path


@pytest.fixture
def desk(folders):
    return Desk(folders, "enabled")


def out():
    return [(entry.uuid, entry.by, entry.check, entry.level) for entry in quarantine.read()]


def test_a_record_comes_and_goes_and_the_charm_is_told(desk):
    desk.turn(OUT)
    assert out() == [("GPU-0", "watch", "off-bus", "isolation")]
    assert desk.changes == 1
    desk.turn(OUT)
    assert desk.changes == 1
    desk.turn(BACK)
    assert out() == []
    assert desk.changes == 2


def test_what_is_not_its_own_it_does_not_bring_back(desk):
    quarantine.cordon("GPU-0", "reseat it")
    desk.turn(OUT, BACK)
    assert out() == [("GPU-0", "operator", "", "")]
    desk.turn(TakeOut("GPU-1", "hang", "driver hangs", "quick", ""), BringBack("GPU-1", "xid"))
    assert ("GPU-1", "watch", "hang", "quick") in out()


def test_tests_are_asked_for_and_suspicion_is_told(desk):
    desk.turn(TEST, Suspect("GPUs are lost"))
    assert [(ask.uuid, ask.level) for ask in retests.read()] == [("GPU-0", "quick")]
    assert (desk.run / clerk.SUSPECT).read_text() == "GPUs are lost\n"
    desk.turn(Suspect(""))
    assert not (desk.run / clerk.SUSPECT).exists()
    assert desk.changes == 3
    assert not desk.clerk.is_waiting


def test_who_only_observes_writes_nothing_and_says_it(folders, caplog):
    desk = Desk(folders, settings.OBSERVE)
    caplog.set_level(logging.INFO)
    desk.turn(OUT, TEST, Suspect("one"), BACK, Tell("GPU-0", "xid", "Xid 79", hardware=True))
    assert (out(), retests.read(), desk.changes) == ([], (), 0)
    assert [*desk.run.iterdir()] == []
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == (
        "would: quarantine GPU 3 (GPU-0) until it passes isolation: off the bus: it has fallen off"
    )
    assert len(said) == 4
    # It must know the same after a restart.
    assert desk.saved()["words"] == "nothing"


def test_what_cannot_be_written_is_not_lost_and_it_is_said_once(desk, folders, caplog):
    for path in (folders / "quarantine", desk.state):
        path.write_text("")
    desk.memory.words = "GPU-0 is out"
    desk.turn(OUT)
    desk.turn()
    # What can be done is done, but nothing of one GPU out of turn.
    desk.turn(BACK, TakeOut("GPU-0", "xid", "Xid 48", "compute", ""), TEST)
    assert [ask.uuid for ask in retests.read()] == ["GPU-0"]
    assert desk.clerk.is_waiting
    assert not (desk.state / "memory.json").exists()
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    for path in (folders / "quarantine", desk.state):
        path.unlink()
    desk.turn()
    assert out() == [("GPU-0", "watch", "xid", "compute")]
    assert desk.saved()["words"] == "GPU-0 is out"
    assert not desk.clerk.is_waiting


def test_the_memory_is_saved_when_there_is_something_new_or_now_and_then(desk):
    desk.turn()
    first = desk.saved()["at"]
    desk.turn()
    assert desk.saved()["at"] == first
    desk.memory.words = "more"
    desk.turn()
    assert desk.saved()["words"] == "more"
    desk.turn(later=301)
    assert desk.saved()["at"] == desk.now
    assert (desk.state / "memory.json").stat().st_mode & 0o777 == 0o600
    assert desk.state.stat().st_mode & 0o777 == 0o700


def test_a_suspicion_whose_memory_was_lost_is_over(desk):
    (desk.run / clerk.SUSPECT).write_text("GPUs are lost\n")
    desk.turn()
    assert not (desk.run / clerk.SUSPECT).exists()
    assert desk.changes == 1
