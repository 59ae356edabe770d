# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the operator reads: the worst first, facts only, and never "ready" for what is not."""

import dataclasses

import pytest

from ci.concourse.options.worker import WorkerSettings
from ci.concourse.plan import messages
from ci.concourse.plan.model import WebPlan, WorkerPlan, planned
from gpu_agent.model.keep import Keep
from gpu_agent.runtime.settings import GpuPlan
from options.part import Part
from plan.gpus import Choice
from plan.messages import Level, Line
from plan.state import Failure
from relations.model import Tsa, Web, WebSecrets
from tests.unit import situations
from tests.unit.situations import (
    Running,
    changed,
    gpu,
    make_plan,
    parse,
    plan_of,
    status_lines,
    unit,
)

GPU = GpuPlan((), "/usr/bin/nvidia-container-runtime")
WORKER = WorkerPlan("worker-0", (), (), "", (), WorkerSettings(), wrapped=False)
WEB = WebPlan("", 8080, "", None, WebSecrets("", "", ""), (), parse().ci.web)
BOTH = Running(web=True, worker=True, connected=True)
TWO = Choice((gpu(0), gpu(1)), (0, 1))
ONE = Choice((gpu(1),), (1,), missing=(0,))
UNIT = unit()
BLOCKED = Line(Level.BLOCKED, "no-gpu", "No GPU found: pass one in")
WAITING = messages.line("no-web-data")


@pytest.mark.parametrize(
    ("made", "refused", "text"),
    [
        (plan_of(worker=WORKER), (), "Worker ready"),
        (plan_of(web=WEB), (), "Web ready"),
        (plan_of(worker=WORKER, web=WEB), (), "Web and worker ready"),
        (plan_of(gpu=GPU, worker=WORKER, choice=TWO), (), "Worker ready (GPU: 2x NVIDIA)"),
        (
            plan_of(gpu=GPU, worker=WORKER, web=WEB, choice=ONE),
            (),
            "Web and worker ready (GPU: 1x NVIDIA, 1 missing: GPU 0)",
        ),
        (
            plan_of(web=WEB),
            ("worker-public-key of worker/0: no", "tsa-host of x/1: no"),
            "Web ready (refused worker-public-key of worker/0: no; refused tsa-host of x/1: no)",
        ),
        (
            plan_of(gpu=GPU, worker=WORKER, choice=TWO),
            ("tsa-host of web/1: is not ADDRESS:PORT",),
            "Worker ready (GPU: 2x NVIDIA; refused tsa-host of web/1: is not ADDRESS:PORT)",
        ),
    ],
)
def test_ready(made, refused, text):
    by_web, by_workers = (refused[1:], refused[:1]) if planned(made).web else (refused, ())
    found = changed(UNIT, web=Web(refused=by_workers), tsa=Tsa(refused=by_web))
    (line,) = status_lines(found, made, BOTH)
    assert (line.level, line.code, line.text) == (Level.ACTIVE, "ready", text)


def test_a_worker_that_copies_its_volumes_says_so():
    copies = dataclasses.replace(BOTH, copies=True)
    (line,) = status_lines(UNIT, plan_of(worker=WORKER), copies)
    assert (line.level, line.notes) == (Level.ACTIVE, ("volumes-copied",))
    web = plan_of(web=WEB)
    assert status_lines(UNIT, web, copies) == status_lines(UNIT, web, BOTH)


@pytest.mark.parametrize(
    ("running", "codes"),
    [
        (Running(worker=True, connected=True), ["web-not-answering"]),
        (Running(web=True), ["worker-not-answering"]),
        (Running(), ["web-not-answering", "worker-not-answering"]),
    ],
)
def test_what_does_not_answer_is_not_ready(running, codes):
    lines = status_lines(UNIT, plan_of(worker=WORKER, web=WEB), running)
    assert [line.level for line in lines] == [Level.WAITING] * len(codes)
    assert [line.code for line in lines] == codes


