# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm around the watch: when it is had, what it is told, and what status says of it."""

import dataclasses
import pathlib

import pytest

from gpu_agent import install as app
from gpu_agent.availability import retests
from gpu_agent.gpu.vendors import detect
from gpu_agent.health import service as health_service
from gpu_agent.health import settings
from gpu_agent.model.inventory import Inventory, State
from gpu_agent.model.quarantine import Quarantine
from machine import process
from options.part import Part
from parts import health_watch as service
from plan.agent_view import AgentView
from plan.messages import Level
from plan.state import Failure
from tests.unit.situations import (
    GPUS,
    Running,
    gpu_unit,
    make_plan,
    state,
    status_lines,
    tsa,
    unit,
)

RUNNING = Running(web=True, worker=True, connected=True)


class Systemd:
    """What is asked of systemd, and what it says."""

    def __init__(self):
        self.unit, self.revision, self.starts, self.removed = None, None, 0, 0
        self.fault = None

    def ensure_unit(self, name, content):
        changed, self.unit = content != self.unit, content
        return changed

    def started_with(self, name, variable, value):
        return self.revision == value

    def ensure_running(self, name, *, restart):
        if self.fault:
            raise self.fault
        self.starts += 1
        (self.revision,) = [
            line.rpartition("=")[2] for line in self.unit.splitlines() if "GPU_CI_REVISION" in line
        ]
        return True

    def remove_unit(self, name):
        had, self.unit, self.revision = self.unit is not None, None, None
        return had


@pytest.fixture
def systemd(monkeypatch, tmp_path):
    systemd = Systemd()
    for name in ("ensure_unit", "started_with", "ensure_running", "remove_unit"):
        monkeypatch.setattr(health_service.services, name, getattr(systemd, name))
    for module, name, path in (
        *((settings, "PATH", "etc/health.json"), (settings, "STATE", "state")),
        *((settings, "RUN", "run"), (retests, "PATH", "retests")),
        *((detect, "HANGS", "hangs"), (app, "HOME", "app")),
    ):
        monkeypatch.setattr(module, name, tmp_path / path)
    # Where systemd has such folders is relative to its own roots.
    roots = {"run": "gpu-ci/health", "state": "gpu-ci/health", "logs": "gpu-ci"}
    monkeypatch.setattr(health_service, "_folders", lambda: roots)
    refresh(tmp_path / "app", "one")
    return systemd


def refresh(home, version):
    (home / version).mkdir(parents=True)
    (home / version / "stamp").touch()
    (home / "current").unlink(missing_ok=True)
    (home / "current").symlink_to(version)


def ensure(found):
    return service.ensure(found, make_plan(found))


def told():
    return settings.parse(settings.PATH.read_text())


def test_it_is_had_once_and_again_when_what_it_reads_has_changed(systemd, tmp_path):
    assert ensure(gpu_unit())
    assert [card.uuid for card in told().cards] == [one.uuid for one in GPUS]
    assert (told().unit, told().mode, told().driver) == ("ci-gpu/3", "enabled", "580.95.05")
    assert not ensure(gpu_unit())
    # What is out of use is looked after all the same.
    out = (Quarantine(GPUS[0].uuid, "Xid 79", by="watch"),)
    assert not ensure(gpu_unit(quarantined=out))
    assert ensure(gpu_unit({"gpu-health": "observe"}))
    assert told().mode == "observe"
    refresh(tmp_path / "app", "two")
    assert ensure(gpu_unit({"gpu-health": "observe"}))
    assert "/two/src" in systemd.unit
    assert systemd.starts == 3


