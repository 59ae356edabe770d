# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The CI system's program joins the report by its answer; without a good one it never passes.

The programs here are real processes, started as the self-test starts them.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from ci import systems
from ci.concourse import agent_view
from ci.concourse.checks import __main__ as concourse_checks
from gpu_selftest import results, run
from gpu_selftest.check import Check, Level, Outcome, Said
from gpu_selftest.quick import ci_checks
from gpu_selftest.quick.ci_checks import Answer, AnswerError
from gpu_selftest.settings import Settings

ROOT = pathlib.Path(__file__).resolve().parents[2]
VOLUMES = Check("volumes", Level.QUICK, "a volume can be made", source="x.go", condemns=False)
LAUNCHER = Check("launcher", Level.QUICK, "tasks go through the runtime", remedy="restore it")
GOOD = Answer(
    (
        LAUNCHER.result(Outcome.FAILED, "launcher changed: /opt/x"),
        VOLUMES.result(Outcome.PASSED, "layers", value="overlay"),
        VOLUMES.told(
            Said(Outcome.FAILED, "no volumes: EPERM", 1.5, "repair it", "", "no volumes")
        ),
        VOLUMES.result(Outcome.NOT_RUN, "no time"),
    ),
    copies=3,
)
TEXT = ci_checks.as_json(GOOD)
OWN = [check.id for check in run.CHECKS]


def test_an_answer_comes_back_as_it_was_written():
    assert ci_checks.read(TEXT) == GOOD


def changed(**values):
    return json.dumps({**json.loads(TEXT), **values})


def row(**values):
    return changed(results=[{**json.loads(TEXT)["results"][1], **values}])


def without(name):
    found = json.loads(TEXT)["results"][1]
    del found[name]
    return changed(results=[found])


DAMAGED = {
    "nothing": "",
    "no JSON": "Traceback",
    "half of it": TEXT[:-20],
    "no object": "[]",
    "null": "null",
    "deep": "[" * 100_000,
    "huge": json.dumps("x" * (1 << 19)),
    "other version": changed(version=2),
    "no results": changed(results=[]),
    "results of another type": changed(results={"check": "volumes"}),
    "rows of another type": changed(results=["volumes"]),
    "no copies": changed(copies=0),
    "many copies": changed(copies=1000),
    "copies of another type": changed(copies=True),
    "unknown outcome": row(outcome="fine"),
    "outcome of another type": row(outcome=None),
    "no outcome": without("outcome"),
    "no id": without("check"),
    "strange id": row(check="../x"),
    "text of another type": row(text=["layers"]),
    "remedy of another type": row(remedy=None),
    "value of another type": row(value=[1]),
    "value is a truth value": row(value=True),
    "value is not finite": row(value=float("nan")),
    "condemns of another type": row(condemns="no"),
    "proves of another type": row(proves=7),
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_answer_is_none(text):
    with pytest.raises(AnswerError, match="the CI system's checks answer "):
        ci_checks.read(text)


def asked(code, *seconds):
    return ci_checks.ask(Settings("worker/0", checks=("-S", "-c", code)), OWN, *seconds)


def test_a_machine_without_a_program_has_no_row_of_it():
    assert ci_checks.ask(Settings("worker/0"), OWN) == Answer()


def test_a_programs_rows_are_the_reports():
    assert asked(f"print({TEXT!r})") == GOOD


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        *((f"print({text!r})", "answer") for text in DAMAGED.values() if len(text) < 50_000),
        ("print('x' * (1 << 20))", "more than 262144 characters"),
        ("import sys; sys.exit('no settings')", "failed with 1: no settings"),
        (f"print({TEXT!r}); raise SystemExit(3)", "failed with 3"),
        ("import os; os.kill(os.getpid(), 9)", "failed with -9"),
        ("import nothing_of_this_name", "No module named"),
    ],
)
def test_without_a_good_answer_one_row_did_not_run_and_says_why(code, cause):
    (found,) = asked(code).results
    assert (found.check, found.level, found.outcome) == ("ci-checks", Level.QUICK, Outcome.NOT_RUN)
    assert cause in found.text
    assert results.outcome([found]) == "incomplete"
    assert results.is_against(found)
    assert not results.condemns(found)


