# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Who is told what, when and how often; how: tests/functional/test_joblog_step_stderr.py."""

import dataclasses
import json

import pytest

from gpu_agent import paths
from gpu_agent.model.decisions import TakeOut, Tell
from gpu_agent.reporting.joblog.step_stderr import Outcome
from tests.unit.grants import in_use
from tests.unit.health_moments import BUSY, FIRST, IDLE, card, job
from tests.unit.joblog_rig import Watch

START = "[gpu-ci] GPU 0: A100-SXM4-80GB, driver 580.95, CUDA 13.0; waited 12 s\n"
DEAD = Tell("GPU-0", "xid", "Xid 79, it has fallen off the bus", hardware=True, xid=79)
DIED = (
    "[gpu-ci] GPU 0 failed (Xid 79, it has fallen off the bus): hardware, not your change. "
    "Run the build again\n"
)
SEGFAULT = Tell("GPU-0", "job", "Xid 31, ...", hardware=False, xid=31)


@pytest.fixture
def watch(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "QUARANTINE", tmp_path / "quarantine")
    return Watch(tmp_path)


def test_a_job_is_told_once_what_it_got(watch):
    assert watch.turn() == [START]
    assert watch.turn() == []
    watch.of()
    assert watch.turn() == [], "another daemon knows what was told"


def test_a_step_that_has_not_begun_is_told_when_it_has(watch):
    watch.pen.outcome = Outcome.NOBODY
    for _ in range(20):
        watch.turn()
    watch.pen.outcome = Outcome.SAID
    assert watch.turn() == [START]
    assert watch.turn() == []


RUNNER = job("gpucirunner-a.slice", kind="runner", bundle="", who="o/r build #7")


def test_a_runners_job_gets_a_line_about_a_fault_and_no_other(watch):
    watch.of("enabled", "fail")
    watch.days.holdings = (RUNNER,)
    assert watch.turn() == []
    assert watch.turn(DEAD) == [DIED]
    assert watch.turn(DEAD) == []
    # It may have had no job for most of this time.
    assert watch.go_on(20) == []
    assert watch.processes.ended == []
    watch.of("disabled")
    assert watch.turn(SEGFAULT) == []


def test_a_runner_without_a_job_gets_no_line_and_its_next_job_none_about_the_past(watch):
    watch.days.holdings = (dataclasses.replace(RUNNER, is_idle=True),)
    assert watch.turn(DEAD, SEGFAULT) == []
    watch.days.holdings = (RUNNER,)
    assert watch.turn() == []
    assert len(watch.turn(SEGFAULT)) == 1


def test_nobody_is_told_of_a_start_that_is_long_over(watch):
    watch.turn(seconds=130)
    assert watch.pen.said == []


@pytest.mark.parametrize(
    "holding", [job(ours=True), job(in_use=False), job("t1", "GPU-of-another-worker")]
)
def test_only_a_job_with_a_gpu_of_these_is_told(watch, holding):
    watch.days.holdings = (holding,)
    assert watch.turn(DEAD) == []


def test_a_container_that_gets_gpus_again_is_told_again(watch):
    assert watch.turn() == [START]
    watch.days.holdings = (job(since=watch.days.now),)
    assert watch.turn() == [START]


def test_the_job_whose_gpu_dies_is_told_and_no_other(watch):
    watch.days.holdings = (job(), job("t2", "GPU-1"))
    watch.turn()
    watch.pen.said.clear()
    watch.turn(DEAD)
    assert watch.pen.said == [("t1", DIED)]
    assert watch.turn(dataclasses.replace(DEAD, fault="recovery", text="more")) == []
    watch.of()
    assert watch.turn(DEAD) == []


def test_it_is_told_whether_the_gpu_is_out_of_use(watch):
    watch.turn()
    paths.QUARANTINE.mkdir()
    out = TakeOut("GPU-0", "xid", "Xid 79", "isolation", "Reboot the machine")
    (said,) = watch.turn(out, DEAD)
    assert said == DIED, "only what is written down counts: the watch may just observe"
    watch.days.unavailable = {"GPU-1": in_use("pid 1 (x)")}
    watch.days.holdings = (job("t2", "GPU-1"),)
    watch.turn()
    (said,) = watch.turn(dataclasses.replace(DEAD, uuid="GPU-1"))
    assert "It is out of use now; run the build again" in said


def test_a_fault_that_came_before_the_job_is_none_of_its(watch):
    watch.days.holdings = None
    assert watch.turn(DEAD) == []
    watch.days.holdings = (job(), job("t2", "GPU-0", since=watch.days.now + 1))
    watch.turn()
    told = {container for container, text in watch.pen.said if DIED in text}
    assert told == {"t1"}, "who held it is told as soon as that is known"


def test_a_fault_waits_for_a_step_that_has_not_begun(watch):
    watch.turn()
    watch.pen.outcome = Outcome.NOBODY
    watch.turn(DEAD)
    for _ in range(100):
        watch.turn()
    watch.pen.outcome = Outcome.SAID
    assert watch.turn() == [DIED]