def test_a_gpu_that_is_lost_is_looked_after_until_the_next_boot(systemd):
    ensure(gpu_unit(machine={"boot": "first"}))
    one = dataclasses.replace(gpu_unit().inventory, gpus=GPUS[1:])
    ensure(gpu_unit(machine={"boot": "first"}, inventory=one))
    assert len(told().cards) == 2
    hung = dataclasses.replace(one, gpus=(), state=State.HUNG, driver="")
    ensure(gpu_unit(machine={"boot": "second"}, inventory=hung))
    assert (len(told().cards), told().driver) == (2, "580.95.05")
    ensure(gpu_unit(machine={"boot": "second"}, inventory=one))
    assert [card.uuid for card in told().cards] == [GPUS[1].uuid]


def test_off_leaves_what_it_took_out_and_what_it_knew(systemd):
    ensure(gpu_unit())
    settings.STATE.mkdir()
    assert ensure(gpu_unit({"gpu-health": "disabled"}))
    assert systemd.unit is None
    assert not settings.PATH.exists()
    assert settings.STATE.exists()
    assert not ensure(gpu_unit({"gpu-health": "disabled"}))


@pytest.mark.parametrize("found", [unit(), gpu_unit(leaving=True), unit("web")])
def test_who_wants_no_gpus_has_nothing_of_it(systemd, found):
    ensure(gpu_unit())
    settings.STATE.mkdir()
    retests.ask("GPU-0", "quick", "why")
    assert ensure(found)
    assert systemd.unit is None
    assert not any(path.exists() for path in (settings.PATH, settings.STATE, settings.RUN))
    assert retests.read() == ()
    assert not ensure(found)


@pytest.mark.parametrize(
    ("recovery", "reboot", "then"),
    [
        ("none", "none", "none"),
        ("none", "driver", "none"),
        ("none", "gpu", "reboot"),
        ("reset", "none", "reset"),
        ("reset", "all", "reset"),
    ],
)
def test_it_is_told_what_may_be_done_for_a_gpu(systemd, recovery, reboot, then):
    ensure(gpu_unit({"gpu-recovery": recovery, "auto-reboot": reboot}))
    assert told().recovery == then


def test_it_is_told_which_program_knows_the_names_of_jobs(systemd):
    program = ("-S", "-m", "ci.names")
    ensure(gpu_unit(agent=AgentView(job_names=program)))
    assert told().job_names == program
    ensure(gpu_unit())
    assert told().job_names == ()


def test_it_is_told_where_the_figures_are_and_which_program_has_a_jobs_log(systemd):
    ensure(gpu_unit(agent=AgentView(figures="/run/ci/figures.json", log_reader="Reader")))
    assert (told().ci_figures, told().log_reader) == ("/run/ci/figures.json", "Reader")
    ensure(gpu_unit())
    assert (told().ci_figures, told().log_reader) == ("", "")


@pytest.mark.parametrize(
    "option", ["gpu-health", "quarantine-limit-percent", "gpu-device-ids", "job-log"]
)
def test_a_value_that_cannot_be_used_leaves_it_as_it_is(systemd, option):
    ensure(gpu_unit())
    before = settings.PATH.read_text()
    assert not ensure(gpu_unit({option: "x", "idle-gpu-action": "fail"}))
    assert (settings.PATH.read_text(), systemd.starts) == (before, 1)


def test_one_that_does_not_start_is_said_and_hinders_nothing_else(systemd):
    systemd.fault = process.CommandError(["systemctl"], 1, "no")
    with pytest.raises(health_service.WatchError, match="journalctl -u gpu-ci-health"):
        ensure(gpu_unit())
    systemd.fault = None
    assert ensure(gpu_unit())
    assert not ensure(gpu_unit())


def test_without_a_copy_of_the_programs_there_is_none(systemd, tmp_path):
    (tmp_path / "app/one/stamp").unlink()
    assert not ensure(gpu_unit())
    assert systemd.unit is None


def lines(found, **running):
    return status_lines(found, make_plan(found), dataclasses.replace(RUNNING, **running))


