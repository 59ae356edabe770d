# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the operator reads: the worst first, facts only, and never "ready" for what is not."""

import dataclasses
import string

import pytest

from ci.concourse.plan.model import WebPlan, WorkerPlan
from gpu_agent.model.keep import Keep
from gpu_agent.runtime.settings import GpuPlan
from options.part import Part
from plan import messages as problem_texts
from plan import plan, status
from plan.gpus import Choice
from plan.model import Plan
from plan.problems import Problem, Reason, problem
from plan.state import Failure
from plan.status import Kind, Line, Running
from relations.model import Tsa, Web, WebSecrets
from tests.unit import situations
from tests.unit.situations import gpu, unit

GPU = GpuPlan((), "/usr/bin/nvidia-container-runtime")
WORKER = WorkerPlan("worker-0", (), (), "", (), (), wrapped=False)
WEB = WebPlan("", 8080, "", None, WebSecrets("", "", ""), ())
BOTH = Running(web=True, worker=True, connected=True)
TWO = Choice((gpu(0), gpu(1)), (0, 1))
ONE = Choice((gpu(1),), (1,), missing=(0,))
UNIT = unit()
BLOCKED = problem(Reason.GPU_OBSTACLE, what="No GPU found", remedy="pass one in")
WAITING = Problem(Reason.NO_TSA_DATA)


@pytest.mark.parametrize(
    ("made", "refused", "text"),
    [
        (Plan((), None, None, WORKER, None), (), "Worker ready"),
        (Plan((), None, None, None, WEB), (), "Web ready"),
        (Plan((), None, None, WORKER, WEB), (), "Web and worker ready"),
        (Plan((), None, GPU, WORKER, None, TWO), (), "Worker ready (GPU: 2x NVIDIA)"),
        (
            Plan((), None, GPU, WORKER, WEB, ONE),
            (),
            "Web and worker ready (GPU: 1x NVIDIA, 1 missing: GPU 0)",
        ),
        (
            Plan((), None, None, None, WEB),
            ("worker-public-key of worker/0: no", "tsa-host of x/1: no"),
            "Web ready (refused worker-public-key of worker/0: no; refused tsa-host of x/1: no)",
        ),
        (
            Plan((), None, GPU, WORKER, None, TWO),
            ("tsa-host of web/1: is no ADDRESS:PORT",),
            "Worker ready (GPU: 2x NVIDIA; refused tsa-host of web/1: is no ADDRESS:PORT)",
        ),
    ],
)
def test_ready(made, refused, text):
    by_web, by_workers = (refused[1:], refused[:1]) if made.web else (refused, ())
    found = dataclasses.replace(UNIT, web=Web(refused=by_workers), tsa=Tsa(refused=by_web))
    assert status.lines(found, made, BOTH) == [Line(Kind.ACTIVE, text)]


def test_a_worker_that_copies_its_volumes_says_so():
    copies = dataclasses.replace(BOTH, copies=True)
    (line,) = status.lines(UNIT, Plan((), None, None, WORKER, None), copies)
    assert line.kind is Kind.ACTIVE
    assert line.text.startswith("Worker ready (volumes are copies, since no overlay can be mount")
    web = Plan((), None, None, None, WEB)
    assert status.lines(UNIT, web, copies) == status.lines(UNIT, web, BOTH)


@pytest.mark.parametrize(
    ("running", "units"),
    [
        (Running(worker=True, connected=True), ["web"]),
        (Running(web=True), ["worker"]),
        (Running(), ["web", "worker"]),
    ],
)
def test_what_does_not_answer_is_not_ready_and_its_journal_is_named(running, units):
    lines = status.lines(UNIT, Plan((), None, None, WORKER, WEB), running)
    assert [line.kind for line in lines] == [Kind.WAITING] * len(units)
    assert [line.text.split(": ")[1] for line in lines] == [
        f"journalctl -u concourse-{unit}" for unit in units
    ]


def test_a_worker_that_web_has_not_let_in_is_not_ready():
    made = Plan((), None, None, dataclasses.replace(WORKER, tsa_hosts=("a:2222", "b:1")), None)
    assert status.lines(UNIT, made, Running(worker=True)) == [
        Line(
            Kind.WAITING,
            "Waiting for web to see this worker: no lasting connection to its TSA a:2222, b:1: "
            "journalctl -u concourse-worker",
        )
    ]


def test_one_part_that_is_not_wanted_is_not_waited_for():
    made = Plan((), None, None, WORKER, None)
    running = Running(worker=True, connected=True)
    assert status.lines(UNIT, made, running) == [Line(Kind.ACTIVE, "Worker ready")]


