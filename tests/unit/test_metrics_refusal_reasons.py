# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The GPU runtime's log, followed across rotation; its lines are not trusted."""

import json
import pathlib

import pytest

from gpu_agent.reporting.metrics import refusal_reasons as refusals
from gpu_agent.reporting.metrics.refusal_reasons import Decided, Journal
from gpu_runtime.decision_log import Decision
from gpu_runtime.refusal_codes import CODES
from tests.unit.refusals import ROOT, made_in


@pytest.fixture
def log(tmp_path):
    return tmp_path / "oci.log"


def line(code="", *, container="c", kind="task", **more):
    return json.dumps({"container": container, "kind": kind, "code": code, **more}) + "\n"


BUSY = line("wait-timeout")
GOT = line(granted=["GPU-a"], waited_ms=1500)


def append(log, text):
    with log.open("a") as file:
        file.write(text)


def test_it_begins_at_the_logs_end_and_goes_on_from_there(log):
    append(log, BUSY)
    journal = Journal(log)
    assert journal.read() == []
    append(log, GOT + BUSY)
    assert journal.read() == [Decided(waited=1.5), Decided(refused="busy")]
    assert journal.read() == []


def test_rotation_by_the_wrapper_itself(log):
    append(log, "\n" * ((4 << 20) - 1000))
    journal = Journal(log)
    found = []
    for _ in range(30):
        decision = Decision("c")
        decision.kind, decision.code = "task", "wait-timeout"
        decision.write(str(log))
        found += journal.read()
    found += journal.read()
    assert found == [Decided(refused="busy")] * 30
    assert pathlib.Path(f"{log}.1").exists()


@pytest.mark.parametrize(
    "damaged",
    [
        "\n", "null\n", "[]\n", "{}\n", "DEEP\n", '{"kind": 1}\n', "\udcff\n",
        line(granted=["GPU-a"], waited_ms="many"), line(granted=["GPU-a"]), line(granted=[]),
        line("x", container=7), '{"kind":"task","container":"c","code":null}\n',
        line("wait-timeout", container="gpu-selftest-x"), line("x", kind="intruder ended"),
        line("x", kind="gpu-reclaim"), line("x", kind="gpu-cordon"),
        line(granted=["GPU-a"], waited_ms=3, kind="exec hijack"),
    ],
)  # fmt: skip
def test_what_is_no_decision_on_a_step_counts_as_none(log, damaged):
    journal = Journal(log)
    text = damaged.replace("DEEP", "[" * 50_000)
    log.write_bytes(text.encode(errors="surrogateescape"))
    append(log, BUSY)
    assert journal.read() == [Decided(refused="busy")]


def test_no_wait_is_negative_or_longer_than_a_day(log):
    journal = Journal(log)
    append(log, line(granted=["a"], waited_ms=-5) + line(granted=["a"], waited_ms=10**15))
    assert journal.read() == [Decided(waited=0.0), Decided(waited=86400.0)]


def test_sessions_are_refused_too(log):
    journal = Journal(log)
    append(log, line("gpu-given-back", kind="exec 1-2"))
    assert journal.read() == [Decided(refused="given-back")]


def test_each_refusal_of_a_step_has_a_name():
    """Refusals of engines' containers are not counted. A step names no GPU, and has no lender."""
    paths = (ROOT / "lib/gpu_runtime").glob("*.py")
    made = [made_in(path) for path in paths if not path.name.startswith("engine")]
    codes = {code for places in made for found in places.values() for code in found}
    assert len(codes) > 15
    nameless = {code for code in codes if refusals.reason(code) == "other"}
    assert nameless == {"gpu-unavailable", "gpu-not-offered", "not-in-job"}


def test_names_stand_for_codes_of_the_table_and_each_code_has_one():
    named = [code for one in refusals.REASONS for code in one.codes]
    assert len(named) == len({*named})
    assert CODES.keys() >= {*named}
    assert refusals.reason("something new") == "other"
