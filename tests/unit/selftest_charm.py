# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The self-tests that the charm has run, without systemd, which tests/functional proves."""

import dataclasses
import datetime

from gpu_agent import paths
from gpu_agent.availability import retests
from gpu_selftest import last_pass, results, settings
from gpu_selftest.check import Check, Level, Outcome
from gpu_selftest.last_pass import Records
from host.nvidia_toolkit import NvidiaToolkit
from parts.selftest import SelfTest
from plan.agent_view import AgentView
from tests.unit.situations import TSA, changed, gpu, make_plan, situation

CHECK = Check("xid", Level.QUICK, "no Xid", remedy="reboot", each_gpu=True)
AGENT = AgentView(
    runc="/bin/true",
    runc_remedy="unpack the release",
    service="ci-worker.service",
    checks=("-m", "ci_checks"),
    disks=("/srv/ci",),
)
# What the charm does where a test is due.
RUNS = ["boot True", "start isolation", "Self-test: following new"]


def present():
    return datetime.datetime.now(datetime.timezone.utc)


class NodeWatch:
    """The unit that watches device nodes: what it was told of them."""

    def __init__(self, calls):
        self.calls = calls
        self.seen = []

    def install(self, *seen):
        self.seen.append(seen)

    def remove(self):
        # It runs from what the self-test then takes away.
        self.calls.append("watch no more")


class Wake:
    """The unit that wakes the charm: whom it wakes."""

    def __init__(self, calls):
        self.calls = calls
        self.units = set()

    def install(self, unit):
        self.units.add(unit)

    def remove(self):
        self.calls.append("wake no more")


class Service:
    """Self-tests that end as `ends` says.

    Attributes:
        ends: called in place of each test; returns its report, or None while it runs.
        new: id of the test that was started last.
        now: the test that runs.
        killed: the test that was killed.
        others: the test by hand or at boot that runs.
    """

    def __init__(self, calls):
        self.calls = calls
        self.ends = lambda: "a report"
        self.now = self.killed = None
        self.others = self.new = ""

    def install(self, *, on_start, before, needs):
        self.calls.append(f"boot {on_start}")

    def remove(self):
        self.calls.append("remove")

    def start(self, level, gpu=""):
        self.calls.append(f"start {level.value}" + (f" of {gpu}" if gpu else ""))
        self.new = results.new_run()
        return self.new

    def follow(self, name, seconds, progress):
        assert 60 < seconds < 300
        progress(f"following {'new' if name == self.new else name}")
        return self.ends()

    def running(self):
        return self.now

    def broken_off(self):
        return self.killed

    def wait_for_others(self, seconds):
        assert seconds <= 60
        return self.others


class Charm:
    """A worker whose self-tests end as the test says, and what was asked of it."""

    def __init__(self, folder):
        self.calls = []
        self.service = Service(self.calls)
        self.watch, self.wake = NodeWatch(self.calls), Wake(self.calls)
        self.files = {"/opt/gpu-ci/bin/runc": "sha256:1"}
        self.records = Records(folder / "selftest", folder / "run" / "selftest.done")
        self.toolkit = NvidiaToolkit()
        self.settings = folder / "selftest.json"
        self.found = changed(situation(gpu(0), gpu(1)), tsa=TSA, agent=AGENT)

    def ensure(self, *, repaired=False, **values):
        self.calls.clear()
        found = dataclasses.replace(self.found, **values)
        found = dataclasses.replace(found, repaired=repaired)
        self.machine = found.machine
        part = SelfTest(
            service=self.service,
            settings=self.settings,
            records=self.records,
            node_watch=self.watch,
            wake=self.wake,
            toolkit=self.toolkit,
            installed=lambda _: dict(self.files),
            apply=lambda _: self.say("wrapper"),
        )
        after = part.ensure(found, make_plan(found), self.say)
        return after, list(self.calls)

    def kept(self):
        """The settings of the self-test."""
        return settings.read(self.settings)

    def say(self, line):
        self.calls.append(line)

    def report(
        self, outcome="passed", level=Level.ISOLATION, *, age=0, subject=None, gpu="", made=None
    ):
        now = last_pass.subject(self.kept(), self.found.inventory, self.machine)
        checks = {"failed": Outcome.FAILED, "incomplete": Outcome.NOT_RUN}
        report = results.Report(
            run=results.new_run(),
            subject=now if subject is None else subject,
            level=level,
            device="cuda",
            gpu=gpu,
            outcome=outcome,
            started=(present() - datetime.timedelta(seconds=age)).isoformat(timespec="seconds"),
            seconds=1.0,
            results=made
            or (CHECK.result(checks.get(outcome, Outcome.PASSED), "Xid 79", gpu="GPU-0"),),
        )
        self.records.save(report)
        if outcome == "passed" and level is Level.ISOLATION and not gpu:
            self.records.keep(report.subject)
        return report


def worker(tmp_path, monkeypatch):
    """One with two GPUs that has never been tested."""
    charm = Charm(tmp_path)
    monkeypatch.setattr(paths, "QUARANTINE", tmp_path / "quarantine")
    monkeypatch.setattr(retests, "PATH", tmp_path / "retests")
    charm.records.note_verdict()
    charm.ensure(options=charm.found.options)
    return charm
