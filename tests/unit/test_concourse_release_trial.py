# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A new release is judged by web and worker, and left again where they don't run on it."""

import pathlib
import time

import pytest

from ci.concourse import release
from ci.concourse.release import Release
from ci.concourse.upgrade import trial
from ci.concourse.upgrade import upgrade as release_change
from ci.concourse.web import health as web_health
from ci.concourse.web import web
from ci.concourse.worker import worker
from ci.concourse.worker.drainable import Worker
from lifecycle.clock import Clock
from lifecycle.drain import Drainer
from lifecycle.records import Records
from lifecycle.waker import Waker
from machine import polling as waiting
from machine import process
from machine import systemd as services
from plan.messages import Level
from relations.model import Tsa
from tests.unit.situations import TSA, Running, make_plan, status_lines, unit

NEW, OLD = (Release(version, pathlib.Path("/r", version)) for version in ("8.3.0", "8.2.5"))


class Machine:
    """Two releases, web and worker, and a clock that only waiting moves on."""

    def __init__(self):
        self.current, self.proven, self.given_up = NEW, {OLD.path}, []
        self.clock, self.switched = 1000.0, 1000.0
        self.well = {web.SERVICE: True, worker.SERVICE: True}
        self.began = dict.fromkeys(self.well, 1001.0)
        self.restarts = dict.fromkeys(self.well, 0)
        self.states = dict.fromkeys(self.well, "active")
        self.database, self.schema, self.commands = "", {NEW.path: 9, OLD.path: 7}, []
        self.held = 9
        self.stopped = []
        # The releases whose programs fail, and what these say then.
        self.broken = {}

    def show(self, name, *_):
        began = self.began[name]
        return {
            "MainPID": "77" if began else "0",
            "ActiveState": self.states[name],
            "NRestarts": str(self.restarts[name]),
            "ExecMainStartTimestampMonotonic": str(int(began * 1e6)),
        }

    def run(self, argv, **more):
        assert argv[:4] == ["/usr/sbin/runuser", "--user", "concourse", "--"]
        assert "secret" not in str(argv)
        assert more["env"] == {"CONCOURSE_POSTGRES_PASSWORD": "secret"}
        path, what = pathlib.Path(argv[4]).parents[1], argv[-1]
        if path in self.broken:
            raise process.CommandError(argv, 1, self.broken[path])
        self.commands.append((path.name, what))
        if what.startswith("--migrate-db-to-version="):
            self.held = int(what.partition("=")[2])
        said = self.schema[path] if what == "--supported-db-version" else self.held
        return process.Completed(0, f"{said}\n", "")

    def ensure(self, *_, **__):
        failed = [why for path, _, why in self.given_up if path == NEW.path]
        if failed:
            self.current = OLD
            return Release(OLD.version, OLD.path, failed=failed[0])
        return NEW

    def until(self, condition, seconds):
        end = self.clock + seconds
        while not condition() and self.clock < end:
            self.clock += 1
        return condition()


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    for module, name, answer in (
        (release, "installed", lambda: machine.current),
        (release, "before", lambda: OLD if OLD.path in machine.proven else None),
        (release, "is_proven", lambda path: path in machine.proven),
        (release, "prove", machine.proven.add),
        (release, "is_older_than_switch", lambda started: started < machine.switched),
        (release, "ensure", machine.ensure),
        (release, "give_up", lambda *given: machine.given_up.append(given)),
        (services, "show", machine.show),
        (services, "ensure_stopped", machine.stopped.append),
        (waiting, "until", machine.until),
        (time, "monotonic", lambda: machine.clock),
        (time, "sleep", lambda seconds: machine.until(lambda: False, seconds)),
        (web, "is_set_up", lambda: True),
        (worker, "name", lambda: "ci-worker-0"),
        (web_health, "healthy", lambda: machine.well[web.SERVICE]),
        (worker, "healthy", lambda: machine.well[worker.SERVICE]),
        (web_health, "unreachable_database", lambda: machine.database),
        (web, "database_settings", lambda: {"CONCOURSE_POSTGRES_PASSWORD": "secret"}),
        (process, "run", machine.run),
    ):
        monkeypatch.setattr(module, name, answer)
    return machine


def judge(mode="all", progress=lambda _: None, **given):
    tsa = TSA if mode == "worker" else Tsa()
    return trial.judge(make_plan(unit(mode, tsa=tsa, **given)), progress)


def test_release_on_which_all_answer_has_proven_itself(machine):
    assert judge() == ""
    assert NEW.path in machine.proven
    machine.well[web.SERVICE] = False
    assert judge() == "", "later faults are no fault of the release"


