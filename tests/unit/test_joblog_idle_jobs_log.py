# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A job that does not use its GPU is told so, and ended where that is wanted and surely so."""

import dataclasses
import pathlib

import pytest

from gpu_agent.reporting.joblog.step_stderr import Outcome
from gpu_agent.reporting.receipts.lease_journal import Journal
from tests.unit.health_moments import BUSY, IDLE, job
from tests.unit.joblog_rig import Watch

UNUSED = "[gpu-ci] no process has used GPU 0 in 10 min. Is the framework a CPU-only package?"


@pytest.fixture
def watch(tmp_path):
    return Watch(tmp_path)


def of_unused(said):
    return [line for line in said if UNUSED in line]


def test_a_gpu_that_nobody_uses_is_told_once(watch):
    assert of_unused(watch.go_on(9.5)) == []
    assert len(of_unused(watch.go_on(2))) == 1
    assert of_unused(watch.go_on(30)) == []
    watch.of()
    assert of_unused(watch.go_on(30)) == []
    assert watch.processes.ended == []


def test_one_that_was_used_is_never_unused_whoever_watches(watch):
    watch.of(unused="fail")
    watch.go_on(2)
    watch.days.figures["GPU-0"] = BUSY
    watch.go_on(1)
    watch.days.figures["GPU-0"] = IDLE
    assert of_unused(watch.go_on(30)) == []
    watch.of(unused="fail")
    assert of_unused(watch.go_on(30)) == []
    assert watch.processes.ended == []


@pytest.mark.parametrize(
    "figures",
    [
        dataclasses.replace(IDLE, busy=None),
        dataclasses.replace(IDLE, failure="GPU is lost"),
        dataclasses.replace(IDLE, pids=None, memory_used_mib=500),
        dataclasses.replace(IDLE, pids=(4711,)),
    ],
)
def test_what_is_not_known_is_not_unused(watch, figures):
    watch.of(unused="fail")
    watch.days.figures["GPU-0"] = figures
    assert of_unused(watch.go_on(30)) == []
    assert watch.processes.ended == []


def test_a_watch_without_looks_finds_nothing_unused(watch):
    watch.of(unused="fail")
    watch.go_on(5)
    for _ in range(40):
        watch.turn(seconds=60)
    watch.go_on(9)
    assert watch.processes.ended == []


def test_a_step_that_is_ended_is_told_to_operators_and_to_its_receipt(watch):
    watch.of(unused="fail")
    watch.go_on(12)
    assert watch.processes.ended == ["t1"]
    log = Journal(watch.folder / "oci.log")
    log.follow()
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert log.killed("t1", boot, 0.0) == "gpu-unused: GPU-0: not used for 10 min"


def test_in_a_system_container_processes_may_be_hidden(watch):
    watch.of(unused="fail", sees_all=False)
    watch.days.figures["GPU-0"] = dataclasses.replace(IDLE, memory_used_mib=500)
    watch.go_on(30)
    assert watch.processes.ended == []
    watch.days.figures["GPU-0"] = IDLE
    assert of_unused(watch.go_on(12))
    assert watch.processes.ended == ["t1"]


@pytest.mark.parametrize("mode", ["enabled", "faults", "disabled"])
def test_a_step_that_uses_no_gpu_ends_with_the_sentence(watch, mode):
    watch.of(mode, "fail")
    said = watch.go_on(10)
    assert (of_unused(said), watch.processes.ended) == ([], [])
    said = watch.go_on(0.25)
    assert len(of_unused(said)) == 1
    assert "idle-gpu-action=fail" in said[-1]
    assert watch.processes.ended == [], "a look that came after the sentence says the same first"
    watch.go_on(0.5)
    assert watch.processes.ended == ["t1"]
    watch.go_on(20)
    watch.of(mode, "fail")
    watch.go_on(20)
    assert watch.processes.ended == ["t1"]


def test_one_that_begins_to_use_its_gpu_just_then_goes_on(watch):
    watch.of(unused="fail")
    assert of_unused(watch.go_on(10.25))
    watch.days.figures["GPU-0"] = BUSY
    watch.go_on(20)
    watch.days.figures["GPU-0"] = IDLE
    watch.go_on(20)
    assert watch.processes.ended == []


def test_one_of_two_is_enough(watch):
    watch.of(unused="fail")
    watch.days.holdings = (job("t1", "GPU-0", "GPU-1"),)
    watch.days.figures["GPU-1"] = BUSY
    assert len(of_unused(watch.go_on(30))) == 1
    assert watch.processes.ended == []


def test_a_line_that_nobody_takes_keeps_no_gpu(watch):
    watch.of(unused="fail")
    watch.pen.outcome = Outcome.FULL
    watch.go_on(12)
    assert watch.processes.ended == ["t1"]


def test_a_container_that_cannot_be_looked_at_ends_no_daemon(watch, caplog):
    watch.of(unused="fail")
    watch.processes.damaged = True
    watch.go_on(20)
    assert "cannot kil" in caplog.text


def test_to_ignore_it_says_nothing(watch):
    watch.of(unused="ignore")
    assert of_unused(watch.go_on(30)) == []
