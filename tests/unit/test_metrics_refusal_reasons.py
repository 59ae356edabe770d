# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The wrapper's log, followed across rotation; its lines are not trusted."""

import ast
import json
import pathlib

import pytest

from gpu_agent.reporting.metrics import refusal_reasons as refusals
from gpu_agent.reporting.metrics.refusal_reasons import Decided, Journal
from gpu_runtime.decision_log import Decision

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def log(tmp_path):
    return tmp_path / "oci.log"


def line(reason="", *, container="c", kind="task", **more):
    return json.dumps({"container": container, "kind": kind, "reason": reason, **more}) + "\n"


BUSY = line("this task waited 240 s for 1 GPU")
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


def test_rotation_by_the_wrapper_itself(log, monkeypatch):
    monkeypatch.setattr("gpu_runtime.decision_log._FULL", 1000)
    journal = Journal(log)
    found = []
    for _ in range(30):
        decision = Decision("c")
        decision.kind, decision.reason = "task", "this task waited 240 s"
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
        line("x", container=7), '{"kind":"task","container":"c","reason":null}\n',
        line("this task waited", container="gpu-selftest-x"), line("x", kind="intruder ended"),
        line("x", kind="gpu-release"), line("x", kind="gpu-cordon"),
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
    append(log, line("this container gave its GPU back when", kind="exec 1-2"))
    assert journal.read() == [Decided(refused="given-back")]


def beginnings():
    """Each text with which lib/gpu_runtime refuses a step, its variables as `x`.

    What engines' containers are told is counted nowhere; who names devices is no step either.
    """
    for path in sorted((ROOT / "lib/gpu_runtime").glob("*.py")):
        if path.name.startswith("engine"):
            continue
        tree = ast.parse(path.read_text())
        constants = {
            node.targets[0].id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            and isinstance(node.targets[0], ast.Name)
        }  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Refused":
                yield f"{path.name}:{node.lineno}", text_of(node.args[0], constants)


def text_of(node, constants):
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.BinOp):
        return text_of(node.left, constants) + text_of(node.right, constants)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part, constants) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        name = ast.unparse(node.value)
        if name in ("noun", "self.noun", "NOUNS[kind]"):
            return "task"
        if name.startswith("_owner("):
            return "task's image"
        if "failed(" in name:
            return "this worker failed"
        known = {"COUNT": "GPU_COUNT", "how": "param", "name": "NAME"}
        return known.get(name, constants.get(name, "x"))
    return "x"


def test_each_refusal_of_the_wrapper_has_a_name():
    found = dict(beginnings())
    assert len(found) > 15
    nameless = [text for text in found.values() if refusals.reason(text) == "other"]
    assert nameless == ["this task asks for GPU x, which x: x"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("GPU_COUNT 'two' is no number of GPUs: set", "wrong-count"),
        ("this task requires driver>=999 (NVIDIA_REQUIRE_OURS), and this worker", "requirement"),
        ("NVIDIA_REQUIRE_X of this task has 'foo=1', which is no condition on", "requirement"),
        ("GPU_COUNT '2' asks for a GPU, and this task is privileged: such", "privileged"),
        ("CUDA_VISIBLE_DEVICES '7' names '7', which this task does not have: it", "wrong-choice"),
        ("this worker can't tell who has which GPU: /run/x is damaged", "worker"),
        ("this container had GPU GPU-a, which is dirty: run", "gone"),
        ("this task's image requires cuda>=13.5 (NVIDIA_REQUIRE_CUDA), and this", "requirement"),
        ("this task needs 4 GPUs, and this worker has 2: set", "too-many"),
        ("something new", "other"),
    ],
)
def test_names(text, name):
    assert refusals.reason(text) == name