@pytest.mark.parametrize(
    ("service", "words"),
    [
        (web.SERVICE, "its web does not run or gives no answer"),
        (worker.SERVICE, "its worker does not run or gives no answer"),
    ],
)
@pytest.mark.parametrize("how", ["no answer", "ends again and again", "gone", "answered once"])
def test_one_that_does_not_run_on_it_is_told(machine, service, words, how):
    machine.well[service] = False
    if how == "ends again and again":
        machine.restarts[service] = 3
    elif how == "gone":
        machine.began[service] = 0
        machine.states[service] = "failed"
    elif how == "answered once":
        machine.well[service] = True
        machine.restarts[service] = 0
        sleep = time.sleep

        def die(seconds):
            machine.restarts[service] = 3
            sleep(seconds)

        time.sleep = die
    assert judge() == words
    assert NEW.path not in machine.proven


def test_web_that_changes_its_tables_has_minutes(machine):
    began, said = machine.clock, []
    web_health.healthy = lambda: machine.clock - began > 200
    assert judge("web", said.append) == ""
    assert NEW.path in machine.proven
    # Nobody who looks meanwhile is to think that it hangs.
    assert said[0] == "Waiting for concourse-web on the new release: it has 300 s left"
    assert said[-1].endswith("it has 105 s left")
    assert len(said) == 14


def test_what_was_not_started_on_it_yet_is_not_judged(machine):
    machine.began[worker.SERVICE] = 900.0  # it drains
    machine.well[worker.SERVICE] = False
    assert judge() == ""
    assert NEW.path not in machine.proven
    trial.note_if_well()
    assert NEW.path not in machine.proven
    machine.states[worker.SERVICE] = "inactive"
    assert judge() == ""


def test_web_without_its_database_says_nothing_of_the_release(machine):
    machine.well[web.SERVICE] = False
    machine.database = "10.0.0.9:5432 (Connection refused)"
    assert judge("web") == ""
    assert NEW.path not in machine.proven


def test_first_release_is_waited_for_no_longer_than_others(machine):
    machine.proven.clear()
    machine.well[worker.SERVICE] = False
    before = machine.clock
    assert judge("worker") == ""
    assert machine.clock == before


def test_release_of_an_earlier_charm_is_known_by_what_runs_on_it(machine):
    trial.note_if_well()
    assert NEW.path in machine.proven


def settled(state):
    """What status would say, after all that was finished on which release."""
    finished = []
    drainer = Drainer(Worker(), Records.within(NEW.path, Clock(), Waker()))
    releases, plan = release_change.Releases(), make_plan(state)
    after = release_change.roll_back_if_failed(state, drainer, releases, plan, lambda _: None)
    if after is not state:
        finished.append(after.ci.installed)
    state = after
    running = Running(web=True, worker=True, connected=True)
    lines = status_lines(state, make_plan(state), running)
    return finished, [(line.level, line.text) for line in lines]


def test_failed_upgrade_ends_on_the_release_before_with_its_database(machine):
    machine.well[web.SERVICE] = False
    finished, lines = settled(unit("web", installed="8.3.0"))
    assert finished == ["8.2.5"]
    assert machine.stopped == [web.SERVICE]
    assert machine.held == 7
    assert machine.commands[-1] == ("8.3.0", "--migrate-db-to-version=7")
    ((kind, text),) = lines
    assert kind is Level.BLOCKED
    assert text.startswith("Upgrade to Concourse 8.3.0 failed (its web does not run or gives no")
    assert "juju config ci-gpu concourse-version=8.2.5" in text


def test_release_that_runs_no_command_at_all_has_changed_no_tables(machine):
    machine.held, machine.well[web.SERVICE] = 7, False
    machine.broken = {NEW.path: "exec format error"}
    finished, ((_, text),) = settled(unit("web", installed="8.3.0"))
    assert finished == ["8.2.5"]
    assert "not taken back" not in text


def test_database_that_other_webs_use_is_left_as_it_is(machine):
    machine.well[web.SERVICE] = False
    finished, _ = settled(unit("web", installed="8.3.0", planned_units=2))
    assert finished == ["8.2.5"]
    assert machine.commands == []


def test_database_that_can_not_be_taken_back_is_told(machine):
    machine.broken = dict.fromkeys((NEW.path, OLD.path), "connection refused")
    machine.well[web.SERVICE] = False
    finished, ((_, text),) = settled(unit("web", installed="8.3.0"))
    assert finished == ["8.2.5"]
    assert "Its database was not taken back: " in text
    assert "connection refused" in text


def test_release_that_web_has_no_use_for_is_no_way_back(machine):
    machine.well[worker.SERVICE] = False
    finished, _ = settled(unit(installed="8.3.0"))  # its web runs 8.3.0
    assert finished == []
    assert machine.given_up == []


def test_release_that_is_well_changes_nothing(machine):
    finished, lines = settled(unit("web", installed="8.3.0"))
    assert finished == machine.given_up == machine.stopped == []
    assert lines == [(Level.ACTIVE, "Web ready")]
