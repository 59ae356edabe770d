# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Self-tests that the watch asks for: of one idle GPU at a time, never for ever, never all day."""

import dataclasses
import datetime
import itertools
import pathlib

import pytest

from gpu_agent import paths
from gpu_agent.availability import quarantine, retests
from gpu_agent.model.inventory import MigDevice
from gpu_agent.model.leases import Lease
from gpu_selftest import results, run, service, settings
from gpu_selftest import retests as asked
from gpu_selftest.check import Check, Level, Outcome
from gpu_selftest.last_pass import Records
from tests.unit.situations import gpu

QUICK = Check("xid", Level.QUICK, "no Xid", remedy="reboot", each_gpu=True)
ROOM = Check("disk", Level.QUICK, "there is room", remedy="make room", condemns=False)
NOON = datetime.datetime(2026, 11, 23, 12, tzinfo=datetime.timezone.utc)


class Site:
    """Two GPUs, a clock, and self-tests that end as `outcomes` says.

    It stands for gpu_selftest.service too.
    """

    def __init__(self, folder):
        self.settings = folder / "selftest.json"
        self.records = Records(folder / "selftest", folder / "run" / "selftest.done")
        self.now = NOON
        self.started = []
        self.held = {}
        self.foreign = {}
        self.test = None
        self.others = ""
        self.outcomes = {}
        self.error = None
        self.keep(gpu(0), gpu(1))

    def keep(self, *gpus):
        """Let these be the GPUs in the settings."""
        self.kept = settings.Settings("worker/0", gpus=gpus)
        settings.write(self.kept, self.settings)

    def running(self):
        return self.test

    def wait_for_others(self, seconds):
        assert seconds == 0
        return self.others

    def seconds(self):
        return self.now.timestamp()

    def start(self, level, gpu=""):
        name = f"{self.now:%Y%m%dT%H%M%SZ}-{len(self.started):04x}"
        self.started.append((level.value, gpu))
        self.test = service.Running(name, level, self.now)
        return name

    def follow(self, name, seconds, _progress):
        assert 0 < seconds <= 120
        if self.error:
            self.test = None
            raise self.error
        self.now += datetime.timedelta(seconds=30)
        return self.end()

    def end(self):
        """The test that runs ends, as of its GPU was said."""
        level, uuid = self.started[-1]
        check, outcome = self.outcomes.get(uuid, (QUICK, Outcome.PASSED))
        name, self.test = self.test.run, None
        return self.report(name, level, uuid, (check.result(outcome, "text", gpu=uuid),))

    def report(self, name, level, uuid, made):
        started = results.started(name).isoformat(timespec="seconds")
        outcome = results.outcome(made)
        report = results.Report(
            name, "subject", Level(level), "cuda", uuid, outcome, started, 1.0, made
        )
        run.conclude(self.kept, report, self.records)
        return report

    def hook(self, after=0):
        """A hook, so many seconds after what came before. Returns the tests that it started."""
        self.now += datetime.timedelta(seconds=after)
        before = len(self.started)
        retests = asked.Retests(
            service=self,
            settings=self.settings,
            records=self.records,
            holders=lambda: self.held,
            external=lambda: self.foreign,
        )
        retests.ensure(lambda _: None)
        return self.started[before:]


@pytest.fixture
def site(tmp_path, monkeypatch):
    site = Site(tmp_path)

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return site.now

    for module in (asked, retests, quarantine):
        monkeypatch.setattr(module.datetime, "datetime", Clock)
    monkeypatch.setattr(asked.time, "monotonic", site.seconds)
    monkeypatch.setattr(retests, "PATH", tmp_path / "retests")
    monkeypatch.setattr(paths, "QUARANTINE", tmp_path / "quarantine")
    return site


def out(uuid="GPU-0", level="quick"):
    quarantine.put(uuid, "Xid 79: it has fallen off the bus", "xid", level, "reboot")
    retests.ask(uuid, level, "Xid 79")


def quarantined():
    return [entry.uuid for entry in quarantine.read()]