def test_the_worst_comes_first_and_nothing_is_left_out():
    made = Plan((WAITING, BLOCKED), None, Keep.AS_IS, Keep.AS_IS, WEB)
    assert status.lines(UNIT, made, Running()) == [
        Line(Kind.BLOCKED, "No GPU found: pass one in"),
        Line(Kind.WAITING, "Waiting for the web unit to publish its TSA address and key"),
        Line(Kind.WAITING, "Waiting for web to answer: journalctl -u concourse-web"),
    ]


@pytest.mark.parametrize(("problem", "kind"), [(BLOCKED, Kind.BLOCKED), (WAITING, Kind.WAITING)])
def test_a_worker_that_runs_on_as_it_was_is_not_called_ready(problem, kind):
    made = Plan((problem,), None, Keep.AS_IS, Keep.AS_IS, None)
    (line,) = status.lines(UNIT, made, BOTH)
    assert line.kind is kind


@pytest.mark.parametrize(("passes", "kind"), [(False, Kind.BLOCKED), (True, Kind.WAITING)])
def test_what_could_not_be_done_is_said(passes, kind):
    found = dataclasses.replace(UNIT, failures=(Failure(Part.RELEASE, "No route", passes),))
    made = Plan((), None, None, Keep.AS_IS, None)
    assert status.lines(found, made, BOTH) == [Line(kind, "No route")]


def test_each_reason_has_a_sentence_with_its_values_and_nothing_left_out():
    for reason in set(Reason) - {Reason.ALL_QUARANTINED}:
        text = {**problem_texts.BLOCKED, **problem_texts.WAITING}[reason]
        names = [name for _, name, _, _ in string.Formatter().parse(text) if name]
        values = {name: f"<{name}>" for name in names if name != "application"}
        line = status.sentence(problem(reason, **values), UNIT, Choice())
        assert all(value in line.text for value in values.values())
        assert line.text.isprintable()


def test_a_unit_that_is_being_removed_says_so():
    lines = status.lines(UNIT, Plan((), None, None, None, None), Running())
    assert lines == [Line(Kind.MAINTENANCE, "Leaving: this unit is being removed")]


def test_kinds_are_jujus_words():
    assert {kind.value for kind in Kind} == {"blocked", "waiting", "maintenance", "active"}


@pytest.mark.parametrize(
    ("mode", "web", "kept"),
    [
        ("worker", Web(), True),
        ("all", situations.WEB, True),
        ("all", dataclasses.replace(situations.WEB, database_related=False, database=None), False),
        # Web goes on with what it has, which may be this one.
        ("all", dataclasses.replace(situations.WEB, database=None), False),
    ],
)
def test_a_database_on_the_machine_that_no_web_uses_is_said(mode, web, kept):
    found = unit(mode, web=web, local_database="concourse of web/0 of model ci")
    made = dataclasses.replace(plan.make(found), problems=())
    (line,) = status.lines(found, made, BOTH)
    assert ("(kept database concourse of web/0 of model ci)" in line.text) == kept


def test_a_port_that_another_program_has_is_named_before_what_comes_of_it():
    taken = (("web", 9391), ("worker", 7777))
    running = Running(failing=(("worker", 7), ("web", 3)), taken=taken)
    said = status.lines(UNIT, Plan((), None, None, WORKER, WEB), running)
    assert [line.kind for line in said] == [Kind.BLOCKED] * 2
    for line, who, (_, port) in zip(said, ("Web's", "The worker's"), taken, strict=True):
        assert line.text.startswith(f"{who} port {port} of 127.0.0.1 is taken by another program")
        assert f"sudo ss -ltnp 'sport = :{port}' names it" in line.text


def test_what_keeps_failing_is_no_longer_waited_for():
    failing = (("worker", 7), ("web", 3))
    web = Plan((), None, None, None, WEB)
    for running in (Running(failing=failing), dataclasses.replace(BOTH, failing=failing)):
        said = status.lines(UNIT, Plan((), None, None, WORKER, WEB), running)
        assert said == [
            Line(Kind.BLOCKED, f"{who} keeps failing ({starts} starts in 10 min): {journal}")
            for who, starts, journal in (
                ("Web", 3, "journalctl -u concourse-web"),
                ("The worker", 7, "journalctl -u concourse-worker"),
            )
        ]
    # Of a part that is not wanted, and of a web whose database is away, it is no news.
    (line,) = status.lines(UNIT, web, dataclasses.replace(BOTH, failing=failing[:1]))
    assert line.kind is Kind.ACTIVE
    (line,) = status.lines(UNIT, web, Running(failing=failing, lost_database="x"))
    assert line == Line(Kind.WAITING, "Web can't reach its database: x")
