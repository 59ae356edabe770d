# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A machine with two GPUs and a driver, for tests of its upgrade: what it is asked, it does."""

import dataclasses
import datetime

from actions import driver_upgrade as action
from actions.driver_upgrade import Request
from gpu_agent import paths
from gpu_agent import paths as wrapper
from gpu_agent.availability import quarantine
from gpu_agent.model.host import Driver
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
from gpu_selftest import results, run, service, settings
from gpu_selftest.check import Check, Level, Outcome
from host.nvidia_driver_change import Choice
from lifecycle import drain
from lifecycle.driver_upgrade import gpu_pool as pool
from lifecycle.driver_upgrade.steps import Upgrade
from machine.packages import PackageError
from tests.unit.situations import GPUS, RUNTIME, Rooms

OLD = Choice("580-server", "580.65.06", {"nvidia-utils-580-server": "580.65.06-0ubuntu1"})
NEW = Choice("580-server", "580.95.05", {"nvidia-utils-580-server": "580.95.05-0ubuntu1"})
OTHER = Choice("595-server", "595.71.05", {"nvidia-utils-595-server": "595.71.05-0ubuntu1"})
KEPT = settings.Settings("worker/0", gpus=GPUS, runc="/bin/true")
CHECK = Check("grant", Level.ISOLATION, "each task has its GPU", each_gpu=True)
REQUEST = Request("worker/0")
REASON = "driver upgrade: from 580.65.06 of 580-server to 580.95.05 of 580-server"


class Killed(BaseException):
    """Nothing after it is done."""


class World:
    """A machine with two GPUs and a driver; what it is asked for is noted and done at once.

    It has the calls of lifecycle.driver_upgrade.machine.

    Attributes:
        kept: the self-test's settings; None: tasks get no GPU.
        gone: the package that the archives no longer have.
        others: the self-test that runs and that the charm did not start.
        joins: the same, of one that begins when the modules are loaded.
        hangs_with: the version of the driver with which a self-test ends without a verdict.
        fails: by version of the driver: what its self-test comes to for each GPU.
        dies_in: the name of the step in which this process is killed.
        set_back: by how much the machine's clock was set back.
    """

    def __init__(self):
        self.found = Driver(kernel="6.8.0-60-generic", ours=True)
        self.installed, self.loaded = OLD, OLD.version
        self.offered = {"580-server": NEW, "595-server": OTHER}
        self.used_by, self.holds, self.dies_in = (), False, ""
        self.kept, self.gone, self.hangs_with = KEPT, "", ""
        self.others = self.joins = ""
        self.install_errors, self.load_errors, self.fails = {}, {}, {}
        self.last, self.steps, self.outs, self.said = None, [], [], []
        self.prevented = Outcome.PASSED
        self.set_back = datetime.timedelta()

    def do(self, name):
        if self.dies_in == name:
            self.dies_in = ""
            raise Killed
        self.steps.append(name)
        self.outs.append(sorted(pool.out()))

    def look(self):
        version = self.installed.version
        return dataclasses.replace(
            self.found, branch=self.installed.branch, version=version, loaded=self.loaded
        )

    def present(self, _):
        return self.installed

    def users(self):
        return self.used_by

    def lost(self, _):
        return self.gone

    def preview(self, choice):
        return f"changes: {[*choice.packages]}"

    def newest(self, branch, _):
        if branch not in self.offered:
            raise PackageError(f"{branch} is none of 580-server, 595-server")
        return self.offered[branch]

    def install(self, choice, other, _):
        assert choice != other
        self.do("install")
        if error := self.install_errors.get(choice.version):
            raise error
        self.installed = choice
        return True

    def reload(self, _):
        self.do("reload")
        if self.holds:
            return False
        if error := self.load_errors.get(self.installed.version):
            self.loaded = ""
            raise error
        self.loaded, self.others = self.installed.version, self.joins
        return True

    def start(self, level):
        assert level is Level.ISOLATION
        self.do("start")
        return results.new_run()

    def follow(self, name, seconds, progress):
        self.do("follow")
        if self.loaded == self.hangs_with:
            raise service.SelftestError("The self-test ended without a verdict: out of time")
        progress("Checking the machine and its GPUs")
        self.test(name)
        return self.last

    def settings(self):
        return self.kept

    def report(self):
        return self.last

    def running(self):
        return None

    def wait_for_others(self, _):
        return self.others

    def test(self, name="", *, level=Level.ISOLATION):
        """What a self-test of the driver that is loaded does, whoever started it."""
        outcomes = {gpu.uuid: self.prevented for gpu in self.kept.gpus}
        outcomes |= self.fails.get(self.loaded, {})
        found = tuple(
            CHECK.result(outcome, f"{outcome.value} with {self.loaded}", gpu=uuid)
            for uuid, outcome in outcomes.items()
        )
        now = datetime.datetime.now(datetime.timezone.utc) - self.set_back
        self.last = results.Report(
            name or results.new_run(),
            "abc",
            level,
            "cuda",
            "",
            results.outcome(found),
            now.isoformat(timespec="seconds"),
            4.2,
            found,
        )
        run._take_out(self.kept, "cuda", found)
        run._bring_back(self.kept, self.last)

    def quarantined(self):
        return {entry.uuid: entry.check for entry in quarantine.read()}


def make(tmp_path, monkeypatch):
    """A World whose leases, records and quarantines are in a folder."""
    world = World()
    world.rooms = Rooms(machine_folder=tmp_path)
    world.drainer = drain.Drainer(world.rooms.concourse.worker, world.rooms.records)
    for name in ("POLICY", "STORE", "EXTERNAL", "LOG"):
        monkeypatch.setattr(wrapper, name, tmp_path / name.lower())
    wrapper.POLICY.write_text(install.policy_text(GpuPlan(GPUS, RUNTIME)))
    monkeypatch.setattr(paths, "QUARANTINE", tmp_path / "quarantine")
    monkeypatch.setattr(paths, "STATE", tmp_path / "state")
    monkeypatch.setattr(pool, "_POLL", 0)
    return world


def upgrade(world, **wish):
    request = dataclasses.replace(REQUEST, **wish)
    return action.upgrade(request, world.drainer, world.said.append, world)


def settle(world):
    return Upgrade(world.drainer, world).settle(world.said.append)


def is_done(world, choice):
    """Whether a driver is there, all GPUs are in use, and nothing more is to be done."""
    return (world.installed, world.loaded) == (choice, choice.version) and not (
        world.quarantined() or settle(world)
    )