def test_where_nothing_is_asked_nothing_is_tested(site):
    out()
    retests.forget("GPU-0")
    assert site.hook() == []


def test_what_passes_is_back_and_is_tested_no_more(site):
    out()
    assert site.hook() == [("quick", "GPU-0")]
    assert quarantined() == []
    assert retests.read() == ()
    assert site.hook(24 * 3600) == []


def test_what_fails_stays_out_for_its_new_reason_and_is_tested_no_more(site):
    out()
    site.outcomes["GPU-0"] = (QUICK, Outcome.FAILED)
    assert site.hook() == [("quick", "GPU-0")]
    (entry,) = quarantine.read()
    assert (entry.uuid, entry.reason, entry.remedy) == ("GPU-0", "text", "reboot")
    assert [site.hook(3600) for _ in range(30)] == [[]] * 30


def test_several_are_tested_one_after_the_other_in_one_hook(site):
    out("GPU-0")
    out("GPU-1")
    assert site.hook() == [("quick", "GPU-0"), ("quick", "GPU-1")]
    assert quarantined() == []


def test_a_hook_is_held_no_longer_than_two_minutes(site):
    site.keep(*map(gpu, range(8)))
    for index in range(8):
        out(f"GPU-{index}")
    began = site.now
    assert len(site.hook()) == 4
    assert (site.now - began).total_seconds() <= 150
    assert len(site.hook()) == 4


@pytest.mark.parametrize("device", ["GPU-0", "MIG-0"])
def test_one_in_use_is_left_to_a_later_hook(site, device):
    mig = dataclasses.replace(gpu(0), mig_enabled=True, mig=(MigDevice("MIG-0", "1g.10gb"),))
    site.keep(mig, gpu(1))
    out()
    site.held = {"container": Lease((device,), occupied=True)}
    assert site.hook() == []
    site.held = {"container": Lease((device,), occupied=False)}
    assert site.hook() == [("quick", "GPU-0")]


def test_one_in_use_does_not_keep_the_other_from_its_test(site):
    out("GPU-0")
    out("GPU-1")
    site.held = {"container": Lease(("GPU-0",), occupied=True)}
    assert site.hook() == [("quick", "GPU-1")]


def test_where_it_cannot_be_told_who_has_what_nothing_is_tested(site):
    out()
    site.held = None
    assert site.hook() == []
    site.held = {}
    site.settings.unlink()
    assert site.hook() == []


def test_one_that_others_use_or_that_is_not_here_waits(site):
    out()
    out("GPU-7")
    site.foreign = {"GPU-0": "in use outside CI: pid 4711"}
    assert site.hook() == []
    site.foreign = {}
    assert site.hook() == [("quick", "GPU-0")]


def test_beside_another_self_test_none_is_started(site):
    out()
    site.others = "pid 4711, level burn-in"
    assert site.hook() == []
    site.others = ""
    site.test = service.Running("20261123T110000Z-0000", Level.BURN_IN, site.now)
    assert site.hook() == []


@pytest.mark.parametrize("level", ["compute", "burn-in"])
def test_what_takes_long_is_started_and_looked_at_by_a_later_hook(site, level):
    out("GPU-0", level)
    out("GPU-1")
    assert site.hook() == [(level, "GPU-0")]
    assert site.hook(300) == []
    assert quarantined() == ["GPU-0", "GPU-1"]
    site.end()
    assert site.hook(300) == [("quick", "GPU-1")]
    assert quarantined() == []
    assert retests.read() == ()


def test_what_a_lower_level_shows_brings_none_back_that_needs_more(site):
    """A job provoked Xid 13 on one that has failed of its memory."""
    quarantine.put("GPU-0", "ECC: 3 uncorrected errors", "ecc", "compute", "replace it")
    retests.ask("GPU-0", "quick", "Xid 13 twice")
    assert site.hook() == [("quick", "GPU-0")]
    assert quarantined() == ["GPU-0"]


