# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How a self-test is started as a service, and what is said of its end; systemd is simulated."""

import shlex
import threading

import pytest

from gpu_selftest import results, service
from gpu_selftest.check import Check, Level, Outcome
from gpu_selftest.results import Report
from machine import locks, process, templates
from machine import systemd as services
from machine import systemd_transient as transient

RUN = "20261121T170000Z-1a2b"
DRIVER = Check("driver", Level.QUICK, "the driver answers")


def report():
    made = (DRIVER.result(Outcome.PASSED, "it does"),)
    return Report(RUN, "abc", Level.QUICK, "cuda", "", "passed", "2026-11-21T17:00:00", 1.5, made)


class Systemd:
    """What systemd would say of the service, one answer after the other; the last one stays."""

    def __init__(self, monkeypatch, tmp_path):
        self.answers, self.started, self.forgotten = [("inactive", "")], [], 0
        self.result, self.refusal = "success", None
        self.log = tmp_path / "log/selftest.log"
        self.log.parent.mkdir()
        self.home = tmp_path / "home"
        self.then = lambda: None
        monkeypatch.setattr(services, "show", self.show)
        monkeypatch.setattr(services, "forget_failure", self.forget)
        monkeypatch.setattr(transient, "start", self.start)
        monkeypatch.setattr(service, "LOG", self.log)
        monkeypatch.setattr(service, "PROXIES", tmp_path / "run" / "selftest.env")
        monkeypatch.setattr(service, "_POLL", 0.01)
        read = results.read
        monkeypatch.setattr(results, "read", lambda run: read(run, self.home))

    def runs(self, *states):
        description = f"GPU self-test {RUN}, level burn-in"
        self.answers = [(state, description) for state in states]

    def show(self, name, *properties):
        assert name == "gpu-ci-selftest-run.service"
        state, description = self.answers[0]
        if "ActiveState" in properties:
            self.then()
            self.answers = self.answers[1:] or self.answers
        return {"ActiveState": state, "Description": description, "Result": self.result}

    def forget(self, name):
        self.forgotten += 1

    def start(self, name, argv, **more):
        if self.refusal:
            raise self.refusal
        self.started.append((argv, more))


@pytest.fixture
def systemd(monkeypatch, tmp_path):
    return Systemd(monkeypatch, tmp_path)


def test_parameters_become_the_commands_and_its_time(systemd):
    run = service.start(Level.BURN_IN, gpu="1", minutes=30, device="cpu")
    ((argv, more),) = systemd.started
    assert shlex.join(argv) == (
        f"/opt/gpu-ci/bin/gpu-selftest --level burn-in --run {run} --device cpu --gpu 1 "
        "--duration 30"
    )
    # The levels before it too, which may have to download PyTorch.
    assert int(more["properties"]["RuntimeMaxSec"]) == 7200 + 30 * 60
    assert more["description"] == f"GPU self-test {run}, level burn-in"
    assert more["properties"]["OnSuccess"] == more["properties"]["OnFailure"]
    service.start(Level.QUICK)
    argv, more = systemd.started[1]
    assert argv[1:3] == ["--level", "quick"]
    assert not {"--gpu", "--duration"} & set(argv)
    assert int(more["properties"]["RuntimeMaxSec"]) == 60
    assert not {"OnSuccess", "OnFailure"} & more["properties"].keys(), "a hook follows it"


def test_second_start_is_refused_with_what_runs(systemd):
    systemd.runs("active")
    assert service.running() == service.Running(RUN, Level.BURN_IN, results.started(RUN))
    with pytest.raises(service.SelftestError) as refused:
        service.start(Level.QUICK)
    assert str(refused.value) == (
        "A self-test of level burn-in is running since 17:00 UTC: wait until it ends, or stop it: "
        "sudo systemctl stop gpu-ci-selftest-run.service"
    )
    assert systemd.started == []


def test_systemd_that_refuses_is_an_error_in_words(systemd):
    systemd.refusal = process.CommandError(["/usr/bin/systemd-run"], 1, "Unit was already loaded")
    with pytest.raises(service.SelftestError, match=r"did not start: .*Unit was already loaded"):
        service.start(Level.QUICK)


@pytest.mark.parametrize("state", ["inactive", "failed"])
def test_unit_that_has_ended_runs_no_more(systemd, state):
    systemd.runs(state)
    assert service.running() is None


