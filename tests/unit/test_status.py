# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the operator reads: the worst first, facts only, and never "ready" for what is not."""

import pytest

import plan
import status
from found import WebSecrets
from plan import Keep, Plan, Problem, Severity
from status import Kind, Line, Running

GPU = plan.GpuPlan((), "/usr/bin/nvidia-container-runtime")
WORKER = plan.WorkerPlan("worker-0", (), (), "", (), (), wrapped=False)
WEB = plan.WebPlan("", 8080, "", None, WebSecrets("", "", ""), ())
BOTH = Running(web=True, worker=True)
BLOCKED = Problem(Severity.BLOCKED, "No GPU found")
WAITING = Problem(Severity.WAITING, "Waiting for web-tsa")


@pytest.mark.parametrize(
    ("made", "refused", "text"),
    [
        (Plan((), None, None, WORKER, None), (), "Worker ready"),
        (Plan((), None, None, None, WEB), (), "Web ready"),
        (Plan((), None, None, WORKER, WEB), (), "Web and worker ready"),
        (Plan((), None, GPU, WORKER, None, "2x NVIDIA"), (), "Worker ready (GPU: 2x NVIDIA)"),
        (
            Plan((), None, GPU, WORKER, WEB, "1x NVIDIA, 1 missing: GPU 0"),
            (),
            "Web and worker ready (GPU: 1x NVIDIA, 1 missing: GPU 0)",
        ),
        (
            Plan((), None, None, None, WEB),
            ("worker-public-key of worker/0: no", "tsa-host of x/1: no"),
            "Web ready (refused worker-public-key of worker/0: no; refused tsa-host of x/1: no)",
        ),
        (
            Plan((), None, GPU, WORKER, None, "2x NVIDIA"),
            ("tsa-host of web/1: is no ADDRESS:PORT",),
            "Worker ready (GPU: 2x NVIDIA; refused tsa-host of web/1: is no ADDRESS:PORT)",
        ),
    ],
)
def test_ready(made, refused, text):
    assert status.lines(made, BOTH, refused) == [Line(Kind.ACTIVE, text)]


@pytest.mark.parametrize(
    ("running", "units"),
    [
        (Running(worker=True), ["web"]),
        (Running(web=True), ["worker"]),
        (Running(), ["web", "worker"]),
    ],
)
def test_what_does_not_answer_is_not_ready_and_its_journal_is_named(running, units):
    lines = status.lines(Plan((), None, None, WORKER, WEB), running)
    assert [line.kind for line in lines] == [Kind.WAITING] * len(units)
    assert [line.text.split(": ")[1] for line in lines] == [
        f"journalctl -u concourse-{unit}" for unit in units
    ]


def test_one_part_that_is_not_wanted_is_not_waited_for():
    made = Plan((), None, None, WORKER, None)
    assert status.lines(made, Running(worker=True)) == [Line(Kind.ACTIVE, "Worker ready")]


def test_the_worst_comes_first_and_nothing_is_left_out():
    made = Plan((WAITING, BLOCKED), None, Keep.AS_IS, Keep.AS_IS, WEB)
    assert status.lines(made, Running()) == [
        Line(Kind.BLOCKED, BLOCKED.text),
        Line(Kind.WAITING, WAITING.text),
        Line(Kind.WAITING, "Waiting for web to answer: journalctl -u concourse-web"),
    ]


@pytest.mark.parametrize(("problem", "kind"), [(BLOCKED, Kind.BLOCKED), (WAITING, Kind.WAITING)])
def test_a_worker_that_runs_on_as_it_was_is_not_called_ready(problem, kind):
    made = Plan((problem,), None, Keep.AS_IS, Keep.AS_IS, None)
    assert status.lines(made, BOTH) == [Line(kind, problem.text)]


def test_a_unit_that_is_being_removed_says_so():
    lines = status.lines(Plan((), None, None, None, None), Running())
    assert lines == [Line(Kind.MAINTENANCE, "Leaving: this unit is being removed")]


def test_kinds_are_jujus_words():
    assert {kind.value for kind in Kind} == {"blocked", "waiting", "maintenance", "active"}