def test_a_worker_that_web_has_not_let_in_is_not_ready():
    made = plan_of(worker=dataclasses.replace(WORKER, tsa_hosts=("a:2222", "b:1")))
    (line,) = status_lines(UNIT, made, Running(worker=True))
    assert line.code == "worker-not-connected"
    assert "a:2222, b:1" in line.text


def test_one_part_that_is_not_wanted_is_not_waited_for():
    made = plan_of(worker=WORKER)
    running = Running(worker=True, connected=True)
    assert status_lines(UNIT, made, running) == [Line(Level.ACTIVE, "ready", "Worker ready")]


def test_the_worst_comes_first_and_nothing_is_left_out():
    made = plan_of(
        Keep.AS_IS,
        Keep.AS_IS,
        WEB,
        problems=(
            WAITING,
            BLOCKED,
        ),
    )
    lines = status_lines(UNIT, made, Running())
    assert lines[0] == Line(Level.BLOCKED, "no-gpu", "No GPU found: pass one in")
    assert [line.code for line in lines[1:]] == ["no-web-data", "web-not-answering"]
    assert {line.level for line in lines[1:]} == {Level.WAITING}


@pytest.mark.parametrize(
    ("problem", "level"), [(BLOCKED, Level.BLOCKED), (WAITING, Level.WAITING)]
)
def test_a_worker_that_runs_on_as_it_was_is_not_called_ready(problem, level):
    made = plan_of(Keep.AS_IS, Keep.AS_IS, None, problems=(problem,))
    (line,) = status_lines(UNIT, made, BOTH)
    assert line.level is level


@pytest.mark.parametrize(("passes", "code"), [(False, "step-failed"), (True, "step-retried")])
def test_a_failed_step_is_shown(passes, code):
    found = dataclasses.replace(UNIT, failures=(Failure(Part.RELEASE, "No route", passes),))
    made = plan_of(worker=Keep.AS_IS)
    (line,) = status_lines(found, made, BOTH)
    assert (line.code, line.text) == (code, "No route")


def test_a_unit_that_is_being_removed_says_so():
    found = dataclasses.replace(UNIT, leaving=True)
    lines = status_lines(found, plan_of(), Running())
    assert [(line.level, line.code) for line in lines] == [(Level.MAINTENANCE, "removing")]


def test_levels_are_jujus_names():
    assert {level.value for level in Level} == {"blocked", "waiting", "maintenance", "active"}


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
    made = make_plan(found)
    made = dataclasses.replace(made, ci=dataclasses.replace(made.ci, problems=()))
    (line,) = status_lines(found, made, BOTH)
    assert ("database-kept" in line.notes) == kept
    assert ("concourse of web/0 of model ci" in line.text) == kept


def test_a_port_that_another_program_has_is_named_before_what_comes_of_it():
    taken = (("web", 9391), ("worker", 7777))
    running = Running(failing=(("worker", 7), ("web", 3)), taken=taken)
    said = status_lines(UNIT, plan_of(worker=WORKER, web=WEB), running)
    assert [line.code for line in said] == ["web-port-taken", "worker-port-taken"]
    for line, (_, port) in zip(said, taken, strict=True):
        assert f"sudo ss -ltnp 'sport = :{port}'" in line.text


def test_what_keeps_failing_is_no_longer_waited_for():
    failing = (("worker", 7), ("web", 3))
    web = plan_of(web=WEB)
    for running in (Running(failing=failing), dataclasses.replace(BOTH, failing=failing)):
        said = status_lines(UNIT, plan_of(worker=WORKER, web=WEB), running)
        assert [line.code for line in said] == ["web-keeps-failing", "worker-keeps-failing"]
        assert ["(3 starts" in said[0].text, "(7 starts" in said[1].text] == [True, True]
    # Of a part that is not wanted, and of a web whose database is away, it is no news.
    (line,) = status_lines(UNIT, web, dataclasses.replace(BOTH, failing=failing[:1]))
    assert line.level is Level.ACTIVE
    (line,) = status_lines(UNIT, web, Running(failing=failing, lost_database="x"))
    assert line.code == "web-database-lost"