@pytest.mark.parametrize("name", ["disk", "ecc", "lease", "peer", "burn-in-xid", "ci-checks"])
def test_a_result_that_has_the_name_of_an_own_check_is_refused_and_the_others_stay(name):
    assert name in OWN
    first, *others = GOOD.results
    named = dataclasses.replace(first, check=name)
    found = asked(f"print({ci_checks.as_json(Answer((named, *others), copies=3))!r})")
    assert found.results[1:] == tuple(others)
    assert found.copies == 3
    refused = found.results[0]
    assert (refused.check, refused.outcome) == ("ci-checks", Outcome.NOT_RUN)
    assert refused.text == (
        f"the CI system has a check {name}, and so has the self-test: rename it there"
    )


def test_the_names_of_all_checks_differ():
    names = [*OWN, *(check.id for room in systems.ALL for check in room.checks)]
    assert len(names) == len({*names})


def test_a_check_of_concourses_that_breaks_off_costs_no_other_its_result(tmp_path):
    (tmp_path / "etc/concourse").mkdir(parents=True)
    settings = tmp_path / "etc/concourse/worker.env"
    settings.write_text("CONCOURSE_BAGGAGECLAIM_DRIVER=naive\n")
    # Its unit cannot be read.
    (tmp_path / "etc/systemd/system/concourse-worker.service").mkdir(parents=True)
    found = ci_checks.read(ci_checks.as_json(concourse_checks.answer({}, tmp_path)))
    assert [one.check for one in found.results] == [
        one.id for one in systems.BY_NAME["concourse"].checks
    ]
    limits = next(one for one in found.results if one.check == "limits")
    assert limits.outcome is Outcome.NOT_RUN
    assert limits.text.startswith("the check broke off: IsADirectoryError: ")
    assert found.copies == 3


def test_a_program_that_does_not_end_is_killed_in_time(tmp_path):
    left = tmp_path / "left"
    began = time.monotonic()
    (found,) = asked(
        "import os, time\n"
        f"if not os.fork(): time.sleep(4); open({str(left)!r}, 'w')\n"
        "time.sleep(600)",
        1.0,
    ).results
    assert time.monotonic() - began < 4
    assert (found.outcome, "no end within 1 s" in found.text) == (Outcome.NOT_RUN, True)
    time.sleep(max(0, began + 5 - time.monotonic()))
    assert not left.exists(), "its children are killed too"


def test_a_program_gets_a_clean_environment_and_this_copys_modules(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD_OF_A_USER", "/tmp/x.so")
    (found,) = asked(
        "import json, os, sys; sys.stdout.write('{')\n"
        "sys.stderr.write(json.dumps([sorted(os.environ), os.environ['PYTHONPATH']]))\n"
        "sys.exit(1)"
    ).results
    assert "LD_PRELOAD_OF_A_USER" not in found.text
    assert f"{ROOT}/lib:{ROOT}/src:{ROOT}/venv" in found.text


def test_concourses_program_is_the_one_that_its_room_names():
    view = agent_view.make("worker", has_web=False)
    name = view.checks[view.checks.index("-m") + 1]
    assert f"{name}.__main__" == concourse_checks.__name__


def test_concourses_program_without_settings_gives_no_answer(tmp_path):
    """On a machine without the charm, as in a boot after a forced removal."""
    if os.path.exists("/etc/gpu-ci/selftest.json"):
        pytest.skip("this machine has settings")
    done = subprocess.run(
        [sys.executable, "-B", "-m", "ci.concourse.checks"],
        env={"PYTHONPATH": f"{ROOT}/lib:{ROOT}/src"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "/etc/gpu-ci/selftest.json is missing or damaged\n"


def test_the_disk_is_named_only_where_the_machine_had_no_room(monkeypatch, tmp_path):
    from gpu_selftest.quick import host_checks

    full = VOLUMES.result(Outcome.NOT_RUN, "overlay: No space left on device")
    late = VOLUMES.result(Outcome.NOT_RUN, "it ran out of time")
    assert host_checks._named_by_disk(full) == dataclasses.replace(full, text="disk failed")
    assert host_checks._named_by_disk(late) == late
