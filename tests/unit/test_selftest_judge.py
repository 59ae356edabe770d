# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Rates are held against the model's floor, the GPU's own past and its siblings; the edges."""

import pytest

from gpu_selftest.check import Outcome, Said
from gpu_selftest.compute import answers, floors, judge
from gpu_selftest.compute.baseline import Baseline
from gpu_selftest.compute.measurements import Findings, Rate, Target
from tests.unit.situations import gpu

PASSED, WARNING, FAILED = Outcome.PASSED, Outcome.WARNING, Outcome.FAILED
H100 = floors.find("0x2330")
FP32 = answers.RATES["fp32"]


def outcome(value, measure=judge.OF_GPU, **against):
    return judge.judge(value, "TFLOPS", measure, **against).outcome


@pytest.mark.parametrize(
    ("value", "expected"),
    [(100, PASSED), (95, PASSED), (94.9, WARNING), (85, WARNING), (84.9, FAILED), (0, FAILED)],
)
def test_a_gpu_against_its_own_last_good_run(value, expected):
    verdict = judge.judge(value, "TFLOPS", judge.OF_GPU, own=100.0)
    assert verdict.outcome is expected
    part = "85%" if expected is FAILED else "95%"
    assert verdict.threshold == f"at least {part} of its own last good run, 100 TFLOPS"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(90, PASSED), (89.9, WARNING), (75, WARNING), (74.9, FAILED)],
)
def test_a_gpu_against_the_median_of_its_siblings(value, expected):
    verdict = judge.judge(value, "TFLOPS", judge.OF_GPU, siblings=[60.0, 100.0, 104.0])
    assert verdict.outcome is expected
    assert "of the others of its model, 100 TFLOPS" in verdict.threshold


@pytest.mark.parametrize(("value", "expected"), [(29.25, PASSED), (29.24, FAILED)])
def test_a_gpu_against_the_floor_of_its_model(value, expected):
    floor = judge.floor_of(H100, "fp32")
    verdict = judge.judge(value, "TFLOPS", judge.OF_GPU, floor)
    assert verdict.outcome is expected
    assert verdict.threshold == "at least 29.25 TFLOPS for H100 80GB HBM3"
    assert verdict.source == floors.DCGM


def test_the_worst_of_several_verdicts_counts():
    floor = judge.Floor(10.0, "X", "x")
    assert outcome(90, floor=floor, own=100.0, siblings=[90.0]) is WARNING
    assert outcome(90, floor=floor, own=91.0, siblings=[200.0]) is FAILED
    assert outcome(9, floor=floor, own=9.0, siblings=[9.0]) is FAILED
    assert outcome(90, floor=floor, own=91.0, siblings=[90.0]) is PASSED
    named = judge.judge(90, "TFLOPS", judge.OF_GPU, floor, own=91.0, siblings=[200.0])
    assert "others" in named.threshold


def test_with_nothing_to_compare_with_it_passes_and_says_so():
    verdict = judge.judge(1.0, "TFLOPS", judge.OF_GPU)
    assert verdict == judge.Verdict(PASSED, "nothing to compare it with yet", "")


@pytest.mark.parametrize(
    ("value", "against", "expected"),
    [
        (40, {"own": 50.0}, PASSED),
        (39.9, {"own": 50.0}, WARNING),
        (30, {"own": 50.0}, WARNING),
        (29.9, {"own": 50.0}, FAILED),
        (30, {"siblings": [50.0]}, PASSED),
        (1, {"siblings": [50.0]}, WARNING),
        # The model is fine: it is the host's slot that is slow.
        (24, {"floor": judge.floor_of(H100, "host")}, WARNING),
        (48, {"floor": judge.floor_of(H100, "host")}, PASSED),
    ],
)
def test_a_link_depends_on_the_host_and_is_judged_less_strictly(value, against, expected):
    assert outcome(value, judge.OF_LINK, **against) is expected


def test_floors_are_found_by_pci_id_and_name_their_source():
    assert floors.find("0x1EB8\n").name == "T4"
    assert floors.find("27b8").within == 198.5
    assert floors.find("0x9999") is None
    assert floors.find("") is None
    assert judge.floor_of(None, "fp32") is None
    assert judge.floor_of(H100, "bf16") is None
    assert judge.floor_of(H100, "peer") == (335.0, H100.name, floors.AZURE)


