# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The self-tests that the charm has run, without systemd, which tests/functional proves."""

import dataclasses
import datetime

from gpu_agent import paths
from gpu_agent.availability import retests
from gpu_agent.reporting.notifier import device_watch_unit as devices
from gpu_agent.reporting.notifier import wake_unit as once
from gpu_agent.runtime import install
from gpu_selftest import last_pass, results, service, settings
from gpu_selftest.check import Check, Level, Outcome
from gpu_selftest.compute import environment
from parts import selftest as automatic
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


class Charm:
    """A worker whose self-tests end as the test says, and what was asked of it."""

    def __init__(self):
        self.calls = []
        self.watches = []
        self.wakes = set()
        self.last = None
        self.proven = ""
        self.running = self.broken_off = None
        self.others = ""
        self.found = changed(situation(gpu(0), gpu(1)), tsa=TSA, agent=AGENT)

    def ensure(self, *, repaired=False, **values):
        self.calls.clear()
        found = dataclasses.replace(self.found, **values)
        found = dataclasses.replace(found, repaired=repaired)
        self.machine = found.machine
        after = automatic.ensure(found, make_plan(found), self.say)
        return after, list(self.calls)

    def say(self, line):
        self.calls.append(line)

    def start(self, level, gpu=""):
        self.calls.append(f"start {level.value}" + (f" of {gpu}" if gpu else ""))
        return "new"

    def follow(self, name, seconds, progress):
        assert 60 < seconds < 300
        progress(f"following {name}")
        return "a report"

    def wait_for_others(self, seconds):
        assert seconds <= 60
        return self.others

    def report(
        self, outcome="passed", level=Level.ISOLATION, *, age=0, subject=None, gpu="", made=None
    ):
        kept = settings.read()
        now = last_pass.subject(kept, self.found.inventory, self.machine)
        checks = {"failed": Outcome.FAILED, "incomplete": Outcome.NOT_RUN}
        self.last = results.Report(
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
        if outcome == "passed" and level is Level.ISOLATION and not gpu:
            self.proven = self.last.subject


def worker(tmp_path, monkeypatch):
    """One with two GPUs that has never been tested."""
    charm = Charm()
    monkeypatch.setattr(settings, "PATH", tmp_path / "selftest.json")
    monkeypatch.setattr(paths, "QUARANTINE", tmp_path / "quarantine")
    monkeypatch.setattr(retests, "PATH", tmp_path / "retests")
    monkeypatch.setattr(install, "installed", lambda _: {"/opt/gpu-ci/bin/runc": "sha256:1"})
    monkeypatch.setattr(
        service, "install", lambda *, on_start, **_: charm.calls.append(f"boot {on_start}")
    )
    monkeypatch.setattr(service, "remove", lambda: charm.calls.append("remove"))
    monkeypatch.setattr(devices, "install", lambda *seen: charm.watches.append(seen))
    # It runs from what the self-test then takes away.
    monkeypatch.setattr(devices, "remove", lambda: charm.calls.append("watch no more"))
    monkeypatch.setattr(once, "install", charm.wakes.add)
    monkeypatch.setattr(once, "remove", lambda: charm.calls.append("wake no more"))
    monkeypatch.setattr(service, "running", lambda: charm.running)
    monkeypatch.setattr(service, "broken_off", lambda: charm.broken_off)
    monkeypatch.setattr(service, "wait_for_others", charm.wait_for_others)
    monkeypatch.setattr(last_pass, "TESTED", tmp_path / "run" / "selftest.done")
    monkeypatch.setattr(environment, "ROOT", tmp_path / "selftest")
    last_pass.note_verdict()
    monkeypatch.setattr(service, "start", charm.start)
    monkeypatch.setattr(service, "follow", charm.follow)
    monkeypatch.setattr(results, "read", lambda: charm.last)
    monkeypatch.setattr(last_pass, "kept", lambda: charm.proven)
    charm.ensure(options=charm.found.options)
    return charm
