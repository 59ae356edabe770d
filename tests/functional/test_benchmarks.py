# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Each benchmark runs to its end, and the checks in them can fail."""

import os
import random
import re
import shutil
import subprocess
import sys

import pytest

from benchmarks import __main__ as program
from benchmarks import concourse, fairness, page
from benchmarks.measure import Ceiling, Options, Report, Samples, interleaved, percentile
from tests.functional.containerd_worker import NEEDS, ROOT

needs_root = [
    *NEEDS,
    pytest.mark.skipif(not shutil.which("jq"), reason="needs jq"),
]


def rooted(test):
    for mark in needs_root:
        test = mark(test)
    return test


def benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: it becomes a subreaper and enters another mount namespace."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}/lib:{ROOT}"},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


# A pattern that each one's report matches. Those with tasks of many seconds run in `make soak`.
SHORT = {
    "runtime": r"^## Calls of the runtime$",
    "leases": r"^## Leases$(?s:.)*^\| GPUs held twice \| 0\.00 \| 0 \|",
}
LONG = {
    "containerd": r"^## A step through containerd$",
    "handover": r"^## From one holder to the next$(?s:.)*"
    r"^\| GPUs handed over while in use \| 0\.00 \| 0 \|",
    "fairness": r"^## A large task among small ones$(?s:.)*^\| 10 s \| 1 \| \d(?s:.)*"
    r"^\| 2 s, without the rule \| 1 \| \d(?s:.)*"
    r"^\| 4 GPUs among tasks with one of 10 s, longest wait",
}


@rooted
def test_each_runs():
    wanted = {**SHORT, **LONG} if "GPUCI_SOAK" in os.environ else SHORT
    done = benchmarks(*wanted, "--n", "1", "--seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    for pattern in wanted.values():
        assert re.search(pattern, done.stdout, re.MULTILINE), done.stdout


def test_without_the_real_concourse_it_says_so(monkeypatch):
    monkeypatch.setattr(concourse.concourse, "is_real", lambda: False)
    (report,) = concourse.run(Options(1, random.Random(1)))
    assert report.blocks[0].startswith("Not measured: the real Concourse was not given")


def test_an_unknown_name_is_refused():
    done = benchmarks("runtimes")
    assert done.returncode == 2
    assert "no benchmark is called runtimes" in done.stderr


TWO_HOLDERS = """
from benchmarks import containers, leases, place
with place.started() as worker:
    spec = place.concourse_spec(worker, "task", "GPU_COUNT=1", "NVIDIA_VISIBLE_DEVICES=GPU-x")
    with place.entered(worker):
        folder = leases.shared_folder(worker)
        both = [containers.Container(place.RUNC, f"clash-{n}", spec) for n in (1, 2)]
        for container in both:
            container.create()
            container.start()
        both[0].exec("/scratch/hold sh -c 'busybox setsid sleep 1000 & exit 0'")
        both[0].wait("task")
        both[1].exec("/scratch/hold sleep 0")
        both[1].wait("task")
        for container in both:
            container.end()
        print(leases.lines(folder / "clashes"), leases.lines(folder / "ran"))
"""


@rooted
def test_a_gpu_with_two_holders_is_noticed():
    """The first one's step has ended; its setsid child has the GPU still."""
    path = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}/lib:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", TWO_HOLDERS], env=path, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "['GPU-x'] ['1 1', '1 1']\n", done.stderr


def a_round(*stays: fairness.Stay, over: float = 100) -> fairness.Round:
    return fairness.Round(2, stays, over)


def stay(task: str, gpus: str, called: float, leased: float, ended: float) -> fairness.Stay:
    return fairness.Stay(task, tuple(gpus), called, leased, leased, ended)


def test_a_gpu_is_kept_from_the_eighth_overtaking_on_and_idle_before():
    first = [stay(f"first-{gpu}", gpu, 0, 0, 10) for gpu in "abcdefgh"]
    small = [
        stay(f"small-{number}", gpu, 2, 10 + number / 4, 20 + number)
        for number, gpu in enumerate("abcdefgh")
    ]
    large = stay(fairness.LARGE, "abcd", 1, 23.5, 30)
    after = [stay(f"after-{gpu}", gpu, 3, 31, 40) for gpu in "abcd"]
    beyond = [stay(f"beyond-{gpu}", gpu, 4, 24 + number, 90) for number, gpu in enumerate("efgh")]
    found = a_round(*first, *small, large, *after, *beyond, over=35)
    assert found.ratio == 11.25
    assert len(found.overtakings) == 8
    passed_over = [(0, number / 4) for number in range(8)]
    assert sorted(found.idle()) == sorted(
        [*passed_over, *[(3.5 - number, 0) for number in range(4)], *[(0, 1)] * 4, *[(0, 0)] * 4]
    )


def test_a_gpu_that_nobody_has_again_is_idle_to_the_end():
    found = a_round(stay("first", "ab", 0, 0, 10), stay(fairness.LARGE, "b", 1, 10.5, 12), over=15)
    assert found.idle() == [(0, 0.5), (0, 5), (0, 3)]