def test_floors_are_rates_that_such_gpus_have():
    """In TFLOPS and GB/s; DCGM's file has them in thousandths."""
    for model in floors._MODELS.values():
        assert 1 < (model.fp32 or model.fp64) < 60, model
        assert model.within is None or 120 < model.within < 5000, model


@pytest.fixture
def good(tmp_path):
    return Baseline(tmp_path / "selftest")


def test_the_best_of_all_good_runs_is_kept_for_each_gpu(good):
    assert good.own("GPU-a", "kit 580") == {}
    good.keep("GPU-a", "kit 580", {"fp32": 50.0, "copy": 9.0})
    good.keep("GPU-b", "kit 580", {"fp32": 40.0})
    good.keep("GPU-a", "kit 580", {"fp32": 48.0, "peer": 3.0})
    assert good.own("GPU-a", "kit 580") == {"fp32": 50.0, "copy": 9.0, "peer": 3.0}
    assert good.own("GPU-b", "kit 580") == {"fp32": 40.0}


def test_what_other_software_measured_is_not_compared_and_goes(good):
    good.keep("GPU-a", "kit 580", {"fp32": 50.0})
    assert good.own("GPU-a", "kit 590") == {}
    good.keep("GPU-a", "kit 590", {"fp32": 30.0})
    assert good.own("GPU-a", "kit 590") == {"fp32": 30.0}
    assert good.own("GPU-a", "kit 580") == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_a_damaged_record_counts_as_none(good, text):
    good.home.mkdir()
    good.path.write_text(text)
    assert good.own("GPU-a", "kit") == {}
    good.keep("GPU-a", "kit", {"fp32": 1.0})
    assert good.own("GPU-a", "kit") == {"fp32": 1.0}


def rated(findings, index, value, **about):
    here = gpu(index, **about)
    target = Target(here, here.uuid)
    findings.rates.append(Rate(FP32, target, value, "x", "fp32", judge.OF_GPU))
    return target


def test_only_a_gpu_that_passed_everything_sets_a_mark(good):
    findings = Findings("cuda", "worker/0", good)
    well, slow, broken = (
        rated(findings, index, value) for index, value in enumerate((10.0, 5.0, 10.0))
    )
    findings.add(answers.MEMORY, broken, Said(FAILED, "1 word is wrong"))
    findings.judge("kit")
    outcomes = {one.gpu: one.outcome for one in findings.results if one.check != "memory-pattern"}
    assert outcomes == {well.uuid: PASSED, slow.uuid: FAILED, broken.uuid: PASSED}
    assert good.own(well.device, "kit") == {"matrix-rate-fp32": 10.0}
    assert good.own(slow.device, "kit") == good.own(broken.device, "kit") == {}


def test_a_gpu_that_slows_down_between_runs_fails(good):
    for value, expected in ((10.0, PASSED), (9.6, PASSED), (9.4, WARNING), (8.4, FAILED)):
        findings = Findings("cuda", "worker/0", good)
        rated(findings, 0, value)
        findings.judge("kit")
        assert findings.results[0].outcome is expected
        assert (findings.results[0].value, findings.results[0].unit) == (value, "TFLOPS")
        assert bool(findings.results[0].remedy) == (expected is not PASSED)


def test_gpus_of_other_models_are_no_siblings(good):
    findings = Findings("cuda", "worker/0", good)
    rated(findings, 0, 10.0)
    rated(findings, 1, 2.0, model="NVIDIA L4")
    findings.judge("kit")
    assert {one.outcome for one in findings.results} == {PASSED}


ALL = range(4)


def pairs(*bad):
    return [
        {"from": one, "to": other, "wrong": int((one, other) in bad)}
        for one in ALL
        for other in ALL
        if one != other
    ]


@pytest.mark.parametrize(
    ("bad", "blamed"),
    [
        ([], set()),
        ([(2, other) for other in ALL if other != 2], {2}),
        ([(other, 1) for other in ALL if other != 1] + [(1, 0)], {1}),
        ([(0, 3)], {0, 3}),
        # Two at fault of four: nothing tells them from those they fail with.
        ([(one, other) for one in (0, 1) for other in ALL if one != other], set(ALL)),
    ],
)
def test_who_is_at_fault_for_copies_that_arrive_wrong(bad, blamed):
    assert answers.blamed(pairs(*bad), 4) == blamed