def test_each_whole_line_is_told_once_and_the_report_is_returned(systemd):
    systemd.runs("active", "active", "active", "inactive")
    steps = iter(["one\n", "two\nthr", "ee\n", "four\nhalf"])

    def write():
        with systemd.log.open("a") as log:
            log.write(next(steps, ""))
        if len(systemd.answers) == 1:
            results.save(report(), systemd.home)

    systemd.then = write
    told = []
    assert service.follow(RUN, 10, told.append) == report()
    assert told == ["one", "two", "three", "four"]


def test_report_counts_even_if_its_process_can_not_end(systemd):
    systemd.runs("active")
    results.save(report(), systemd.home)
    assert service.follow(RUN, 10, lambda _: None) == report()


def test_one_that_goes_on_is_left_alone_when_time_is_over(systemd):
    systemd.runs("active")
    assert service.follow(RUN, 0.05, lambda _: None) is None


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("oom-kill", "the machine ran out of memory"),
        ("timeout", "it did not end in time"),
        ("signal", "it was killed"),
        ("core-dump", "it crashed"),
        ("success", "see its log"),
        ("exit-code", "see its log"),
    ],
)
def test_one_that_died_is_an_error_with_why_and_its_last_words(systemd, result, words):
    systemd.runs("failed")
    systemd.result = result
    systemd.log.write_text("one\ntwo\n\nthree\nValueError: four\n")
    with pytest.raises(service.SelftestError) as died:
        service.follow(RUN, 10, lambda _: None)
    assert str(died.value) == (
        f"The self-test ended without a verdict: {words}; its last output: three / ValueError: "
        f"four; full log: {systemd.log}"
    )
    # Until the next one starts: juju status says it at each event meanwhile.
    assert systemd.forgotten == 0


def test_one_that_died_is_known_until_it_has_a_report(systemd):
    systemd.runs("failed")
    assert service.broken_off() == service.Running(RUN, Level.BURN_IN, results.started(RUN))
    results.save(report(), systemd.home)
    assert service.broken_off() is None


@pytest.mark.parametrize("state", ["inactive", "active"])
def test_one_that_runs_or_has_ended_well_did_not_die(systemd, state):
    systemd.runs(state)
    assert service.broken_off() is None


def test_others_are_waited_for_and_named_where_that_takes_too_long(monkeypatch, tmp_path):
    monkeypatch.setattr(service, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(service, "_POLL", 0.01)
    assert service.wait_for_others(10) == ""
    said = "pid 4711, level quick, since 17:00:03 UTC"
    with locks.hold(service.LOCK, said):
        assert service.wait_for_others(0.05) == said
        ends = threading.Timer(0.2, lambda: service.LOCK.rename(tmp_path / "ended"))
        ends.start()
        assert service.wait_for_others(10) == ""
    assert service.wait_for_others(10) == ""


def test_log_that_is_no_text_is_read_all_the_same(systemd):
    systemd.runs("active")
    systemd.log.write_bytes(b"from a library: \xff\nand on\n")
    told = []
    assert service.follow(RUN, 0.05, told.append) is None
    assert told == ["from a library: \ufffd", "and on"]


def test_another_run_is_not_taken_for_this_one(systemd):
    systemd.runs("active")
    with pytest.raises(service.SelftestError, match="ended without a verdict"):
        service.follow("20261121T160000Z-ffff", 10, lambda _: None)


def unit_at_boot(**values):
    text = templates.render(
        service.TEMPLATES, "gpu-ci-selftest.service", launcher=service.LAUNCHER, **values
    )
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def test_service_at_boot_of_a_machine_without_a_ci_system_waits_for_nothing():
    settings = unit_at_boot(before="", needs="")
    assert settings["ExecStart"] == "/opt/gpu-ci/bin/gpu-selftest --level quick"
    assert not {"Before", "ConditionPathExists"} & set(settings)


def test_service_at_boot_only_orders_and_ends_within_30_s():
    settings = unit_at_boot(before="ci-worker.service", needs="/opt/ci/runc")
    assert settings["Type"] == "oneshot"
    assert settings["ExecStart"] == "/opt/gpu-ci/bin/gpu-selftest --level quick"
    assert settings["Before"] == "ci-worker.service"
    assert settings["ConditionPathExists"] == "/opt/ci/runc"
    assert not {"RequiredBy", "Requires", "BindsTo"} & set(settings)
    # SIGTERM, then SIGKILL, each with the time that a stop may take.
    assert int(settings["TimeoutStartSec"]) + 2 * int(settings["TimeoutStopSec"]) <= 30