def test_what_could_not_be_made_is_tried_again_after_growing_pauses_and_given_up(site):
    out()
    site.outcomes["GPU-0"] = (QUICK, Outcome.NOT_RUN)
    began, tried = site.now, []
    for _ in range(3 * 24 * 12):
        tried += [round((site.now - began).total_seconds() / 60)] * len(site.hook(300))
    assert len(tried) == 5
    pauses = [after - before for before, after in itertools.pairwise(tried)]
    assert pauses[0] >= 9
    assert pauses[1] >= 59
    assert min(pauses[2:]) >= 359
    assert retests.read() == ()
    assert quarantined() == ["GPU-0"]


def test_a_full_disk_is_no_verdict_on_a_gpu(site):
    out()
    site.outcomes["GPU-0"] = (ROOM, Outcome.NOT_RUN)
    site.hook()
    assert [ask.uuid for ask in retests.read()] == ["GPU-0"]


def test_a_job_that_provokes_xid_13_gets_no_gpu_tested_all_day(site):
    """The attack: two jobs by turns, so that the watch asks at every hook."""
    tests = []
    for _ in range(24 * 12):
        retests.ask("GPU-0", "quick", "Xid 13 twice in 24 h, from different jobs")
        tests += site.hook(300)
    assert 2 <= len(tests) <= 6
    # Another GPU's test waits for nothing of this.
    out("GPU-1")
    assert site.hook() == [("quick", "GPU-1")]


def test_a_test_by_hand_since_then_is_an_answer(site):
    out()
    site.now += datetime.timedelta(seconds=60)
    name = f"{site.now:%Y%m%dT%H%M%SZ}-ffff"
    site.report(name, "isolation", "", (QUICK.result(Outcome.PASSED, "well", gpu="GPU-0"),))
    assert site.hook() == []
    assert retests.read() == ()


def test_a_test_before_then_or_of_another_gpu_is_none(site):
    early = f"{site.now:%Y%m%dT%H%M%SZ}-ffff"
    site.now += datetime.timedelta(seconds=60)
    out()
    site.report(early, "isolation", "", (QUICK.result(Outcome.PASSED, "well", gpu="GPU-0"),))
    quarantine.put("GPU-0", "Xid 79", "xid", "quick", "reboot")
    site.held = {"container": Lease(("GPU-0",), occupied=True)}
    site.hook()
    assert [ask.uuid for ask in retests.read()] == ["GPU-0"]
    late = f"{site.now:%Y%m%dT%H%M%SZ}-eeee"
    site.report(late, "quick", "GPU-1", (QUICK.result(Outcome.PASSED, "well", gpu="GPU-1"),))
    site.hook()
    assert [ask.uuid for ask in retests.read()] == ["GPU-0"]


def test_more_that_is_asked_for_during_a_test_is_not_lost(site):
    out("GPU-0", "compute")
    site.hook()
    retests.ask("GPU-0", "burn-in", "hot for ten minutes")
    site.end()
    assert site.hook(60) == []
    assert [ask.level for ask in retests.read()] == ["burn-in"]
    assert site.hook(600) == [("burn-in", "GPU-0")]


def test_one_that_ends_without_a_verdict_is_no_failure_of_the_hook(site, caplog):
    out()
    site.error = service.SelftestError("it was killed")
    assert site.hook() == [("quick", "GPU-0")]
    assert "it was killed" in caplog.text
    site.error = None
    assert site.hook() == []
    assert site.hook(600) == [("quick", "GPU-0")]
    assert quarantined() == []


def test_a_clock_that_was_set_back_stops_no_test(site):
    retests.tried("GPU-0", "20270101T000000Z-0000")
    out()
    assert site.hook() == [("quick", "GPU-0")]


def test_what_only_the_operator_brings_back_stays_out_whatever_passes(site):
    out()
    path = pathlib.Path(paths.QUARANTINE, "GPU-0.json")
    path.write_text(path.read_text().replace('"level": "quick"', '"level": ""'))
    site.hook()
    assert quarantined() == ["GPU-0"]