def test_the_programs_own_fault_is_told_once_each(watch):
    watch.turn()
    (said,) = watch.turn(SEGFAULT)
    assert "Xid 31" in said
    assert "hardware" not in said
    assert watch.turn(SEGFAULT) == []
    (said,) = watch.turn(dataclasses.replace(SEGFAULT, xid=13))
    assert "Xid 13" in said


@pytest.mark.parametrize(("mode", "told"), [("enabled", 2), ("faults", 1), ("disabled", 0)])
def test_the_option_says_how_much_is_told(watch, mode, told):
    watch.of(mode)
    assert len("".join(watch.turn(DEAD)).splitlines()) == told
    assert bool(watch.go_on(2)) is (mode == "enabled")


@pytest.mark.parametrize("outcome", [Outcome.FULL, Outcome.NEVER])
def test_what_finds_no_room_is_tried_for_a_while(watch, outcome):
    watch.turn()
    watch.pen.outcome = outcome
    watch.turn(DEAD)
    watch.turn()
    watch.pen.outcome = Outcome.SAID
    assert watch.turn() == [DIED]
    watch.pen.outcome = outcome
    watch.turn(SEGFAULT)
    for _ in range(20):
        watch.turn()
    watch.pen.outcome = Outcome.SAID
    assert watch.turn() == []


def test_half_a_line_is_made_whole_before_anything_else(watch):
    watch.pen.room = 20
    watch.turn()
    watch.pen.room = 10000
    assert watch.turn(DEAD) == [START[20:] + DIED]


def test_a_container_whose_line_hangs_holds_up_no_other(watch):
    watch.days.holdings = (job(), job("t2", "GPU-1"))
    watch.pen.busy = {"t1"}
    watch.turn(DEAD, dataclasses.replace(DEAD, uuid="GPU-1"))
    assert [container for container, _ in watch.pen.said] == ["t2"]
    watch.pen.busy = set()
    watch.turn()
    assert [container for container, _ in watch.pen.said] == ["t2", "t1"]


def test_what_no_lease_is_left_for_is_forgotten(watch):
    watch.pen.outcome = Outcome.NOBODY
    watch.turn(DEAD)
    watch.days.holdings = ()
    watch.turn()
    notes = watch.folder / "run" / "joblog.json"
    assert json.loads(notes.read_text()) == {}
    assert notes.stat().st_mode & 0o777 == 0o600
    watch.days.holdings = (job(),)
    watch.pen.outcome = Outcome.SAID
    assert DIED not in "".join(watch.turn())


def test_a_job_is_told_at_times_what_it_used(watch):
    watch.days.figures["GPU-0"] = dataclasses.replace(BUSY, power_w=300.0)
    watch.turn(look=True)
    said = []
    for _ in range(125 * 4):
        figures = watch.days.figures["GPU-0"]
        drawn = (figures.energy_j or 0) + 4500
        watch.days.figures["GPU-0"] = dataclasses.replace(figures, energy_j=drawn)
        said += watch.turn(seconds=15, look=True)
    assert [line.split(":")[0] for line in said] == [
        f"[gpu-ci] {time}" for time in ("1 min", "5 min", "15 min", "30 min", "60 min", "2.0 h")
    ]
    assert said[2] == "[gpu-ci] 15 min: GPU 80 % busy, memory peak 20 of 80 GiB, 75 Wh\n"


def test_what_it_used_outlives_the_daemon(watch):
    watch.days.figures["GPU-0"] = BUSY
    watch.go_on(2)
    watch.of()
    watch.days.figures["GPU-0"] = IDLE
    said = watch.go_on(4)
    assert len(said) == 1, "1 min was told before"
    assert "memory peak 20 of 80 GiB" in said[0]


def test_no_sum_is_made_of_a_gpu_that_others_have_too(watch):
    watch.days.cards = (card(0, "MIG-a", "MIG-b"),)
    watch.days.holdings = (job("t1", "MIG-a"),)
    watch.days.figures["GPU-0"] = BUSY
    assert watch.go_on(10) == [
        "[gpu-ci] MIG device of GPU 0: A100-SXM4-80GB, driver 580.95, CUDA 13.0; waited 12 s\n"
    ]


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", '{"t1": 7}', '{"t1": {"since": 1000.0}}', '{"t1": {"since": "x"}}',
        '{"t1": {"since": 1000.0, "account": "{}", "told": 7}}',
    ],
)  # fmt: skip
def test_damaged_notes_are_as_none(watch, content):
    (watch.folder / "run").mkdir()
    (watch.folder / "run" / "joblog.json").write_text(content)
    watch.of()
    assert watch.turn() == [START]


def test_where_nothing_can_be_noted_it_is_told_nevertheless(watch):
    (watch.folder / "run").touch()
    with pytest.raises(OSError, match="run"):
        watch.turn()
    assert watch.pen.said == [("t1", START)]


def test_of_gpus_that_came_later_nothing_is_known(watch):
    watch.turn()
    watch.days.cards = (card(0, "GPU-0", "MIG-new"), card(1))
    watch.days.holdings = (job("t1", "GPU-0", "GPU-1"),)
    watch.go_on(12)
    assert watch.days.now > FIRST