def test_what_starves_and_what_is_idle_is_too_high():
    first = stay("first", "a", 0, 0, 10)
    starved = a_round(first, stay("next", "a", 2, 12, 20), stay(fairness.LARGE, "", 1, 13, 13))
    found = fairness.report({"10 s": [starved], "without the rule": [starved]})
    assert [(one.value, one.holds) for one in found.ceilings] == [(6, False), (2, False)]
    row = "| without the rule | 1 | 6.00 | 6.00, 1 in vain | 1 | 0.0 | 80.0 |"
    assert found.blocks[1].splitlines()[-1] == row


def test_only_the_long_tasks_have_a_ceiling_and_both_may_idle_no_gpu():
    first, large = stay("first", "a", 0, 0, 2), stay(fairness.LARGE, "a", 1, 2, 13)
    starved = stay(fairness.LARGE, "", 1, 13, 13)
    arms = {"10 s": [a_round(first, large, over=13)], "2 s": [a_round(first, starved, over=13)]}
    found = fairness.report(arms)
    assert [(one.value, one.holds) for one in found.ceilings] == [(0.5, True), (1, False)]


def test_arms_take_turns_and_the_first_round_does_not_count():
    ran = []

    def arm(name):
        def one():
            ran.append(name)
            return {"call": float(len(ran))}

        return one

    samples = interleaved({"a": arm("a"), "b": arm("b")}, Options(20, random.Random(3)))
    rounds = [ran[place : place + 2] for place in range(0, len(ran), 2)]
    assert len(rounds) == 21
    assert all(sorted(one) == ["a", "b"] for one in rounds)
    assert ["a", "b"] in rounds
    assert ["b", "a"] in rounds
    assert len(samples.times["call", "a"]) == 20
    assert min(samples.times["call", "a"] + samples.times["call", "b"]) == 3


def test_a_table_shows_medians_and_ratios():
    samples = Samples()
    for base, other in ((10, 20), (20, 30), (30, 90)):
        samples.add("runc", {"create": float(base)})
        samples.add("ours", {"create": float(other)})
    assert samples.ratio("create", "ours", "runc") == 1.5
    row = samples.table("get", ["create"], ["runc", "ours"]).splitlines()[-1]
    assert row == "| create | 20.0 (10.0-30.0) | **1.50** (1.50-3.00) |"


@pytest.mark.parametrize(
    ("percent", "value"), [(1, 1), (10, 1), (50, 5), (90, 9), (99, 10), (100, 10)]
)
def test_percentiles(percent, value):
    assert percentile([3, 1, 2, 10, 9, 8, 7, 6, 5, 4], percent) == value


def test_what_is_too_high_is_marked():
    report = Report("One", ceilings=[Ceiling("a", 1.06, 1.06), Ceiling("b", 1.07, 1.06)])
    assert [one.holds for one in report.ceilings] == [True, False]
    assert "| a | 1.06 | 1.06 |" in page.text(report)
    assert "| b | **1.07, too high** | 1.06 |" in page.text(report)


def test_the_page_says_where_and_when(monkeypatch, tmp_path):
    monkeypatch.setattr(page, "PAGE", tmp_path / "reference" / "performance.md")
    monkeypatch.setattr(page, "machine", lambda: "one machine")
    page.write([Report("One", ["Text."])], ["seed 7"])
    text = page.PAGE.read_text()
    assert text.startswith("# Performance\n")
    assert ", one machine\n- seed 7\n" in text
    assert text.endswith("\n## One\n\nText.\n")


def test_some_sections_are_renewed_and_the_others_stay(monkeypatch, tmp_path):
    monkeypatch.setattr(page, "PAGE", tmp_path / "performance.md")
    monkeypatch.setattr(page, "machine", lambda: "one machine")
    page.write([Report("One", ["Text."]), Report("Two", ["Old."])], ["seed 7"])
    page.renew([Report("Two", ["New."]), Report("Three", ["More."])], ["seed 8"])
    text = page.PAGE.read_text()
    assert text.startswith("# Performance\n")
    assert "\n- seed 7\n\n## One\n\nText.\n\n## Two\n\nNew.\n\nMeasured on " in text
    assert text.count("one machine; seed 8.\n") == 2
    assert "Old." not in text
    assert "\n\n## Three\n\nMore.\n" in text


@pytest.mark.parametrize(("flags", "status"), [([], 0), (["--check"], 1)])
def test_only_check_fails_where_a_ceiling_is_not_held(monkeypatch, capsys, flags, status):
    report = Report("One", ceilings=[Ceiling("it", 2, 1)])
    monkeypatch.setattr(program, "_run", lambda names, options: [report])
    monkeypatch.setattr(sys, "argv", ["benchmarks", *flags])
    assert program.main() == status
    assert "too high: it: 2.00, at most 1" in capsys.readouterr().out