@pytest.mark.parametrize(
    ("options", "running", "notes"),
    [
        ({}, {}, []),
        ({"gpu-health": "disabled"}, {"watch": False}, ["gpu-health-disabled"]),
        ({"gpu-health": "observe"}, {}, ["gpu-health-observes"]),
        ({}, {"metrics_taken": 335}, ["gpu-metrics-port-taken"]),
        ({}, {"watch": False}, ["gpu-health-down"]),
    ],
)
def test_status_shows_whether_the_health_service_runs(options, running, notes):
    (line,) = lines(gpu_unit(options), **running)
    assert line.level is Level.ACTIVE
    assert line.notes == ("gpus", *notes)


def test_without_gpus_nothing_is_said_of_the_watch():
    (line,) = lines(unit(options={"gpu-health": "disabled"}), watch=False)
    assert line.text == "Worker ready"


def test_too_many_for_one_cause_is_blocked_and_comes_first():
    out = tuple(Quarantine(one.uuid, "off the bus", by="watch") for one in GPUS)
    first, *_ = lines(gpu_unit(quarantined=out), suspect="GPUs are lost")
    assert (first.level, first.code) == (Level.BLOCKED, "gpus-failed-together")
    assert first.text.startswith("2 of 2 GPUs failed within 5 min (GPUs are lost)")
    assert "juju config ci-gpu quarantine-limit-percent=100" in first.text


def test_a_driver_that_hangs_is_said_before_all_that_follows_from_it():
    found = gpu_unit()
    hung = dataclasses.replace(found.inventory, gpus=(), state=State.HUNG)
    out = tuple(Quarantine(one.uuid, "driver hangs", by="watch") for one in GPUS)
    first, *_ = lines(gpu_unit(inventory=hung, quarantined=out), suspect="the driver hangs")
    assert (first.level, first.code) == (Level.BLOCKED, "driver-hangs")


def test_a_watch_that_failed_is_said_and_the_worker_goes_on():
    failure = Failure(Part.WATCH, "The GPUs are not watched: why. See journalctl")
    found = gpu_unit(failures=(failure,))
    assert make_plan(found).ci.own.worker == make_plan(gpu_unit()).ci.own.worker
    assert lines(found)[0].text == failure.text


def test_what_it_is_to_do_is_told_to_systemd(systemd):
    ensure(gpu_unit())
    written = systemd.unit.splitlines()
    for line in (
        "Type=notify",
        "Restart=always",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "KillMode=mixed",
    ):
        assert line in written
    exec_start = next(line for line in written if line.startswith("ExecStart="))
    assert exec_start.startswith("ExecStart=/usr/bin/flock --shared --timeout 60 --no-fork ")
    assert pathlib.Path(told().dispatch).name == "dispatch"


def test_the_door_has_it_where_gpus_are_and_takes_it_away_with_them(context, rooms):
    context.run(context.on.config_changed(), state(relations=[tsa()], enable_gpu=True))
    assert rooms.watched == "enabled"
    context.run(context.on.config_changed(), state(relations=[tsa()]))
    assert rooms.watched is None
    rooms.watched = "enabled"
    context.run(context.on.remove(), state())
    assert rooms.watched is None


def test_a_hook_with_a_driver_that_hangs_ends_and_says_so(context, rooms):
    rooms.inventory = Inventory(State.HUNG, detail="no answer within 20 s", vendor="nvidia")
    before = state(relations=[tsa()], enable_gpu=True)
    after = context.run(context.on.update_status(), before)
    assert after.unit_status.name == "blocked"
    assert after.unit_status.message.startswith("The GPU driver does not answer: ")
    # Who watched goes on, and sees when it is over.
    assert rooms.watched == "enabled"


def test_why_it_cannot_be_had_is_said_and_the_rest_is_done(context, rooms):
    def fail(*_):
        raise health_service.WatchError("The GPUs are not watched: no. See journalctl")

    rooms.hand_in(watch=fail)
    after = context.run(context.on.config_changed(), state(relations=[tsa()], enable_gpu=True))
    assert after.unit_status.message == "The GPUs are not watched: no. See journalctl"
    assert rooms.worker is not None
