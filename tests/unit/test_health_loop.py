# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The loop of the watch: what each part is given, how often, and what one that fails spoils."""

import errno
import json
import logging
import select
import shutil

import pytest

from gpu_agent.availability import residual_memory
from gpu_agent.health import lease_reader as leased
from gpu_agent.health import loop as watch
from gpu_agent.health.loop import Watch
from gpu_agent.health.settings import Settings
from gpu_agent.model.card import Card
from gpu_agent.model.decisions import TakeOut
from gpu_agent.model.observations import Holding, Look, Message, Source
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.unavailable import QUARANTINED, Unavailable

CARD = Card("GPU-0", 0, "0000:01:00.0", "A100", ("GPU-0",))
MESSAGE = Message(5.0, "GPU-0", Source.EVENT, xid=79)
LOOK = Look(4.0, {})
OUT = TakeOut("GPU-0", "xid", "Xid 79", "isolation", "")
HELD = (Holding("a", "/b", ("GPU-0",), 1.0, in_use=True),)
LEFT = (Holding("a", "/b", ("GPU-0",), 1.0, in_use=False),)
DIRTY = residual_memory.cause(2048)
LOST = Unavailable(QUARANTINED, "xid-79", "Xid 79")


class Note:
    """A part that notes its turns, and fails as told."""

    def __init__(self, *faults):
        self.turns, self.faults = [], [*faults]

    def turn(self, moment, decisions):
        if self.faults and (fault := self.faults.pop(0)):
            raise fault
        self.turns.append((moment, [*decisions]))


class Site:
    """A watch whose sources, judge and leases are a test's."""

    def __init__(self, folder, *parts, hurries=bool):
        self.coming, self.waits, self.decisions = [], [], []
        self.held, self.now = (), 1000.0
        self.folders = {name: folder / name for name in ("c", "q")}
        folders = tuple(map(str, self.folders.values()))
        given = Settings("a/0", "/d", cards=(CARD,), unavailable_folders=folders)
        self.watch = Watch(given, self, self, parts, hurries, lambda: self.now)

    def write(self, **causes):
        """Write these records of unavailable GPUs, by their folder, and no others."""
        for name, folder in self.folders.items():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for uuid, cause in causes.get(name, {}).items():
                (folder / f"{uuid}.json").write_text(json.dumps(cause.as_record()))

    def holdings(self):
        return self.held

    def take(self, timeout):
        self.waits.append(round(timeout, 3))
        seen, self.coming = self.coming, []
        return seen

    def turn(self, moment=None, *, later=1.0):
        if moment is not None:  # the judge's
            decided, self.decisions = self.decisions, []
            return decided
        self.now += later
        return self.watch.turn(lambda _: None)


def test_each_part_gets_what_was_seen_and_decided(tmp_path):
    parts = Note(), Note()
    site = Site(tmp_path, *parts)
    site.coming, site.decisions, site.held = [LOOK, MESSAGE], [OUT], HELD
    site.write(c={"GPU-0": DIRTY, "GPU-9": DIRTY}, q={"GPU-0": LOST})
    site.turn()
    site.write(c={"GPU-0": DIRTY})
    site.turn()
    for part in parts:
        (first, decisions), (second, nothing) = part.turns
        assert (first.seen, first.look, first.holdings) == ((LOOK, MESSAGE), LOOK, HELD)
        assert (first.cards, first.now, decisions) == ((CARD,), 1001.0, [OUT])
        assert first.unavailable == {"GPU-0": LOST}
        assert first.is_taken_out("GPU-0")
        # The last good look stays.
        assert (second.seen, second.look, nothing) == ((), LOOK, [])
        assert second.unavailable == {"GPU-0": DIRTY}
        assert not second.is_taken_out("GPU-0")


def test_the_pace_follows_who_holds_a_gpu(tmp_path):
    site = Site(tmp_path)
    for holdings, decisions in (
        ((), []),
        (HELD, []),
        (None, []),
        (LEFT, [OUT]),
        (LEFT, []),
    ):
        site.held, site.decisions = holdings, decisions
        site.turn()
    site.turn(later=10.0)
    site.turn()
    fast, slow = watch.HELD - 0.2, 14.8
    assert site.waits == [0.0, slow, fast, fast, watch.SOON - 0.2, fast, slow]


def test_who_has_something_to_do_soon_is_not_made_to_wait(tmp_path):
    site = Site(tmp_path, hurries=lambda: True)
    site.turn()
    site.turn()
    assert site.waits == [0.0, watch.HELD - 0.2]


@pytest.mark.parametrize(
    "fault", [OSError(errno.ENOSPC, "full"), ValueError("odd"), KeyError("x"), TypeError("y")]
)
def test_a_part_that_fails_is_said_once_and_hinders_no_other(tmp_path, caplog, fault):
    caplog.set_level(logging.INFO)
    bad, good = Note(fault, fault, fault), Note()
    site = Site(tmp_path, bad, good)
    for _ in range(5):
        site.turn()
    assert (len(bad.turns), len(good.turns)) == (2, 5)
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert "Note works again" in caplog.text


def test_what_cannot_be_told_is_no_absence(tmp_path, caplog):
    part = Note()
    site = Site(tmp_path, part)
    site.write(q={"GPU-0": LOST})
    site.turn()
    site.write()
    site.folders["q"].rmdir()
    site.folders["q"].write_text("")
    site.turn()
    assert [dict(moment.unavailable) for moment, _ in part.turns] == [{"GPU-0": LOST}] * 2
    assert "Not a directory" in caplog.text


def test_that_nobody_can_tell_who_holds_a_gpu_is_said_once(tmp_path, caplog):
    site = Site(tmp_path)
    for holdings in ((), None, None, HELD):
        site.held = holdings
        site.turn()
    assert [record.getMessage() for record in caplog.records] == [
        "cannot read who holds a GPU",
        "can read who holds a GPU",
    ]


def test_leases_that_cannot_be_read_are_none(tmp_path):
    assert leased.holdings(str(tmp_path / "leases")) == ()
    (tmp_path / "leases").mkdir()
    assert leased.holdings(str(tmp_path / "leases")) == ()
    (tmp_path / "leases/leases.json").write_text("{")
    assert leased.holdings(str(tmp_path / "leases")) is None


def test_a_lease_is_told_with_whose_it_is(rig):
    rig.hold(**{"task-1": ["GPU-0"], "gpu-selftest-a": ["GPU-1", "MIG-2"]})
    task, ours = leased.holdings(str(rig.store)) or ()
    assert (task.container, task.devices, task.in_use, task.ours) == (
        *("task-1", ("GPU-0",)),
        *(True, False),
    )
    assert (ours.devices, ours.ours) == (("GPU-1", "MIG-2"), True)
    assert not task.handing_over
    with Store(str(rig.store)) as table:
        table.holders["task-1"].handing = Host().me(), Host.now()
    assert [one.handing_over for one in leased.holdings(str(rig.store)) or ()] == [True, False]


def test_a_change_of_the_leases_is_told_also_of_a_store_that_comes_later(tmp_path):
    store = tmp_path / "leases"
    with leased.Changes(str(store)) as changes:
        assert not is_told(changes)
        store.mkdir()
        assert is_told(changes)
        changes.settle()
        assert not is_told(changes)
        (store / "leases.json").write_text("{}")
        assert is_told(changes)
        changes.settle()
        assert not is_told(changes)


def is_told(changes):
    return bool(select.select([changes.descriptor], [], [], 0)[0])
