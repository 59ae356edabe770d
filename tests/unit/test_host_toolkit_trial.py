# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""When another version of the container toolkit is kept, and when the one before comes back."""

import dataclasses
import json

import pytest

from gpu_agent import paths
from gpu_agent.availability import quarantine
from gpu_agent.diagnosis import machine as facts
from gpu_agent.model import errors
from gpu_agent.model.host import Machine, Packaged, Toolkit
from gpu_selftest import results
from gpu_selftest.check import Level, Outcome, Result
from host import toolkit_trial as trial
from machine import packages
from tests.unit.situations import gpu, make_plan, situation

BEFORE, TRIED = "1.19.1-1", "1.20.0-1"
FIRST, SECOND = gpu(0).uuid, gpu(1).uuid
BACK = Packaged(BEFORE, ours=True, bad=(TRIED,))
CONTAINER, CARD = Level.ISOLATION, Level.QUICK


class Toolkits:
    """The toolkit's packages: what was done to them."""

    def __init__(self):
        self.done, self.refused = [], None

    def keep(self):
        self.done.append("kept")
        return True

    def roll_back(self, planned, to, _):
        self.done.append((planned.version, to))
        if self.refused:
            raise self.refused
        return True

    def look(self):
        return BACK


class Site:
    """A worker on whose toolkit the self-test has said something, and what was done then."""

    def __init__(self, folder):
        self.folder, self.toolkits, self.said = folder, Toolkits(), []
        self.packaged = Packaged(TRIED, ours=True, previous=BEFORE)
        self.toolkit = Toolkit("/runtime", TRIED)
        self.quarantined = ()

    @property
    def done(self):
        return self.toolkits.done

    def tell(self, *found, subject="this", level=Level.ISOLATION):
        """What the last report says: a level, a GPU and what came of it, again and again."""
        shown = tuple(
            Result("check", level, "it works", outcome, uuid) for level, uuid, outcome in found
        )
        report = results.Report(
            run="20261121T170000Z-1a2b", subject=subject, level=level, device="cuda", gpu="",
            outcome=results.outcome(shown), started="2026-11-21T17:00:00+00:00", seconds=1.0,
            results=shown,
        )  # fmt: skip
        results.save(report, self.folder)

    def end(self):
        """What the trial comes to: the state after it, and whether that is another."""
        found = situation(gpu(0), gpu(1), toolkit=self.toolkit)
        found = dataclasses.replace(found, packaged=self.packaged, quarantined=self.quarantined)
        after = trial.end(
            found, make_plan(found), "this", self.said.append, self.toolkits, self.folder
        )
        return after, after is not found


@pytest.fixture
def site(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "QUARANTINE", tmp_path / "quarantine")
    here = Machine("amd64", Toolkit("/runtime", BEFORE))
    monkeypatch.setattr(facts, "machine", lambda: here)
    return Site(tmp_path / "selftest")


def test_a_toolkit_that_containers_work_with_is_kept(site):
    site.tell((CARD, FIRST, Outcome.PASSED), (CONTAINER, FIRST, Outcome.PASSED))
    assert not site.end()[1]
    assert site.done == ["kept"]


@pytest.mark.parametrize(
    "found",
    [
        [(CONTAINER, FIRST, Outcome.FAILED)],
        [(CONTAINER, "", Outcome.FAILED)],  # of none in particular
        [(CARD, FIRST, Outcome.FAILED), (CONTAINER, SECOND, Outcome.FAILED)],
        # As where a job has the other.
        [(CONTAINER, FIRST, Outcome.NOT_RUN), (CONTAINER, SECOND, Outcome.FAILED)],
    ],
)
def test_one_that_containers_fail_with_on_a_good_gpu_goes(site, found):
    site.tell(*found)
    after, went = site.end()
    assert (went, site.done) == (True, [(TRIED, BEFORE)])
    assert (after.packaged, after.machine.toolkit.version) == (BACK, BEFORE)
    assert BEFORE in site.said[0]


@pytest.mark.parametrize(
    "found",
    [
        [(CARD, FIRST, Outcome.FAILED), (CONTAINER, FIRST, Outcome.FAILED)],
        [(CARD, FIRST, Outcome.FAILED), (CONTAINER, FIRST, Outcome.NOT_RUN)],
        [(CARD, "", Outcome.FAILED), (CONTAINER, FIRST, Outcome.FAILED)],  # as by a full disk
        [(CARD, FIRST, Outcome.PASSED), (CONTAINER, FIRST, Outcome.NOT_RUN)],
    ],
)
def test_what_tells_nothing_of_the_toolkit_neither_ends_the_trial_nor_keeps_it(site, found):
    site.tell(*found)
    assert not site.end()[1]
    assert site.done == []


def test_the_trial_goes_on_without_a_verdict_on_this_toolkit(site):
    assert not site.end()[1]
    for about in ({"subject": "another"}, {"level": Level.QUICK}):
        site.tell((CONTAINER, FIRST, Outcome.FAILED), **about)
        assert not site.end()[1]
    assert site.done == []


def test_without_a_trial_nothing_goes(site):
    site.tell((CONTAINER, FIRST, Outcome.FAILED))
    site.packaged = Packaged(TRIED, ours=True)
    assert not site.end()[1]
    # The way back could not be had, and that is no fault of where it leads to.
    site.packaged = Packaged(TRIED, ours=True, previous=BEFORE, bad=(TRIED,))
    assert not site.end()[1]
    assert site.done == []


@pytest.mark.parametrize("found", [None, Toolkit("/runtime", "")])
def test_one_that_does_not_even_start_goes_without_a_test(site, found):
    site.toolkit = found
    after, went = site.end()
    assert (went, site.done) == (True, [(TRIED, BEFORE)])
    assert after.machine.toolkit.version == BEFORE


def test_gpus_that_it_failed_on_are_in_use_again_and_no_others(site):
    third, operators = gpu(2).uuid, gpu(3).uuid
    quarantine.put(third, "no container", "lease", "isolation", "compare")
    site.tell((CARD, FIRST, Outcome.FAILED), (CONTAINER, SECOND, Outcome.FAILED))
    path = paths.QUARANTINE / f"{third}.json"
    entry = json.loads(path.read_text())
    path.write_text(json.dumps({**entry, "since": "2026-11-21T16:59:59Z"}))
    quarantine.put(FIRST, "too hot", "throttle", "quick", "fan")
    quarantine.put(SECOND, "no container", "lease", "isolation", "compare")
    quarantine.cordon(operators, "mine")
    # Also where a hook sees them out from its start, since the test has ended before it.
    site.quarantined = quarantine.read()
    assert site.end()[1]
    assert {entry.uuid for entry in quarantine.read()} == {third, FIRST, operators}


def test_one_that_cannot_go_is_told(site):
    site.tell((CONTAINER, FIRST, Outcome.FAILED))
    site.toolkits.refused = packages.PackageError("the archives have no 1.19.1-1")
    with pytest.raises(packages.PackageError, match=r"no 1\.19\.1-1"):
        site.end()


def test_a_machine_that_cannot_be_looked_at_afterwards_is_looked_at_later(site, monkeypatch):
    def starved():
        raise errors.unknown("no time")

    monkeypatch.setattr(facts, "machine", starved)
    site.tell((CONTAINER, FIRST, Outcome.FAILED))
    with pytest.raises(packages.PackageError, match="no time") as caught:
        site.end()
    assert caught.value.passes
